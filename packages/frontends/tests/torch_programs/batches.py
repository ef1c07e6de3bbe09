"""Batches of every form, whose contents and shapes change between calls."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

from torch_programs.driver import program
from torch_programs.pieces import Data, Tensor, adam, mlp, needed, sgd


def _loss(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def _over_forms(way: Any, form: Any, loss: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, adam(model), loss)
    for _ in range(4):
        yield step(form(*data.labelled()))


@program()
def batch_encoding(way: Any) -> Iterator[Any]:
    transformers = needed("transformers")
    yield from _over_forms(way, lambda x, y: transformers.BatchEncoding({"x": x, "y": y}), _loss)


@program()
def user_dict(way: Any) -> Iterator[Any]:
    yield from _over_forms(way, lambda x, y: UserDict(x=x, y=y), _loss)


@program(devices=4, microbatches=2)
def user_dict_in_microbatches(way: Any) -> Iterator[Any]:
    yield from _over_forms(way, lambda x, y: UserDict(x=x, y=y), _loss)


class _Lazy(Mapping[str, Tensor]):
    """A mapping as data libraries write them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._columns = {"x": x, "y": y}

    def __getitem__(self, name: str) -> Tensor:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


@program()
def own_mapping(way: Any) -> Iterator[Any]:
    yield from _over_forms(way, _Lazy, _loss)


@dataclasses.dataclass
class _Batch:
    x: Tensor
    y: Tensor
    weight: float = 1.0


@program()
def data_class(way: Any) -> Iterator[Any]:
    yield from _over_forms(way, _Batch, lambda m, b: F.cross_entropy(m(b.x), b.y))


@program()
def data_class_with_a_number(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), lambda m, b: b.weight * F.cross_entropy(m(b.x), b.y))
    for i in range(5):
        yield step(_Batch(*data.labelled(), weight=0.5 * i))


@dataclasses.dataclass(frozen=True, slots=True)
class _Frozen:
    x: Tensor
    y: Tensor


@program()
def frozen_data_class_with_slots(way: Any) -> Iterator[Any]:
    yield from _over_forms(way, _Frozen, lambda m, b: F.cross_entropy(m(b.x), b.y))


class _Named(NamedTuple):
    x: Tensor
    y: Tensor


@program()
def named_tuple(way: Any) -> Iterator[Any]:
    yield from _over_forms(way, _Named, lambda m, b: F.cross_entropy(m(b.x), b.y))


_Pair = namedtuple("_Pair", ["x", "y"])


@program()
def old_named_tuple(way: Any) -> Iterator[Any]:
    yield from _over_forms(way, _Pair, lambda m, b: F.cross_entropy(m(b.x), b.y))


class _Plain:
    """An object with attributes, as attrs or torch_geometric have them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def to(self, device: str) -> _Plain:
        return _Plain(self.x.to(device), self.y.to(device))


@program()
def plain_object(way: Any) -> Iterator[Any]:
    yield from _over_forms(way, _Plain, lambda m, b: F.cross_entropy(m(b.x), b.y))


@program()
def simple_namespace(way: Any) -> Iterator[Any]:
    def form(x: Tensor, y: Tensor) -> Any:
        return SimpleNamespace(x=x, y=y)

    yield from _over_forms(way, form, lambda m, b: F.cross_entropy(m(b.x), b.y))


class _Slotted:
    __slots__ = ("x", "y")

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y


@program()
def slotted_object(way: Any) -> Iterator[Any]:
    yield from _over_forms(way, _Slotted, lambda m, b: F.cross_entropy(m(b.x), b.y))


@program()
def dict_with_an_object_inside(way: Any) -> Iterator[Any]:
    yield from _over_forms(
        way,
        lambda x, y: {"in": _Plain(x, y), "id": "a"},
        lambda m, b: F.cross_entropy(m(b["in"].x), b["in"].y),
    )


@program()
def ordered_dict(way: Any) -> Iterator[Any]:
    yield from _over_forms(way, lambda x, y: OrderedDict(x=x, y=y), _loss)


@program()
def keys_in_another_order(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, adam(model), _loss)
    for i in range(4):
        x, y = data.labelled()
        yield step({"x": x, "y": y} if i % 2 else {"y": y, "x": x})


@program()
def nested_lists_and_none(way: Any) -> Iterator[Any]:
    def form(x: Tensor, y: Tensor) -> Any:
        return [[x, None], (y, {"names": ["a", "b"]})]

    yield from _over_forms(way, form, lambda m, b: F.cross_entropy(m(b[0][0]), b[1][0]))


@program()
def none_that_becomes_a_tensor(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        each = F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")
        weight = batch["weight"]
        return each.mean() if weight is None else (each * weight).mean()

    step = way.loss(model, sgd(model), loss)
    for i in range(5):
        x, y = data.labelled()
        yield step({"x": x, "y": y, "weight": data.uniform(8) if i % 2 else None})


@program()
def a_number_that_grows(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        out = model(batch["x"])
        return F.cross_entropy(out, batch["y"]) + batch["beta"] * out.square().mean()

    step = way.loss(model, adam(model), loss)
    for i in range(5):
        x, y = data.labelled()
        yield step({"x": x, "y": y, "beta": 0.1 * i})


@program()
def an_integer_that_counts(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def train(x: Tensor, y: Tensor, epoch: int) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * (1 + epoch) / (2 + epoch**2)
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "epoch": epoch}

    optimizer = sgd(model)
    step = way.step(train, model, optimizer)
    for i in range(5):
        yield step(*data.labelled(), i)


@program()
def a_number_by_name(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def train(x: Tensor, y: Tensor, *, smoothing: float = 0.0) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=smoothing)
        loss.backward()
        optimizer.step()
        return loss.detach()

    optimizer = sgd(model)
    step = way.step(train, model, optimizer)
    for smoothing in (0.0, 0.1, 0.2, 0.1):
        yield step(*data.labelled(), smoothing=smoothing)


@program()
def a_bool(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        out = model(batch["x"])
        loss = F.cross_entropy(out, batch["y"])
        return loss + out.square().sum() if batch["use_reg"] else loss

    step = way.loss(model, sgd(model, 0.02), loss)
    for i in range(5):
        x, y = data.labelled()
        yield step({"x": x, "y": y, "use_reg": i > 1})


@program()
def a_string_that_says_which_task(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        out = model(batch["x"])
        if batch["task"] == "classify":
            return F.cross_entropy(out, batch["y"])
        return F.mse_loss(out, batch["x"][:, :3])

    step = way.loss(model, sgd(model), loss)
    for task in ("classify", "regress", "classify", "regress", "classify"):
        x, y = data.labelled()
        yield step({"x": x, "y": y, "task": task})


@program()
def strings_that_never_repeat(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), _loss)
    for i in range(6):
        x, y = data.labelled()
        yield step({"x": x, "y": y, "file": f"part-{i}.tar", "ids": [f"{i}-{k}" for k in range(8)]})


@program("any")
def numpy_arrays(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        x = torch.from_numpy(batch["x"]).float()
        return F.cross_entropy(model(x), torch.as_tensor(batch["y"]))

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        x, y = data.labelled()
        yield step({"x": x.numpy().astype(np.float64), "y": y.numpy()})


@program()
def numpy_numbers(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), lambda m, b: _loss(m, b) * b["weight"])
    for i in range(4):
        x, y = data.labelled()
        yield step({"x": x, "y": y, "weight": np.float32(0.5 + i)})


@program()
def python_lists_of_numbers(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def train(rows: list[list[float]], labels: list[int]) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.tensor(rows)), torch.tensor(labels))
        loss.backward()
        optimizer.step()
        return loss.detach()

    optimizer = sgd(model)
    step = way.step(train, model, optimizer)
    for _ in range(4):
        x, y = data.labelled()
        yield step(x.tolist(), y.tolist())


@program()
def tensors_of_no_dims(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), lambda m, b: _loss(m, b) * b["scale"])
    for i in range(4):
        x, y = data.labelled()
        yield step({"x": x, "y": y, "scale": torch.tensor(0.3 * (i + 1))})


@program()
def short_last_batch(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, adam(model), _loss)
    for n in (8, 8, 3, 8, 8, 3):
        x, y = data.labelled(n)
        yield step({"x": x, "y": y})


@program(devices=4, stages=2, microbatches=2, batch_axes={"tokens": 1, "next": 1, "of_token": None})
def examples_in_the_second_dim(way: Any) -> Iterator[Any]:
    """A language model as PyTorch's examples have it, tokens first; the last batch is short."""

    class Language(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.drop = torch.nn.Embedding(11, 8), torch.nn.Dropout(0.1)
            self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.1)
            self.head = torch.nn.Linear(8, 11)

        def forward(self, tokens: Tensor) -> Tensor:
            mask = torch.nn.Transformer.generate_square_subsequent_mask(len(tokens))
            return self.head(self.layer(self.drop(self.table(tokens)), mask))

    def loss(model: Any, batch: Any) -> Tensor:
        losses = F.cross_entropy(
            model(batch["tokens"]).flatten(0, 1), batch["next"].flatten(), reduction="none"
        )
        return (losses.unflatten(0, batch["next"].shape) * batch["of_token"][:, None]).mean()

    data, model = Data(), Language()
    step = way.loss(model, sgd(model), loss)
    for n in (4, 4, 2, 4):
        tokens = data.classes(11, 6, n)
        yield step({"tokens": tokens[:-1], "next": tokens[1:], "of_token": torch.arange(5.0)})


@program(devices=4, microbatches=4)
def short_last_batch_that_microbatches_do_not_divide(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, adam(model), _loss)
    for n in (8, 8, 5, 8):
        x, y = data.labelled(n)
        yield step({"x": x, "y": y})


@program()
def a_batch_of_one(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp(dropout=0.2)
    step = way.loss(model, adam(model), _loss)
    for n in (4, 1, 4, 1):
        x, y = data.labelled(n)
        yield step({"x": x, "y": y})


@program()
def other_lengths(way: Any) -> Iterator[Any]:
    data = Data()
    model = torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Linear(8, 11))
    step = way.loss(model, adam(model), lambda m, t: F.cross_entropy(m(t[:, :-1]).mT, t[:, 1:]))
    for length in (5, 9, 7, 5, 9):
        yield step(data.classes(11, 4, length))


@program()
def other_lengths_with_positions(way: Any) -> Iterator[Any]:
    data = Data()
    model = torch.nn.ModuleDict(
        {
            "t": torch.nn.Embedding(11, 8),
            "p": torch.nn.Embedding(16, 8),
            "o": torch.nn.Linear(8, 11),
        }
    )

    def loss(model: Any, tokens: Tensor) -> Tensor:
        n, length = tokens.shape
        positions = torch.arange(length).expand(n, length)
        mask = torch.ones(length, length).tril() == 0
        hidden = model["t"](tokens) + model["p"](positions)
        scores = (hidden @ hidden.mT).masked_fill(mask, -1e9).softmax(-1)
        return F.cross_entropy(model["o"](scores @ hidden).flatten(0, 1), tokens.flatten())

    step = way.loss(model, sgd(model), loss)
    for length in (6, 4, 6, 8):
        yield step(data.classes(11, 4, length))


@program()
def another_dtype(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), lambda m, b: F.cross_entropy(m(b[0].float()), b[1]))
    for dtype in (torch.float32, torch.float64, torch.float32, torch.int32):
        x, y = data.labelled()
        yield step(((x * 3).to(dtype), y))


@program("any")
def an_empty_batch(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), lambda m, b: m(b).square().sum())
    for n in (4, 0, 4):
        yield step(data.normal(n, 6))


@program()
def the_same_tensor_twice(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp(6, 16, 6)
    step = way.loss(model, sgd(model), lambda m, b: F.mse_loss(m(b["in"]), b["out"]))
    for i in range(4):
        x = data.normal(8, 6)
        yield step({"in": x, "out": x if i != 2 else x.clone()})


@program()
def views_of_one_tensor(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp(6, 16, 6)
    step = way.loss(model, sgd(model), lambda m, b: F.mse_loss(m(b[0]), b[1]))
    for _ in range(4):
        rows = data.normal(16, 6)
        yield step((rows[::2], rows[1::2]))


@program("any")
def a_batch_written_in_the_step(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def train(batch: dict[str, Tensor]) -> Tensor:
        batch["x"].mul_(0.5)
        batch["seen"] = torch.ones(())
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    optimizer = sgd(model)
    step = way.step(train, model, optimizer)
    for _ in range(4):
        x, y = data.labelled()
        batch = {"x": x, "y": y}
        yield step(batch), batch


@program()
def labels_popped_from_the_batch(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        labels = batch.pop("y")
        return F.cross_entropy(model(**batch), labels)

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        x, y = data.labelled()
        batch = {"input": x, "y": y}
        yield step(batch), sorted(batch)


@program()
def a_batch_that_needs_gradients(way: Any) -> Iterator[Any]:
    """An adversarial example, of which the step reads the gradient."""
    data, model = Data(), mlp()

    def train(x: Tensor, y: Tensor) -> Any:
        x = x.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), y), x)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.detach() + 0.1 * gradient.sign()), y)
        loss.backward()
        optimizer.step()
        return loss.detach(), gradient

    optimizer = sgd(model)
    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program("any")
def a_generator_of_batches(way: Any) -> Iterator[Any]:
    """The step takes its batch from an iterator itself."""
    data, model = Data(), mlp()
    batches = iter([data.labelled() for _ in range(6)])

    def train(scale: float) -> Tensor:
        x, y = next(batches)
        optimizer.zero_grad()
        loss = scale * F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    optimizer = sgd(model)
    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(1.0)


@program()
def packed_sequences(way: Any) -> Iterator[Any]:
    data, model = Data(), torch.nn.GRU(6, 8, batch_first=True)

    def loss(model: Any, batch: Any) -> Tensor:
        return model(batch)[0].data.square().mean()

    step = way.loss(model, sgd(model), loss)
    for lengths in ([5, 3, 2], [5, 4, 1], [5, 3, 2]):
        rows = [data.normal(n, 6) for n in lengths]
        yield step(torch.nn.utils.rnn.pack_sequence(rows))


@program()
def sequences_of_several_lengths(way: Any) -> Iterator[Any]:
    """Packed in the step, in an order of their own, and padded again behind the layer."""
    data = Data()
    model = torch.nn.LSTM(6, 8, num_layers=2, bidirectional=True)

    def loss(model: Any, batch: Any) -> Tensor:
        pack, pad = torch.nn.utils.rnn.pack_padded_sequence, torch.nn.utils.rnn.pad_packed_sequence
        packed = pack(batch["x"], batch["lengths"], enforce_sorted=False)
        rows, lengths = pad(model(packed)[0], total_length=6, padding_value=0.5)
        return (rows.square().sum((0, 2)) / lengths).mean()

    step = way.loss(model, sgd(model), loss)
    for lengths in ([5, 3, 2], [2, 5, 4], [5, 3, 2]):
        yield step({"x": data.normal(5, 3, 6), "lengths": torch.tensor(lengths)})


@program()
def parts_at_places_in_a_tensor(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        x, places = batch
        parts = torch.tensor_split(model(x), places)
        halves = model(x).tensor_split(tensor_indices_or_sections=places[0])
        total = sum((i + 1) * part.square().mean() for i, part in enumerate(parts))
        return total + halves[0].mean()

    step = way.loss(model, sgd(model), loss)
    for places in ([2, 5], [3, 4], [2, 5]):
        yield step((data.labelled()[0], torch.tensor(places)))


@program()
def default_arguments_that_are_left_out(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def train(x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, weight=weight)
        loss.backward()
        optimizer.step()
        return loss.detach()

    optimizer = sgd(model)
    step = way.step(train, model, optimizer)
    for i in range(4):
        x, y = data.labelled()
        yield step(x, y, data.uniform(3)) if i % 2 else step(x, y=y)


@program(devices=1)
def one_tensor_in_several_places(way: Any) -> Iterator[Any]:
    """At some calls two parts of the batch are one tensor, or one that the step reads besides."""
    data, model = Data(), mlp()
    optimizer = sgd(model)
    memory = {"last": data.normal(8, 6)}

    def train(x: Tensor, other: Tensor, y: Tensor) -> Tensor:
        away = (model(x) - model(memory["last"])).square().mean()
        loss = F.cross_entropy(model(x + other), y) + 0.1 * away
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for number in range(5):
        x, y = data.labelled()
        other = data.normal(8, 6)
        if number == 0:
            other = x
        elif number == 2:
            x = memory["last"]
        yield step(x, other, y)
