"""Layers of torch, and what people do to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, parametrize, prune

from torch_programs.driver import program
from torch_programs.pieces import Data, Tensor, adam, mlp, sgd


def _square(model: Any, x: Tensor) -> Tensor:
    return model(x).square().mean()


def _trained(
    way: Any, model: nn.Module, shape: Any, loss: Any = _square, make: Any = sgd, n: int = 4
) -> Iterator[Any]:
    data = Data()
    step = way.loss(model, make(model), loss)
    for _ in range(n):
        yield step(data.normal(*shape))


@program(devices=4, microbatches=2)
def lstm(way: Any) -> Iterator[Any]:
    model = nn.LSTM(6, 8, num_layers=2, batch_first=True, bidirectional=True)
    yield from _trained(way, model, (4, 5, 6), lambda m, x: m(x)[0].square().mean())


@program()
def lstm_with_a_projection(way: Any) -> Iterator[Any]:
    model = nn.LSTM(6, 8, proj_size=4)
    yield from _trained(way, model, (5, 4, 6), lambda m, x: m(x)[0].square().mean())


@program(devices=4, microbatches=2, batch_axes=1)
def gru(way: Any) -> Iterator[Any]:
    yield from _trained(way, nn.GRU(6, 8), (5, 4, 6), lambda m, x: m(x)[1].square().mean())


@program()
def rnn(way: Any) -> Iterator[Any]:
    model = nn.RNN(6, 8, nonlinearity="relu", batch_first=True)
    yield from _trained(way, model, (4, 5, 6), lambda m, x: m(x)[0].square().mean())


@program()
def lstm_that_carries_its_state(way: Any) -> Iterator[Any]:
    data, model = Data(), nn.LSTM(6, 8, batch_first=True)
    optimizer = sgd(model)

    def train(x: Tensor, state: Any) -> Any:
        optimizer.zero_grad()
        out, (h, c) = model(x, state)
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), (h.detach(), c.detach())

    step = way.step(train, model, optimizer)
    state = (torch.zeros(1, 4, 8), torch.zeros(1, 4, 8))
    for _ in range(4):
        loss, state = step(data.normal(4, 5, 6), state)
        yield loss, state


@program()
def lstm_cell_in_a_loop(way: Any) -> Iterator[Any]:
    def loss(model: Any, x: Tensor) -> Tensor:
        state = None
        for part in x.unbind(1):
            state = model(part, state)
        return state[0].square().mean()

    yield from _trained(way, nn.LSTMCell(6, 8), (4, 5, 6), loss)


@program()
def batch_norm(way: Any) -> Iterator[Any]:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    yield from _trained(way, model, (8, 6))


@program(devices=4)
def batch_norm_of_images(way: Any) -> Iterator[Any]:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3)
    )
    yield from _trained(way, model, (4, 3, 8, 8))


@program()
def batch_norm_cumulative(way: Any) -> Iterator[Any]:
    """Momentum None: the average over all batches, by the count of them."""
    model = nn.Sequential(nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 2))
    yield from _trained(way, model, (8, 6))


@program()
def batch_norm_without_statistics(way: Any) -> Iterator[Any]:
    model = nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 2))
    yield from _trained(way, model, (8, 6))


@program("any", microbatches=2)
def batch_norm_in_microbatches(way: Any) -> Iterator[Any]:
    """Not a sum over examples: one device's statistics are of the whole batch."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    yield from _trained(way, model, (8, 6))


@program()
def group_and_instance_norm(way: Any) -> Iterator[Any]:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.InstanceNorm2d(4, affine=True)
    )
    yield from _trained(way, model, (4, 3, 6, 6), lambda m, x: m(x).pow(3).mean())


@program()
def rms_and_local_norm(way: Any) -> Iterator[Any]:
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.LocalResponseNorm(2), nn.RMSNorm(4))
    yield from _trained(way, model, (4, 3, 6))


@program()
def embedding_with_padding(way: Any) -> Iterator[Any]:
    data = Data()
    model = nn.Sequential(nn.Embedding(9, 6, padding_idx=0), nn.Linear(6, 9))
    step = way.loss(
        model,
        adam(model),
        lambda m, t: F.cross_entropy(m(t).flatten(0, 1), t.flatten(), ignore_index=0),
    )
    for _ in range(4):
        yield step(data.classes(9, 4, 5))


@program()
def embedding_sparse(way: Any) -> Iterator[Any]:
    data = Data()
    model = nn.Sequential(nn.Embedding(9, 6, sparse=True), nn.Linear(6, 3))
    step = way.loss(model, sgd(model), lambda m, t: m(t).square().mean())
    for _ in range(4):
        yield step(data.classes(9, 4, 5))


@program()
def embedding_with_max_norm(way: Any) -> Iterator[Any]:
    """Forward writes the weight: rows that are read are made shorter."""
    data = Data()
    model = nn.Sequential(nn.Embedding(9, 6, max_norm=1.0), nn.Linear(6, 3))
    step = way.loss(model, sgd(model), lambda m, t: m(t).square().mean())
    for _ in range(4):
        yield step(data.classes(9, 4, 5))


@program()
def embedding_scaled_by_frequency(way: Any) -> Iterator[Any]:
    data = Data()
    model = nn.Embedding(5, 6, scale_grad_by_freq=True)
    step = way.loss(model, sgd(model), lambda m, t: m(t).square().mean())
    for _ in range(4):
        yield step(data.classes(5, 4, 5))


@program()
def embedding_bag(way: Any) -> Iterator[Any]:
    data = Data()
    model = nn.EmbeddingBag(9, 6, mode="mean")
    step = way.loss(model, sgd(model), lambda m, b: m(b[0], b[1]).square().mean())
    for i in range(4):
        yield step((data.classes(9, 10), torch.tensor([0, 2, 5 + i % 2, 8])))


@program()
def weight_norm(way: Any) -> Iterator[Any]:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 2))
    yield from _trained(way, model, (4, 6))


@program()
def spectral_norm(way: Any) -> Iterator[Any]:
    """Power iterations write buffers in forward."""
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Tanh())
    yield from _trained(way, model, (4, 6))


@program()
def old_weight_and_spectral_norm(way: Any) -> Iterator[Any]:
    model = nn.Sequential(
        nn.utils.weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.utils.spectral_norm(nn.Linear(8, 2))
    )
    yield from _trained(way, model, (4, 6))


@program()
def orthogonal(way: Any) -> Iterator[Any]:
    model = nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 2))
    yield from _trained(way, model, (5, 4))


class _Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


@program()
def own_parametrization(way: Any) -> Iterator[Any]:
    model = nn.Linear(4, 4)
    parametrize.register_parametrization(model, "weight", _Symmetric())
    yield from _trained(way, model, (5, 4))


@program()
def parametrization_added_later(way: Any) -> Iterator[Any]:
    data, model = Data(), nn.Linear(4, 4)
    optimizer = sgd(model)
    step = way.loss(model, optimizer, _square)
    for i in range(4):
        if i == 2:
            parametrize.register_parametrization(model, "weight", _Symmetric())
        yield step(data.normal(5, 4))


@program()
def tied_weights(way: Any) -> Iterator[Any]:
    data = Data()
    model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9, bias=False))
    model[1].weight = model[0].weight
    step = way.loss(model, adam(model), lambda m, t: F.cross_entropy(m(t[:, :-1]).mT, t[:, 1:]))
    for _ in range(4):
        yield step(data.classes(9, 4, 5))


@program()
def untied_later(way: Any) -> Iterator[Any]:
    data = Data()
    model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9, bias=False))
    model[1].weight = model[0].weight
    optimizer = sgd(model)
    step = way.loss(model, optimizer, lambda m, t: F.cross_entropy(m(t[:, :-1]).mT, t[:, 1:]))
    for i in range(4):
        if i == 2:
            model[1].weight = nn.Parameter(model[0].weight.detach().clone())
            optimizer.add_param_group({"params": [model[1].weight]})
        yield step(data.classes(9, 4, 5))


@program()
def one_layer_many_times(way: Any) -> Iterator[Any]:
    layer = nn.Linear(6, 6)
    yield from _trained(way, nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer), (4, 6))


@program()
def views_of_one_flat_parameter(way: Any) -> Iterator[Any]:
    """As FSDP keeps them: weights are slices of one vector."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat = nn.Parameter(torch.randn(6 * 8 + 8 * 2) * 0.3)

        def forward(self, x: Tensor) -> Tensor:
            up, down = self.flat.split((48, 16))
            return torch.tanh(x @ up.view(6, 8)) @ down.view(8, 2)

    yield from _trained(way, Flat(), (4, 6), make=adam)


@program("any")
def parameters_that_share_memory(way: Any) -> Iterator[Any]:
    """Two parameters are views of one tensor: a write to one is one to the other."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    model[2].weight = nn.Parameter(model[0].weight.data.T)
    yield from _trained(way, model, (5, 4))


@program("any")
def buffer_that_is_a_view_of_a_parameter(way: Any) -> Iterator[Any]:
    model = nn.Linear(4, 4)
    model.register_buffer("first", model.weight.data[0])
    yield from _trained(way, model, (5, 4), lambda m, x: (m(x) + m.first).square().mean())


@program()
def buffers_written_in_forward(way: Any) -> Iterator[Any]:
    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 4)
            self.register_buffer("codes", torch.randn(5, 4))
            self.register_buffer("uses", torch.zeros(5), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            out = self.body(x)
            nearest = (out[:, None] - self.codes).square().sum(-1).argmin(1)
            chosen = F.one_hot(nearest, 5).float()
            if self.training:
                with torch.no_grad():
                    self.uses.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
                    self.codes = self.codes + 0.1 * (chosen.T @ out - self.codes)
            return out + (chosen @ self.codes - out).detach()

    model = Quantised()
    data = Data()
    step = way.loss(model, sgd(model), _square)
    for i in range(5):
        model.train(i != 3)
        yield step(data.normal(4, 6))


@program("any")
def lazy(way: Any) -> Iterator[Any]:
    """Shapes are those of the first batch; the optimizer is made before."""
    data = Data()
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))
    optimizer = sgd(model)
    step = way.loss(model, optimizer, lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for _ in range(4):
        yield step(data.labelled())


@program()
def complex_parameters(way: Any) -> Iterator[Any]:
    """A layer in the frequency domain."""

    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=8)

    yield from _trained(way, Spectral(), (4, 8), make=adam)


@program()
def real_views_of_complex_parameters(way: Any) -> Iterator[Any]:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter = nn.Parameter(torch.randn(5, 2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(self.filter), n=8)

    yield from _trained(way, Spectral(), (4, 8))


@program()
def scripted_by_compile(way: Any) -> Iterator[Any]:
    """`torch.compile` around the model, without a compiler behind it."""
    data, model = Data(), mlp()
    compiled = torch.compile(model, backend="eager")
    step = way.loss(model, sgd(model), lambda m, b: F.cross_entropy(compiled(b[0]), b[1]))
    for _ in range(4):
        yield step(data.labelled())


@program()
def a_compiled_model(way: Any) -> Iterator[Any]:
    data, model = Data(), torch.compile(mlp(), backend="eager")
    step = way.loss(model, sgd(model), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for _ in range(4):
        yield step(data.labelled())


@program("any")
def scripted(way: Any) -> Iterator[Any]:
    data, model = (
        Data(),
        torch.jit.script(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))),
    )
    step = way.loss(model, sgd(model), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for _ in range(4):
        yield step(data.labelled())


@program()
def unused_parameters(way: Any) -> Iterator[Any]:
    data, model = Data(), nn.ModuleDict({"used": mlp(), "unused": mlp()})
    step = way.loss(model, adam(model), lambda m, b: F.cross_entropy(m["used"](b[0]), b[1]))
    for _ in range(4):
        yield step(data.labelled())


@program()
def parameters_used_now_and_then(way: Any) -> Iterator[Any]:
    data, model = Data(), nn.ModuleDict({"a": mlp(), "b": mlp()})
    step = way.loss(model, adam(model), lambda m, b: F.cross_entropy(m[b["which"]](b["x"]), b["y"]))
    for i in range(5):
        x, y = data.labelled()
        yield step({"x": x, "y": y, "which": "b" if i % 3 == 1 else "a"})


@program(devices=4)
def mixture_of_experts(way: Any) -> Iterator[Any]:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up = nn.Linear(6, 4), nn.Parameter(torch.randn(4, 6, 8) * 0.3)
            self.down = nn.Parameter(torch.randn(4, 8, 6) * 0.3)

        def forward(self, x: Tensor) -> Tensor:
            weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
            hidden = torch.einsum("nd,nkdh->nkh", x, self.up[chosen]).relu()
            return torch.einsum("nkh,nkhd,nk->nd", hidden, self.down[chosen], weights)

    yield from _trained(way, Mixture(), (8, 6))


@program(devices=4, microbatches=2)
def residual_stack(way: Any) -> Iterator[Any]:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.inner = nn.LayerNorm(8), mlp(8, 16, 8, 0.1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(self.norm(x))

    yield from _trained(way, nn.Sequential(*(Block() for _ in range(4))), (8, 8), make=adam)


@program(devices=4, strategy="zero")
def stack_with_sharded_state(way: Any) -> Iterator[Any]:
    data, model = Data(), nn.Sequential(mlp(8, 16, 8), mlp(8, 16, 4))
    step = way.loss(model, adam(model), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for n in (8, 8, 4, 8):
        yield step((data.normal(n, 8), data.classes(4, n)))


@program(devices=4, strategy="megatron")
def stack_split_by_features(way: Any) -> Iterator[Any]:
    data, model = Data(), nn.Sequential(mlp(8, 16, 8), mlp(8, 16, 4))
    step = way.loss(model, adam(model), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for n in (8, 8, 4, 8):
        yield step((data.normal(n, 8), data.classes(4, n)))


@program(devices=1)
def on_one_device(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp(dropout=0.2)
    step = way.loss(model, adam(model), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for n in (8, 8, 5, 8):
        yield step(data.labelled(n))


@program("any")
def on_the_meta_device(way: Any) -> Iterator[Any]:
    """Without `init_weights` nothing can run."""
    data = Data()
    with torch.device("meta"):
        model = mlp()
    step = way.loss(model, sgd(model), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for _ in range(2):
        yield step(tuple(t.to("meta") for t in data.labelled())).device.type


@program()
def model_without_parameters_of_its_own(way: Any) -> Iterator[Any]:
    """A list of tensors that need gradients, trained beside an empty module."""
    data, model = Data(), nn.Module()
    model.weights = nn.ParameterList([torch.randn(6, 8) * 0.3, torch.randn(8, 3) * 0.3])
    step = way.loss(
        model,
        sgd(model),
        lambda m, b: F.cross_entropy((b[0] @ m.weights[0]).tanh() @ m.weights[1], b[1]),
    )
    for _ in range(4):
        yield step(data.labelled())


@program()
def positions_kept_in_a_cache(way: Any) -> Iterator[Any]:
    """A table that forward makes larger when a longer sequence comes, as rotary embeddings do."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.table = nn.Linear(6, 6), None

        def forward(self, x: Tensor) -> Tensor:
            if self.table is None or len(self.table) < x.shape[1]:
                angles = torch.arange(x.shape[1])[:, None] / 10 ** torch.arange(6)
                self.table = angles.cos()
            return self.body(x) * self.table[: x.shape[1]]

    data, model = Data(), Positions()
    step = way.loss(model, sgd(model), _square)
    for length in (4, 4, 6, 4, 6):
        yield step(data.normal(2, length, 6)), tuple(model.table.shape)


@program(devices=1)
def layers_that_change_places(way: Any) -> Iterator[Any]:
    """The third call finds them where the first did, the fourth where the second did."""
    data = Data()
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))
    step = way.loss(model, sgd(model), lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for _ in range(4):
        yield step(data.labelled())
        model[0], model[1] = model[1], model[0]


@program(devices=1)
def pruned_and_made_permanent(way: Any) -> Iterator[Any]:
    """A parameter goes by another name for a while, and comes back."""
    data, model = Data(), mlp()
    optimizer = adam(model, eps=1e-3)
    step = way.loss(model, optimizer, lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    yield step(data.labelled())
    prune.l1_unstructured(model[0], "weight", 0.3)
    yield step(data.labelled()), model[0].weight
    prune.remove(model[0], "weight")
    yield step(data.labelled()), model[0].weight


@program(devices=4, microbatches=2)
def bags_of_embeddings(way: Any) -> Iterator[Any]:
    """As in models of recommendation: each feature is a bag of words of its own."""

    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.summed = nn.EmbeddingBag(9, 4, mode="sum")
            self.mean = nn.EmbeddingBag(9, 4, padding_idx=0)
            self.largest = nn.EmbeddingBag(9, 4, mode="max")
            self.top = nn.Linear(12, 1)

        def forward(self, batch: Any) -> Tensor:
            words = batch["words"]
            weighted = self.summed(words, per_sample_weights=batch["weights"])
            parts = [weighted, self.mean(words), self.largest(words)]
            return self.top(torch.cat(parts, 1))

    data, model = Data(), Bags()
    step = way.loss(model, sgd(model, 0.1), _square)
    for _ in range(4):
        words = data.classes(9, 8, 3)
        words[0] = 0
        yield step({"words": words, "weights": data.uniform(8, 3)})
