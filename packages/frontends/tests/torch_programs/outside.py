"""Tensors and containers outside of model and optimizer that a step writes or fills."""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from torch_programs.driver import program
from torch_programs.pieces import Data, Tensor, adam, mlp, sgd


def _update(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@program()
def ema_shadow(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = _update(model, optimizer, x, y)
        with torch.no_grad():
            for name, p in model.named_parameters():
                shadow[name].mul_(0.9).add_(p, alpha=0.1)
        return loss

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), shadow


@program()
def ema_shadow_of_new_tensors(way: Any) -> Iterator[Any]:
    """The dictionary's entries are replaced, not written."""
    data, model = Data(), mlp()
    optimizer = adam(model)
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = _update(model, optimizer, x, y)
        for name, p in model.named_parameters():
            shadow[name] = 0.9 * shadow[name] + 0.1 * p.detach()
        return loss

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), shadow


@program()
def averaged_model_in_the_step(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    average = torch.optim.swa_utils.AveragedModel(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = _update(model, optimizer, x, y)
        average.update_parameters(model)
        return loss

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), average.state_dict()


@program()
def averaged_model_between_calls(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    step = way.loss(model, optimizer, lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    for _ in range(4):
        loss = step(data.labelled())
        average.update_parameters(model)
        yield loss, average.state_dict(), average(data.normal(4, 6))


@program()
def mean_teacher(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(x)
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y) + F.mse_loss(out, wanted)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.2)
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(5):
        yield step(*data.labelled()), teacher.state_dict()


@program()
def momentum_contrast(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp(6, 16, 4)
    keys = copy.deepcopy(model).requires_grad_(False)
    queue, place = F.normalize(data.normal(4, 16), dim=0), torch.zeros((), dtype=torch.long)
    optimizer = sgd(model)

    def train(a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            for mine, theirs in zip(keys.parameters(), model.parameters(), strict=True):
                mine.data = mine.data * 0.9 + theirs.data * 0.1
            k = F.normalize(keys(b), dim=1)
        q = F.normalize(model(a), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.clone()], dim=1)
        loss = F.cross_entropy(logits / 0.2, torch.zeros(len(a), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            columns = (place + torch.arange(len(a))) % queue.shape[1]
            queue[:, columns] = k.T
            place.add_(len(a)).remainder_(queue.shape[1])
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(data.normal(4, 6), data.normal(4, 6)), queue, place, keys.state_dict()


@program()
def target_network(way: Any) -> Iterator[Any]:
    """Deep Q learning: the target is copied every second step, outside."""
    data, model = Data(), mlp()
    target = copy.deepcopy(model)
    optimizer = adam(model)

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        state, action, reward, after = batch
        q = model(state).gather(1, action[:, None]).squeeze(1)
        with torch.no_grad():
            wanted = reward + 0.9 * target(after).max(1).values
        return F.smooth_l1_loss(q, wanted)

    step = way.loss(model, optimizer, loss_fn)
    for i in range(5):
        x, y = data.labelled()
        yield step((x, y, data.normal(8), data.normal(8, 6)))
        if i % 2:
            target.load_state_dict(model.state_dict())


@program()
def target_network_polyak(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    target = copy.deepcopy(model)
    optimizer = adam(model)

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(model(batch[0]).amax(1), 0.9 * target(batch[1]).amax(1).detach())

    step = way.loss(model, optimizer, loss_fn)
    for _ in range(5):
        yield step((data.normal(8, 6), data.normal(8, 6)))
        for mine, theirs in zip(target.parameters(), model.parameters(), strict=True):
            mine.data.copy_(0.8 * mine.data + 0.2 * theirs.data)


@program()
def total_of_losses(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    total, count = torch.zeros(()), torch.zeros((), dtype=torch.long)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = _update(model, optimizer, x, y)
        total.add_(loss)
        count.add_(len(x))
        return loss

    step = way.step(train, model, optimizer)
    for i in range(5):
        loss = step(*data.labelled())
        yield loss, total, count, (total / count).item()
        if i == 2:
            total.zero_()


@program()
def total_rebound_by_nonlocal(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    total: Any = 0.0

    def train(x: Tensor, y: Tensor) -> Tensor:
        nonlocal total
        loss = _update(model, optimizer, x, y)
        total = total + loss
        return loss

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), total


@program()
def total_as_a_number_of_python(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    meter = {"sum": 0.0, "n": 0}

    def train(x: Tensor, y: Tensor) -> float:
        loss = _update(model, optimizer, x, y).item()
        meter["sum"] += loss
        meter["n"] += 1
        return meter["sum"] / meter["n"]

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), meter


@program()
def log_of_losses(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    log: list[Tensor] = []

    def train(x: Tensor, y: Tensor) -> None:
        log.append(_update(model, optimizer, x, y))

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), list(log)


@program()
def log_of_numbers(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    history: dict[str, list[float]] = defaultdict(list)

    def train(x: Tensor, y: Tensor) -> float:
        loss = _update(model, optimizer, x, y)
        history["loss"].append(loss.item())
        history["lr"].append(optimizer.param_groups[0]["lr"])
        return history["loss"][-1]

    step = way.step(train, model, optimizer)
    for i in range(4):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + i)
        yield step(*data.labelled()), history


@program()
def last_losses_in_a_deque(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    window: deque[Tensor] = deque(maxlen=3)

    def train(x: Tensor, y: Tensor) -> Tensor:
        window.append(_update(model, optimizer, x, y))
        return torch.stack(list(window)).mean()

    step = way.step(train, model, optimizer)
    for _ in range(5):
        yield step(*data.labelled()), window


@program()
def best_loss_so_far(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    best = torch.full((), float("inf"))
    confusion = torch.zeros(3, 3, dtype=torch.long)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        torch.minimum(best, loss.detach(), out=best)
        confusion.index_put_((y, out.argmax(1)), torch.ones_like(y), accumulate=True)
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), best, confusion


@program()
def running_normalisation(way: Any) -> Iterator[Any]:
    """Statistics of inputs in tensors that a closure holds."""
    data, model = Data(), mlp()
    mean, square = torch.zeros(6), torch.ones(6)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        with torch.no_grad():
            mean.lerp_(x.mean(0), 0.1)
            square.lerp_(x.square().mean(0), 0.1)
        return F.cross_entropy(model((x - mean) / (square - mean**2 + 0.1).sqrt()), y)

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled()), mean, square


@program()
def loss_scale_read_from_outside(way: Any) -> Iterator[Any]:
    """A tensor that only the user writes, between calls, in place."""
    data, model = Data(), mlp()
    weight = torch.ones(3)
    step = way.loss(model, sgd(model), lambda m, b: F.cross_entropy(m(b[0]), b[1], weight))
    for i in range(5):
        weight[i % 3] += 1.5
        yield step(data.labelled())


@program()
def tensor_outside_is_replaced(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    config = {"weight": torch.ones(3)}
    step = way.loss(
        model, sgd(model), lambda m, b: F.cross_entropy(m(b[0]), b[1], config["weight"])
    )
    for _ in range(4):
        yield step(data.labelled())
        config["weight"] = data.uniform(3)


@program()
def memory_bank(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp(6, 16, 4)
    bank = F.normalize(data.normal(20, 4), dim=1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, index = batch
        out = F.normalize(model(x), dim=1)
        loss = F.cross_entropy(out @ bank.T.clone() / 0.3, index)
        with torch.no_grad():
            bank[index] = F.normalize(0.5 * bank[index] + 0.5 * out, dim=1)
        return loss

    step = way.loss(model, sgd(model), loss)
    for i in range(4):
        yield step((data.normal(5, 6), (torch.arange(5) * 4 + i) % 20)), bank


@program()
def recurrent_state_kept_over_calls(way: Any) -> Iterator[Any]:
    """Truncated backpropagation: the hidden state of one call begins the next."""
    data, model = Data(), nn.ModuleDict({"cell": nn.GRUCell(6, 8), "head": nn.Linear(8, 3)})
    state = {"h": torch.zeros(4, 8)}

    def loss(model: Any, batch: Any) -> Tensor:
        x, y = batch
        state["h"] = model["cell"](x, state["h"].detach())
        return F.cross_entropy(model["head"](state["h"]), y)

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        loss_value = step(data.labelled(4))
        yield loss_value, state["h"].detach()


@program()
def features_kept_by_a_closure(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    kept: dict[str, Any] = {}

    def loss(model: Any, batch: Any) -> Tensor:
        kept["hidden"] = model[:2](batch[0])
        kept["n"] = kept.get("n", 0) + len(batch[0])
        return F.cross_entropy(model[2:](kept["hidden"]), batch[1])

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        result = step(data.labelled())
        yield result, kept["hidden"].detach(), kept["n"]


@program(devices=1)
def methods_of_containers_as_callbacks(way: Any) -> Iterator[Any]:
    """What is called with results is a method of a list, a set, a dict or a tensor."""
    data, model = Data(), mlp()
    optimizer = sgd(model)
    losses: list[Any] = []
    seen: set[int] = set()
    total, latest = torch.zeros(()), {"n": 0}
    report, callbacks = losses.append, {"seen": seen.add, "add": total.add_}

    class Callbacks:
        update = staticmethod(latest.update)

    def train(x: Tensor, y: Tensor, number: int) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(loss.item())
        callbacks["seen"](number)
        callbacks["add"](loss.detach())
        Callbacks.update(n=number, loss=loss.detach())
        return loss.detach()

    step = way.step(train, model, optimizer)
    for number in range(3):
        yield step(*data.labelled(), number), list(losses), set(seen), total, dict(latest)


@program(devices=1)
def one_log_by_two_names(way: Any) -> Iterator[Any]:
    """The second is looked at when the list has grown by the first."""
    data, model = Data(), mlp()
    optimizer = sgd(model)
    log: list[Any] = []

    class Recorder:
        def __init__(self) -> None:
            self.lines = log
            self.parts = {"all": log}

    recorder = Recorder()

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.append(loss.detach())
        recorder.lines.append(loss.item())
        recorder.parts["all"].append(len(log))
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(3):
        yield step(*data.labelled()), list(log)
