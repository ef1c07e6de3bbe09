"""Losses, and what steps return."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from frontends.errors import UnsupportedStepError
from torch import nn
from torch.nn import functional as F  # noqa: N812

from torch_programs.driver import program
from torch_programs.pieces import Data, Tensor, adam, mlp, needed, sgd


def _returning(way: Any, make: Any, n: int = 4) -> Iterator[Any]:
    """A whole step, whose result is made of the loss and the outputs."""
    data, model = Data(), mlp()
    optimizer = adam(model)

    def train(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        return make(loss, out)

    step = way.step(train, model, optimizer)
    for _ in range(n):
        yield step(*data.labelled())


@program()
def nothing_returned(way: Any) -> Iterator[Any]:
    yield from _returning(way, lambda loss, out: None)


@program()
def nested_result(way: Any) -> Iterator[Any]:
    yield from _returning(
        way,
        lambda loss, out: {
            "loss": loss.detach(),
            "parts": [out.detach(), (loss.item(), None)],
            "name": "train",
            "n": 3,
        },
    )


@program()
def ordered_result(way: Any) -> Iterator[Any]:
    yield from _returning(way, lambda loss, out: OrderedDict(z=loss.detach(), a=out.argmax(1)))


class _Pair(NamedTuple):
    loss: Tensor
    out: Tensor


@program()
def named_tuple_result(way: Any) -> Iterator[Any]:
    yield from _returning(way, lambda loss, out: _Pair(loss.detach(), out.detach()))


@dataclass
class _Result:
    loss: Tensor
    accuracy: float = 0.0
    extra: Any = None


@program()
def data_class_result(way: Any) -> Iterator[Any]:
    yield from _returning(way, lambda loss, out: _Result(loss.detach(), extra=[out.detach()]))


@program()
def model_output_result(way: Any) -> Iterator[Any]:
    outputs = needed("transformers.modeling_outputs")
    yield from _returning(
        way,
        lambda loss, out: outputs.SequenceClassifierOutput(loss=loss.detach(), logits=out.detach()),
    )


@program("any")
def numbers_result(way: Any) -> Iterator[Any]:
    yield from _returning(way, lambda loss, out: (loss.item(), float(out.max()), out.tolist()))


@program("any")
def numpy_result(way: Any) -> Iterator[Any]:
    yield from _returning(way, lambda loss, out: out.detach().numpy())


@program("any")
def formatted_result(way: Any) -> Iterator[Any]:
    yield from _returning(way, lambda loss, out: f"loss {loss:.4f}")


@program()
def loss_with_its_graph(way: Any) -> Iterator[Any]:
    yield from _returning(way, lambda loss, out: loss)


@program()
def gradients_result(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        norms = {name: p.grad.norm() for name, p in model.named_parameters()}
        optimizer.step()
        return norms, [p.detach().clone() for p in model.parameters()]

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program("typed")
def loss_function_that_returns_nothing(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Any:
        F.cross_entropy(model(batch[0]), batch[1])

    step = way.loss(model, sgd(model), loss)
    try:
        yield step(data.labelled())
    except UnsupportedStepError:  # eager, too: `training_step` says it
        yield None


@program("typed")
def loss_function_that_returns_a_dictionary(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), lambda m, b: {"loss": F.cross_entropy(m(b[0]), b[1])})
    try:
        yield step(data.labelled())
    except UnsupportedStepError:  # eager, too: `training_step` says it
        yield None


@program("typed")
def loss_function_that_returns_a_vector(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(
        model, sgd(model), lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none")
    )
    try:
        yield step(data.labelled())
    except UnsupportedStepError:  # eager, too: `training_step` says it
        yield None


@program("any")
def step_that_raises(way: Any) -> Iterator[Any]:
    """The user's own check fails at the third call; nothing is changed by it."""
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        if x.shape[1] != 6:
            raise ValueError("six features are wanted")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for i in range(4):
        x, y = data.labelled()
        try:
            yield step(x[:, :5] if i == 2 else x, y)
        except ValueError:
            yield None


@program()
def several_tasks(way: Any) -> Iterator[Any]:
    data = Data()
    model = nn.ModuleDict({"body": mlp(6, 16, 8), "a": nn.Linear(8, 3), "b": nn.Linear(8, 1)})
    optimizer = adam(model)

    def train(batch: dict[str, Any]) -> dict[str, Any]:
        hidden = model["body"](batch["x"])
        losses = {
            "a": F.cross_entropy(model["a"](hidden), batch["y"]),
            "b": F.huber_loss(model["b"](hidden).squeeze(1), batch["z"]),
        }
        total = sum(batch["weights"][name] * loss for name, loss in losses.items())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        return {"total": total.detach(), **{n: v.item() for n, v in losses.items()}}

    step = way.step(train, model, optimizer)
    for i in range(5):
        x, y = data.labelled()
        yield step({"x": x, "y": y, "z": data.normal(8), "weights": {"a": 1.0, "b": 0.25 * i}})


@program()
def learned_weights_of_tasks(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    model.register_parameter("log_weights", nn.Parameter(torch.zeros(2)))

    def loss(model: Any, batch: Any) -> Tensor:
        out = model(batch[0])
        parts = torch.stack([F.cross_entropy(out, batch[1]), out.square().mean()])
        return ((-model.log_weights).exp() * parts + model.log_weights).sum()

    step = way.loss(model, adam(model), loss)
    for _ in range(4):
        yield step(data.labelled())


@program("any")
def connectionist(way: Any) -> Iterator[Any]:
    data, model = Data(), nn.Linear(6, 5)

    def loss(model: Any, batch: Any) -> Tensor:
        x, targets, lengths = batch
        out = model(x).log_softmax(-1).transpose(0, 1)
        sizes = torch.full((len(x),), x.shape[1], dtype=torch.long)
        return F.ctc_loss(out, targets, sizes, lengths)

    step = way.loss(model, sgd(model), loss)
    for i in range(4):
        lengths = torch.tensor([3, 2, 1 + i % 2, 3])
        yield step((data.normal(4, 8, 6), 1 + data.classes(4, 4, 3), lengths))


@program()
def triplets(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), lambda m, b: F.triplet_margin_loss(*map(m, b)))
    for _ in range(4):
        yield step([data.normal(6, 6) for _ in range(3)])


@program(devices=4)
def contrastive(way: Any) -> Iterator[Any]:
    """Every example of the batch is compared with every other."""
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        a, b = (F.normalize(model(x), dim=1) for x in batch)
        return F.cross_entropy(a @ b.T / 0.2, torch.arange(len(a)))

    step = way.loss(model, sgd(model), loss)
    for n in (8, 8, 6, 8):
        yield step((data.normal(n, 6), data.normal(n, 6)))


@program()
def cosine_and_kl(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        a, b = model(batch[0]), model(batch[1])
        near = F.cosine_embedding_loss(a, b, torch.ones(len(a)))
        return near + F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean")

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step((data.normal(6, 6), data.normal(6, 6)))


@program(microbatches=2)
def mean_over_what_is_not_masked(way: Any) -> Iterator[Any]:
    """Each half of the batch has another number of tokens that count."""
    data = Data()
    model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9))

    def loss(model: Any, batch: Any) -> Tensor:
        out = model(batch["tokens"]).flatten(0, 1)
        return F.cross_entropy(out, batch["labels"].flatten(), ignore_index=-100)

    step = way.loss(model, sgd(model), loss)
    for i in range(4):
        tokens = data.classes(9, 4, 5)
        labels = tokens.masked_fill(data.uniform(4, 5) < 0.2 * i, -100)
        yield step({"tokens": tokens, "labels": labels})


@program(microbatches=2)
def sum_over_examples(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(
        model, sgd(model, 0.01), lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="sum")
    )
    for _ in range(4):
        yield step(data.labelled())


@program("any", microbatches=2)
def loss_over_pairs_in_microbatches(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, x: Tensor) -> Tensor:
        out = F.normalize(model(x), dim=1)
        return (out @ out.T).logsumexp(1).mean()

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.normal(8, 6))


@program("any")
def weighted_by_the_batch(way: Any) -> Iterator[Any]:
    """Class weights that follow from the labels of the batch."""
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        counts = torch.bincount(batch[1], minlength=3).float()
        return F.cross_entropy(model(batch[0]), batch[1], (counts + 1).reciprocal())

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled())


@program(devices=4, stages=2, microbatches=2)
def metrics_that_mix_examples(way: Any) -> Iterator[Any]:
    data, model = Data(), nn.Sequential(*(mlp(8, 16, 8) for _ in range(2)))
    optimizer = sgd(model)

    def train(x: Tensor) -> Any:
        optimizer.zero_grad()
        of_each = (model(x) - 1).square().mean(1)
        of_each.mean().backward()
        optimizer.step()
        found = of_each.detach()
        if not torch.isfinite(found).all():
            raise FloatingPointError
        order = found.sort()
        return {
            "worst": found.max(),
            "which": order.indices[-2:],
            "median": found.median(),
            "spread": (found - found.mean()) / found.std(),
            "are_small": found < 1.0,
        }

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(data.normal(8, 8))
