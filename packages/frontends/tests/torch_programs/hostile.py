"""What programs change by other ways than plain attributes, and what they keep and hand on."""

from __future__ import annotations

import array
import collections
import contextvars
import copy
import functools
import gc
import math
import os
import queue
import threading
import types
import weakref
from collections.abc import Callable, Iterator
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
    kept = types.SimpleNamespace(losses=[], logs={"all": [], "n": 0})

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


def _scaled(way: Any, factor: Any, before: Any, after: Any = lambda: None) -> Iterator[Any]:
    """Four calls of a loss times a factor, and what is done before each of them."""
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), lambda model, batch: _loss(model, batch) * factor())
    try:
        for i in range(4):
            before(i)
            yield step(data.labelled())
    finally:
        after()


@program()
def functions_of_torch_replaced(way: Any) -> Iterator[Any]:
    """By the user's code and by a layer of torch they are found under their names."""
    data, model = Data(), nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 3))
    before = F.gelu, torch.tanh, nn.GELU.forward

    def loss(model: Any, batch: Any) -> Tensor:
        return _loss(model, (torch.tanh(batch[0]), batch[1]))

    step = way.loss(model, sgd(model), loss)
    try:
        for i in range(5):
            if i == 1:
                F.gelu = lambda x, approximate="none": x.relu()
            if i == 2:
                torch.tanh = torch.sigmoid
            if i == 3:
                nn.GELU.forward = lambda self, x: x.square()
            yield step(data.labelled())
    finally:
        F.gelu, torch.tanh, nn.GELU.forward = before


@program()
def methods_of_tensors_replaced(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    before = torch.Tensor.relu
    step = way.loss(model, sgd(model), lambda model, batch: model(batch[0]).relu().mean())
    try:
        for i in range(4):
            if i == 2:
                torch.Tensor.relu = torch.Tensor.tanh
            yield step(data.labelled())
    finally:
        torch.Tensor.relu = before


@program()
def attributes_of_libraries(way: Any) -> Iterator[Any]:
    yield from _scaled(
        way,
        lambda: math.pi * getattr(torch, "a_scale"),  # noqa: B009
        lambda i: (setattr(torch, "a_scale", 1.0 + i), setattr(math, "pi", 3.0 if i > 1 else _PI)),
        lambda: (delattr(torch, "a_scale"), setattr(math, "pi", _PI)),
    )


@program()
def settings_of_torch(way: Any) -> Iterator[Any]:
    def before(i: int) -> None:
        torch.backends.mkldnn.enabled = i != 2
        torch.backends.cudnn.benchmark = i == 3

    def after() -> None:
        torch.backends.mkldnn.enabled, torch.backends.cudnn.benchmark = True, False

    def factor() -> float:
        return 1.0 + 2 * torch.backends.mkldnn.enabled + torch.backends.cudnn.benchmark

    yield from _scaled(way, factor, before, after)


@program("typed")
def asserted_by_torch(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        out = model(batch[0])
        torch._assert_async(out.sum() < batch[2].sum(), "too large")
        return F.cross_entropy(out, batch[1])

    step = way.loss(model, sgd(model), loss)
    for i in range(4):
        x, y = data.labelled()
        try:
            yield step((x, y, torch.full((8,), -100.0 if i == 2 else 100.0)))
        except RuntimeError:
            yield "raised"


@program()
def attributes_of_functions_and_classes(way: Any) -> Iterator[Any]:
    class Counts:
        n = 0.0

    counts = Counts()

    def factor() -> float:
        factor.n += 1.0
        type(counts).n += 1.0
        return factor.n + counts.n + globals()["_a_number"]

    def before(i: int) -> None:
        globals()["_a_number"] = float(i)

    factor.n = 0.0
    yield from _scaled(way, factor, before)
    yield factor.n, Counts.n


_PI = math.pi
_a_number = 0.0


@program()
def variables_of_contexts_and_threads(way: Any) -> Iterator[Any]:
    context, local, event = contextvars.ContextVar("context"), threading.local(), threading.Event()

    def before(i: int) -> None:
        context.set(1.0 + i)
        local.scale = 2.0 - i
        if i == 3:
            event.set()

    yield from _scaled(way, lambda: context.get() + local.scale * (1 + event.is_set()), before)


@program()
def bytes_views_and_orders(way: Any) -> Iterator[Any]:
    named, few, packed = {"a": 1.0, "b": 2.0}, bytearray(b"\x01"), array.array("d", [1.0])
    values, shown = named.values(), types.MappingProxyType(named)

    def before(i: int) -> None:
        few[0], packed[0] = i, i * 0.5
        if i > 1:
            named["a"] = named.pop("a") + i

    def factor() -> float:
        return next(iter(named)).count("a") + few[0] + packed[0] + sum(values) + shown["a"]

    yield from _scaled(way, factor, before)


@program()
def counter_queue_and_order_changed_by_the_step(way: Any) -> Iterator[Any]:
    counter, order = collections.Counter(), collections.OrderedDict(a=1.0, b=2.0, c=3.0)
    waiting: Any = queue.Queue()
    for i in range(9):
        waiting.put(float(i))

    def factor() -> float:
        counter["calls"] += 1
        order.move_to_end(next(iter(order)))
        return waiting.get() + counter["calls"]

    for found in _scaled(way, factor, lambda i: None):
        yield found, dict(counter), list(order), waiting.qsize()


@program()
def what_a_weak_reference_refers_to_is_gone(way: Any) -> Iterator[Any]:
    class Scale:
        value = 3.0

    kept = [Scale()]
    reference = weakref.ref(kept[0])

    def before(i: int) -> None:
        if i == 2:
            kept.clear()
            gc.collect()

    def factor() -> float:
        scale = reference()
        return 1.0 if scale is None else scale.value

    yield from _scaled(way, factor, before)


@program()
def states_of_generators_looked_at(way: Any) -> Iterator[Any]:
    yield from _scaled(way, lambda: 1.0 + torch.initial_seed(), torch.manual_seed)


@program()
def two_functions_of_one_place(way: Any) -> Iterator[Any]:
    """Each with a counter of its own, which only its function knows; hidden from the collector."""
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def counting() -> tuple[Callable[[Tensor, Tensor], Tensor], Callable[[], int]]:
        calls = 0

        def train(x: Tensor, y: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y) * calls
            loss.backward()
            optimizer.step()
            return loss.detach()

        return train, lambda: calls

    (first, n_first), (second, n_second) = counting(), counting()
    gc.freeze()
    try:
        steps = [way.step(function, model, optimizer) for function in (first, second)]
        for i in (0, 1, 1):
            yield steps[i](*data.labelled()), n_first(), n_second()
    finally:
        gc.unfreeze()


@program()
def large_containers(way: Any) -> Iterator[Any]:
    """A replay buffer and a table, too large for a copy of each of their items."""
    data, model = Data(), mlp()
    optimizer = sgd(model)
    buffer: list[Any] = [0.0] * 150_000
    table = dict.fromkeys(range(150_000), 0.5)
    recent: collections.deque[Any] = collections.deque([0.0] * 150_000, maxlen=150_000)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * table[7] + sum(buffer[-2:]) / 100
        loss.backward()
        optimizer.step()
        buffer.append(loss.detach())
        recent.append(loss.detach())
        table[len(buffer)] = loss.detach()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for i in range(4):
        if i == 2:
            table[7] = 0.75
        loss = step(*data.labelled())
        yield loss, buffer[-5:], len(buffer), len(table), table[150_001 + i], [*recent][-5:]


@program()
def objects_made_again_after_a_reset(way: Any) -> Iterator[Any]:
    """Each with the attributes that it begins with, and none the one of before."""

    class Empty:
        pass

    class Counts:
        def __init__(self) -> None:
            self.n = 0
            self.seen: list[int] = []

        def __reduce_ex__(self, protocol: Any) -> Any:
            raise TypeError("it cannot be copied")

    class Slots:
        __slots__ = ("n", "seen")

        def __init__(self) -> None:
            self.n = 0
            self.seen: list[int] = []

    class SlotsAndMore(Empty):
        __slots__ = ("last", "n")

        def __init__(self) -> None:
            self.n, self.last = 0, None
            self.seen: list[int] = []

    class Wrapper:
        def __init__(self, wrapped: Any) -> None:
            self.factor = getattr(wrapped, "factor", 2.0)

    data, model = Data(), mlp()
    optimizer = sgd(model)
    holder, settings, kept = types.SimpleNamespace(meter=None), Empty(), SlotsAndMore()
    kinds: Any = (Counts, Slots, SlotsAndMore)
    meters = []

    def train(x: Tensor, y: Tensor) -> Tensor:
        if holder.meter is None:
            holder.meter = holder.kind()
        holder.meter.n += 1
        holder.meter.seen.append(holder.meter.n)
        holder.factor = Wrapper(settings)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * holder.meter.n * holder.factor.factor
        loss.backward()
        optimizer.step()
        kept.last = loss.detach()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for i in range(8):
        if i % 2 == 0:
            holder.meter, holder.kind = None, kinds[i // 2 % 3]
        if i == 5:
            settings.factor = 0.5
        loss = step(*data.labelled())
        meters.append(holder.meter)
        counted = [(meter.n, meter.seen) for meter in meters]
        yield loss, counted, len(set(map(id, meters))), holder.factor.factor, kept.last
