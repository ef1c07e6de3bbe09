"""Model and optimizer read, written, saved and loaded by the user between calls."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.utils.prune
from torch import nn
from torch.nn import functional as F  # noqa: N812

from torch_programs.driver import program
from torch_programs.pieces import Data, Tensor, adam, mlp, sgd


def _loss(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _begun(way: Any, make: Any = sgd, dropout: float = 0.0) -> Any:
    data, model = Data(), mlp(dropout=dropout)
    optimizer = make(model)
    return data, model, optimizer, way.loss(model, optimizer, _loss)


@program()
def evaluated_after_each_call(way: Any) -> Iterator[Any]:
    data, model, _, step = _begun(way, dropout=0.2)
    x, y = data.labelled(5)
    for _ in range(4):
        loss = step(data.labelled())
        model.eval()
        with torch.no_grad():
            out = model(x)
        model.train()
        yield loss, out, (out.argmax(1) == y).float().mean()


@program()
def evaluated_once_at_the_end(way: Any) -> Iterator[Any]:
    """Nothing is read before: what is read last has to be trained all the same."""
    data, model, _, step = _begun(way)
    for _ in range(4):
        step(data.labelled())
    with torch.inference_mode():
        out = model(data.normal(5, 6))
    yield out.clone()


@program()
def submodule_called(way: Any) -> Iterator[Any]:
    data, model, _, step = _begun(way)
    for _ in range(3):
        step(data.labelled())
        with torch.no_grad():
            yield model[0](data.normal(2, 6))


@program()
def functional_use_of_a_weight(way: Any) -> Iterator[Any]:
    data, model, _, step = _begun(way)
    for _ in range(3):
        step(data.labelled())
        yield F.linear(torch.ones(1, 6), model[0].weight.detach())


@program()
def norm_of_a_parameter_kept_from_before(way: Any) -> Iterator[Any]:
    """References taken before the first step, read without any module."""
    data, model, _, step = _begun(way)
    kept = list(model.parameters())
    for _ in range(4):
        step(data.labelled())
        yield (
            [float(p.detach().norm()) for p in kept],
            [p is q for p, q in zip(kept, model.parameters(), strict=True)],
        )


@program()
def first_reading_by_a_kept_parameter(way: Any) -> Iterator[Any]:
    data, model, _, step = _begun(way)
    kept = [p.data for p in model.parameters()]
    for _ in range(4):
        step(data.labelled())
    yield [p.clone() for p in kept]


@program()
def saved_with_torch_save(way: Any) -> Iterator[Any]:
    data, model, optimizer, step = _begun(way, adam)
    for _ in range(3):
        step(data.labelled())
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        yield torch.load(file)["model"]


@program()
def saved_as_a_whole(way: Any) -> Iterator[Any]:
    data, model, _, step = _begun(way, adam)
    for _ in range(3):
        step(data.labelled())
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        yield torch.load(file, weights_only=False).state_dict()


@program()
def copied_deeply(way: Any) -> Iterator[Any]:
    data, model, _optimizer, step = _begun(way, adam)
    for _ in range(3):
        step(data.labelled())
        other = copy.deepcopy(model)
        yield other(torch.ones(1, 6)).detach(), other.state_dict()


@program()
def best_weights_restored(way: Any) -> Iterator[Any]:
    """Early stopping: back to the weights of the second step."""
    data, model, _, step = _begun(way)
    for i in range(5):
        loss = step(data.labelled())
        if i == 1:
            best = copy.deepcopy(model.state_dict())
        if i == 3:
            model.load_state_dict(best)
        yield loss


@program()
def loaded_before_the_first_call(way: Any) -> Iterator[Any]:
    data, model, _, step = _begun(way)
    model.load_state_dict({k: 0.5 * v for k, v in model.state_dict().items()})
    for _ in range(3):
        yield step(data.labelled())


@program()
def loaded_after_the_first_call(way: Any) -> Iterator[Any]:
    data, model, _, step = _begun(way, adam)
    first = copy.deepcopy(model.state_dict())
    for i in range(4):
        yield step(data.labelled())
        if i % 2:
            model.load_state_dict(first)


@program()
def optimizer_round_trip(way: Any) -> Iterator[Any]:
    data, model, optimizer, step = _begun(way, adam)
    for i in range(5):
        yield step(data.labelled())
        if i == 1:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if i == 3:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])


@program()
def optimizer_loaded_from_another_run(way: Any) -> Iterator[Any]:
    data = Data()
    earlier = mlp()
    first = adam(earlier)
    for _ in range(3):
        first.zero_grad()
        _loss(earlier, data.labelled()).backward()
        first.step()
    model = mlp()
    optimizer = adam(model, lr=0.5)
    model.load_state_dict(earlier.state_dict())
    optimizer.load_state_dict(first.state_dict())
    step = way.loss(model, optimizer, _loss)
    for _ in range(4):
        yield step(data.labelled())


@program()
def optimizer_state_cleared(way: Any) -> Iterator[Any]:
    data, _model, optimizer, step = _begun(way, lambda m: sgd(m, momentum=0.9))
    for i in range(5):
        yield step(data.labelled())
        if i == 2:
            optimizer.state.clear()


@program()
def new_optimizer_of_the_same_kind(way: Any) -> Iterator[Any]:
    """The user makes another step for another optimizer of the same model."""
    data, model = Data(), mlp()
    optimizer = adam(model)
    step = way.loss(model, optimizer, _loss)
    for _ in range(2):
        yield step(data.labelled())
    other = sgd(model)
    second = way.loss(model, other, _loss)
    for _ in range(2):
        yield second(data.labelled())
    yield step(data.labelled())


@program()
def momentum_written_by_hand(way: Any) -> Iterator[Any]:
    data, _model, optimizer, step = _begun(way, lambda m: sgd(m, momentum=0.9))
    for i in range(5):
        yield step(data.labelled())
        if i == 2:
            for state in optimizer.state.values():
                state["momentum_buffer"].zero_()


@program()
def weights_scaled_through_data(way: Any) -> Iterator[Any]:
    data, model, _, step = _begun(way)
    for _ in range(4):
        yield step(data.labelled())
        for p in model.parameters():
            p.data.mul_(0.9)


@program()
def weights_clamped_without_grad(way: Any) -> Iterator[Any]:
    """As a Wasserstein critic is."""
    data, model, _, step = _begun(way)
    for _ in range(4):
        yield step(data.labelled())
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.2, 0.2)


@program()
def weights_copied_without_grad(way: Any) -> Iterator[Any]:
    data, model, _, step = _begun(way)
    for i in range(4):
        yield step(data.labelled())
        if i == 1:
            with torch.no_grad():
                model[3].weight.copy_(torch.ones(3, 16) * 0.1)


@program()
def data_assigned(way: Any) -> Iterator[Any]:
    data, model, _, step = _begun(way)
    for i in range(4):
        yield step(data.labelled())
        if i == 1:
            model[3].weight.data = torch.full((3, 16), 0.1)


@program()
def parameter_assigned(way: Any) -> Iterator[Any]:
    data, model, optimizer, step = _begun(way)
    for i in range(4):
        yield step(data.labelled())
        if i == 1:
            model[3].weight = nn.Parameter(torch.full((3, 16), 0.1))
            optimizer.param_groups[0]["params"] = list(model.parameters())


@program()
def row_of_an_embedding_written(way: Any) -> Iterator[Any]:
    data = Data()
    model = nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 3))
    step = way.loss(model, sgd(model), _loss)
    for i in range(4):
        yield step((data.classes(7, 5), data.classes(3, 5)))
        model[0].weight.data[i] = 0.5


@program()
def initialised_again(way: Any) -> Iterator[Any]:
    data, model, _, step = _begun(way)
    for i in range(4):
        yield step(data.labelled())
        if i == 1:
            nn.init.orthogonal_(model[0].weight)
            model[3].reset_parameters()


@program()
def pruned_by_a_mask(way: Any) -> Iterator[Any]:
    data, model, _, step = _begun(way)
    for i in range(4):
        yield step(data.labelled())
        if i == 1:
            nn.utils.prune.l1_unstructured(model[0], "weight", 0.5)


@program()
def vector_of_all_parameters(way: Any) -> Iterator[Any]:
    """Stochastic weight averaging by hand: a vector is read, and one is written."""
    data, model, _, step = _begun(way)
    mean = nn.utils.parameters_to_vector(model.parameters()).detach()
    for i in range(5):
        yield step(data.labelled()), mean
        now = nn.utils.parameters_to_vector(model.parameters()).detach()
        mean = mean + (now - mean) / (i + 2)
        if i == 3:
            nn.utils.vector_to_parameters(mean, model.parameters())


@program()
def buffer_written(way: Any) -> Iterator[Any]:
    data = Data()
    model = nn.Sequential(nn.BatchNorm1d(6), mlp())
    step = way.loss(model, sgd(model), _loss)
    for i in range(4):
        yield step(data.labelled()), model[0].running_mean, int(model[0].num_batches_tracked)
        if i == 1:
            model[0].reset_running_stats()


@program()
def buffer_replaced(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    model.register_buffer("weight", torch.ones(3), persistent=False)
    step = way.loss(model, sgd(model), lambda m, b: F.cross_entropy(m(b[0]), b[1], m.weight))
    for i in range(4):
        model.weight = torch.rand(3) + i
        yield step(data.labelled())


@program()
def double_from_the_third_call(way: Any) -> Iterator[Any]:
    data, model, _, step = _begun(way)
    for i in range(4):
        if i == 2:
            model.double()
        x, y = data.labelled()
        yield step((x.to(model[0].weight.dtype), y))


@program(rtol=3e-2)
def bfloat16_before_the_first_call(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp().to(torch.bfloat16)
    step = way.loss(
        model, sgd(model), lambda m, b: F.cross_entropy(m(b[0].bfloat16()).float(), b[1])
    )
    for _ in range(4):
        yield step(data.labelled())


@program()
def double_before_the_first_call(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp().double()
    step = way.loss(model, adam(model), lambda m, b: _loss(m, (b[0].double(), b[1])))
    for _ in range(4):
        yield step(data.labelled())


@program("any")
def validated_by_a_loss_with_gradients(way: Any) -> Iterator[Any]:
    """Gradients of the model computed eagerly between calls, and not used."""
    data, model, _optimizer, step = _begun(way)
    for _ in range(4):
        loss = step(data.labelled())
        other = _loss(model, data.labelled())
        other.backward()
        yield loss, other.detach(), [p.grad for p in model.parameters()]


@program()
def eager_updates_between_calls(way: Any) -> Iterator[Any]:
    """Every second batch is trained by the plain step."""
    data, model, optimizer, step = _begun(way, adam)
    for i in range(6):
        batch = data.labelled()
        if i % 2:
            optimizer.zero_grad()
            loss = _loss(model, batch)
            loss.backward()
            optimizer.step()
            yield loss.detach()
        else:
            yield step(batch)


@program()
def two_steps_of_one_model(way: Any) -> Iterator[Any]:
    """A supervised and an unsupervised step of the same model, by turns."""
    data, model = Data(), mlp(6, 16, 6)
    optimizer = adam(model)
    supervised = way.loss(model, optimizer, lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    other = way.loss(model, optimizer, lambda m, b: F.mse_loss(m(b), b))
    for i in range(6):
        yield other(data.normal(8, 6)) if i % 2 else supervised(data.labelled())


@program()
def optimizer_state_read(way: Any) -> Iterator[Any]:
    data, model, optimizer, step = _begun(way, adam)
    for _ in range(3):
        step(data.labelled())
        state = optimizer.state[model[0].weight]
        yield state["exp_avg"].norm(), float(state["step"])


@program()
def gradients_kept_over_an_evaluation(way: Any) -> Iterator[Any]:
    data, model, optimizer, _ = _begun(way)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = _loss(model, (x, y))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())
        _loss(model, data.labelled()).backward()  # left there: it is part of the next update
