"""What programs change by other ways than plain attributes, and what they keep and hand on."""

from __future__ import annotations

import copy
import functools
import os
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from torch_programs.driver import program
from torch_programs.pieces import Data, Tensor, mlp, sgd


def _loss(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@program()
def recurrent_state_in_a_tuple(way: Any) -> Iterator[Any]:
    """A dict gets another tuple at every call."""
    data, model = Data(), nn.LSTM(4, 4)
    optimizer = sgd(model)
    state = {"hidden": (torch.zeros(1, 3, 4), torch.ones(1, 3, 4))}

    def train(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        out, hidden = model(x, tuple(h.detach() for h in state["hidden"]))
        loss = out.square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        state["hidden"] = hidden
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(data.normal(2, 3, 4)), [h.detach().clone() for h in state["hidden"]]


@program()
def lists_replaced_by_equal_ones(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    kept = types.types.SimpleNamespace(losses=[], logs={"all": [], "n": 0})

    def train(batch: Any) -> Tensor:
        optimizer.zero_grad()
        loss = _loss(model, batch)
        loss.backward()
        optimizer.step()
        kept.losses.append(loss.detach())
        kept.logs["all"].append(loss.item())
        kept.logs["n"] += 1
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        kept.losses, kept.logs["all"], kept.logs["n"] = [], [], 0
        yield step(data.labelled()), list(kept.losses), copy.copy(kept.logs)


@program()
def data_swapped_and_set_back(way: Any) -> Iterator[Any]:
    """An average of the weights is evaluated in the step, in their place."""
    data, model = Data(), mlp()
    optimizer = sgd(model)
    average = {name: p.data.clone() for name, p in model.named_parameters()}

    def train(batch: Any) -> Any:
        optimizer.zero_grad()
        loss = _loss(model, batch)
        loss.backward()
        optimizer.step()
        backup = {}
        for name, p in model.named_parameters():
            average[name] = 0.9 * average[name] + 0.1 * p.data
            backup[name], p.data = p.data, average[name]
        with torch.no_grad():
            value = _loss(model, batch)
        for name, p in model.named_parameters():
            p.data = backup[name]
        return loss.item(), value.item()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(data.labelled()), {name: t.clone() for name, t in average.items()}


@program()
def data_of_a_perturbation_set(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def attacked(model: Any, batch: Any) -> Tensor:
        x, y = batch
        change = torch.zeros_like(x).requires_grad_()
        for _ in range(2):
            (slope,) = torch.autograd.grad(_loss(model, (x + change, y)), change)
            change.data = (change.data + 0.05 * slope.sign()).clamp(-0.08, 0.08)
        return _loss(model, (x + change.detach(), y))

    step = way.loss(model, sgd(model), attacked)
    for _ in range(4):
        yield step(data.labelled())


@program("typed")
def data_set_to_what_is_kept(way: Any) -> Iterator[Any]:
    """Parameters and a dict then share memory."""
    data, model = Data(), mlp()
    optimizer, kept = sgd(model), {}

    def train(batch: Any) -> float:
        optimizer.zero_grad()
        loss = _loss(model, batch)
        loss.backward()
        optimizer.step()
        kept["weight"] = model[0].weight.data * 0.99
        model[0].weight.data = kept["weight"]
        return loss.item()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(data.labelled()), kept["weight"].clone()


def _weighted(way: Any, weight: Any, change: Any) -> Iterator[Any]:
    """A loss that is weighted by something which changes between calls."""
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), lambda m, b: weight(m) * _loss(m, b))
    for number in range(4):
        change(model, number)
        yield step(data.labelled())


@program()
def environment_variable(way: Any) -> Iterator[Any]:
    def change(model: Any, number: int) -> None:
        os.environ["WEIGHT_OF_THE_LOSS"] = str(1 + number // 2)

    try:
        yield from _weighted(way, lambda m: float(os.environ["WEIGHT_OF_THE_LOSS"]), change)
    finally:
        os.environ.pop("WEIGHT_OF_THE_LOSS", None)


@program()
def module_in_a_closure(way: Any) -> Iterator[Any]:
    settings = types.ModuleType("settings")
    yield from _weighted(
        way, lambda m: settings.weight, lambda m, n: setattr(settings, "weight", 1.0 + n // 2)
    )


@program()
def dictionary_with_weak_keys(way: Any) -> Iterator[Any]:
    weights: Any = weakref.WeakKeyDictionary()
    yield from _weighted(
        way, lambda m: weights[m], lambda m, n: weights.__setitem__(m, 1.0 + n // 2)
    )


class _Gain:
    def __get__(self, owner: Any, kind: Any = None) -> float:
        return float(owner.__dict__.get("gained", 1.0))


class _Described(nn.Module):
    gain = _Gain()
    n_calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    @functools.cached_property
    def table(self) -> Tensor:
        return torch.linspace(0, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        type(self).n_calls += 1
        return self.layer(x) * self.gain + self.table


@program()
def descriptors_of_a_module(way: Any) -> Iterator[Any]:
    """One reads all attributes, one sets an attribute past `__setattr__`; and the class counts."""
    data, model = Data(), _Described()
    _Described.n_calls = 0
    step = way.loss(model, sgd(model), _loss)
    for number in range(4):
        if number == 2:
            model.__dict__["gained"] = 0.5
        yield step(data.labelled()), model.table.clone(), _Described.n_calls


@program()
def settings_in_a_partial(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer, settings = sgd(model), {"weight": 1.0}

    def train(settings: Any, batch: Any) -> float:
        optimizer.zero_grad()
        loss = settings["weight"] * _loss(model, batch)
        loss.backward()
        optimizer.step()
        return loss.item()

    step = way.step(functools.partial(train, settings), model, optimizer)
    for number in range(4):
        settings["weight"] = 1.0 + number // 2
        yield step(data.labelled())


@program("typed")
def trainer_that_is_a_generator(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def trainer() -> Any:
        weight, batch = 1.0, (yield)
        while True:
            optimizer.zero_grad()
            loss = weight * _loss(model, batch)
            loss.backward()
            optimizer.step()
            weight *= 1.5
            batch = yield loss.item()

    running = trainer()
    next(running)
    step = way.step(lambda batch: running.send(batch), model, optimizer)
    for _ in range(4):
        yield step(data.labelled())


@program("typed")
def copy_of_the_model_kept(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer, kept = sgd(model), {}

    def train(batch: Any) -> float:
        optimizer.zero_grad()
        loss = _loss(model, batch)
        loss.backward()
        optimizer.step()
        kept["model"] = copy.deepcopy(model)
        return loss.item()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(data.labelled()), copy.deepcopy(kept["model"].state_dict())


@program()
def itself_and_its_parameters_returned(way: Any) -> Iterator[Any]:
    """What is returned is the very object, or a view that follows later updates."""
    data, model = Data(), mlp()
    optimizer, seen = sgd(model), []

    class Train:
        def __call__(self, batch: Any) -> Any:
            optimizer.zero_grad()
            loss = _loss(model, batch)
            loss.backward()
            optimizer.step()
            return self, batch[0], model[0].weight, model[0].bias.detach()[:2]

    train = Train()
    step = way.step(train, model, optimizer)
    for _ in range(4):
        batch = data.labelled()
        seen.append(step(batch))
        itself, x, weight, _ = seen[-1]
        yield itself is train, x is batch[0], weight is model[0].weight
        yield [part.clone() for *_, part in seen]


@program()
def written_by_a_constant_mask(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    mask = (True, False, True, True, False, True, True, True)

    def loss(model: Any, batch: Any) -> Tensor:
        values = torch.zeros(8)
        values[torch.tensor(mask)] = batch[0][:6, 0]
        return _loss(model, batch) * (1 + values.square().mean())

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled())


@program()
def containers_made_anew(way: Any) -> Iterator[Any]:
    """Each call replaces what the call before wrote into; two names are of one list."""
    data, model = Data(), mlp()
    optimizer = sgd(model)
    state = types.SimpleNamespace(stages={}, log=[], same=[])
    kept: list[Any] = []

    def train(batch: Any) -> Tensor:
        if state.stages.get("stage") == "stepped":
            raise RuntimeError("called twice")
        optimizer.zero_grad()
        loss = _loss(model, batch)
        loss.backward()
        state.stages["stage"] = "stepped"
        optimizer.step()
        state.log.append("step")
        kept.append(state.log)
        state.stages = {}
        state.log = state.same = [["inner"]]
        return loss

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(data.labelled()), [list(map(str, log)) for log in kept], dict(state.stages)
        yield state.log is state.same, [a is b for a in kept for b in kept]
