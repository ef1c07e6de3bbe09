"""Hyperparameters that change between calls or inside of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812
from torch.optim import lr_scheduler

from torch_programs.driver import program
from torch_programs.pieces import Data, Tensor, adam, mlp, sgd


def _loss(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _scheduled(way: Any, make: Any, schedule: Any, n: int = 6) -> Iterator[Any]:
    """The usual loop: a step, then the schedule's."""
    data, model = Data(), mlp()
    optimizer = make(model)
    scheduler = schedule(optimizer)
    step = way.loss(model, optimizer, _loss)
    for _ in range(n):
        loss = step(data.labelled())
        scheduler.step()
        yield loss, scheduler.get_last_lr()


@program()
def one_cycle(way: Any) -> Iterator[Any]:
    yield from _scheduled(
        way,
        lambda m: sgd(m, momentum=0.9),
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=8),
    )


@program()
def one_cycle_of_betas(way: Any) -> Iterator[Any]:
    yield from _scheduled(
        way, adam, lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.05, total_steps=8)
    )


@program()
def cyclic_momentum(way: Any) -> Iterator[Any]:
    yield from _scheduled(
        way,
        lambda m: sgd(m, momentum=0.8),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.3, step_size_up=2, cycle_momentum=True),
    )


@program()
def cosine(way: Any) -> Iterator[Any]:
    yield from _scheduled(way, adam, lambda o: lr_scheduler.CosineAnnealingLR(o, 5))


@program()
def warmup_from_zero(way: Any) -> Iterator[Any]:
    yield from _scheduled(way, sgd, lambda o: lr_scheduler.LambdaLR(o, lambda i: min(1.0, i / 3)))


@program()
def sequential_schedules(way: Any) -> Iterator[Any]:
    yield from _scheduled(
        way,
        sgd,
        lambda o: lr_scheduler.SequentialLR(
            o,
            [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.5)],
            [3],
        ),
    )


@program()
def rate_as_a_tensor(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))
    scheduler = lr_scheduler.StepLR(optimizer, 2, 0.3)
    step = way.loss(model, optimizer, _loss)
    for _ in range(5):
        yield step(data.labelled())
        scheduler.step()


@program()
def reduced_on_plateau(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
    step = way.loss(model, optimizer, _loss)
    for _ in range(6):
        loss = step(data.labelled())
        scheduler.step(loss)
        yield loss


def _stepped_inside(way: Any, make: Any, schedule: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = make(model)
    scheduler = schedule(optimizer)

    def train(x: Tensor, y: Tensor) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return {"loss": loss.detach(), "lr": scheduler.get_last_lr()[0]}

    step = way.step(train, model, optimizer)
    for _ in range(6):
        yield step(*data.labelled()), scheduler.last_epoch


@program()
def scheduler_inside_the_step(way: Any) -> Iterator[Any]:
    yield from _stepped_inside(way, sgd, lambda o: lr_scheduler.LambdaLR(o, lambda i: 1 / (1 + i)))


@program()
def one_cycle_inside_the_step(way: Any) -> Iterator[Any]:
    yield from _stepped_inside(
        way, adam, lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.05, total_steps=9)
    )


def _changed(way: Any, make: Any, key: str, values: Any) -> Iterator[Any]:
    """A hyperparameter that the user sets between calls."""
    data, model = Data(), mlp()
    optimizer = make(model)
    step = way.loss(model, optimizer, _loss)
    for value in values:
        for group in optimizer.param_groups:
            group[key] = value
        yield step(data.labelled())


@program()
def weight_decay(way: Any) -> Iterator[Any]:
    yield from _changed(way, adam, "weight_decay", (0.01, 0.1, 1.0, 5.0))


@program()
def weight_decay_from_nothing(way: Any) -> Iterator[Any]:
    yield from _changed(way, sgd, "weight_decay", (0, 0, 0.1, 0.5))


@program()
def betas(way: Any) -> Iterator[Any]:
    yield from _changed(way, adam, "betas", ((0.9, 0.999), (0.8, 0.99), (0.5, 0.9), (0.0, 0.9)))


@program()
def epsilon(way: Any) -> Iterator[Any]:
    yield from _changed(way, adam, "eps", (1e-8, 1e-2, 1e-1, 1.0))


@program()
def momentum_that_begins(way: Any) -> Iterator[Any]:
    yield from _changed(way, sgd, "momentum", (0.0, 0.0, 0.9, 0.9, 0.0))


@program()
def nesterov_that_is_switched(way: Any) -> Iterator[Any]:
    yield from _changed(way, lambda m: sgd(m, momentum=0.9), "nesterov", (False, True, False, True))


@program()
def amsgrad_maximize(way: Any) -> Iterator[Any]:
    yield from _changed(way, adam, "maximize", (False, True, False, False))


@program()
def groups_with_their_own_schedules(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = torch.optim.AdamW(
        [
            {"params": model[0].parameters(), "lr": 0.01, "weight_decay": 0.0},
            {"params": model[3].parameters(), "lr": 0.05, "betas": (0.8, 0.9)},
        ]
    )
    step = way.loss(model, optimizer, _loss)
    for i in range(4):
        optimizer.param_groups[0]["lr"] *= 0.5
        optimizer.param_groups[1]["weight_decay"] = 0.1 * i
        yield step(data.labelled())


@program()
def a_group_added_later(way: Any) -> Iterator[Any]:
    """Progressive unfreezing: the backbone joins the optimizer after two steps."""
    data, model = Data(), mlp()
    optimizer = torch.optim.SGD(model[3].parameters(), lr=0.1, momentum=0.9)
    step = way.loss(model, optimizer, _loss)
    for i in range(5):
        if i == 2:
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.05})
        yield step(data.labelled())


@program()
def momentum_of_batch_norm(way: Any) -> Iterator[Any]:
    data = Data()
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), mlp(8))
    step = way.loss(model, sgd(model), _loss)
    for i in range(4):
        model[1].momentum = 0.1 * 2**i
        yield step(data.labelled())


@program()
def dropout_rate(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp(dropout=0.1)
    step = way.loss(model, sgd(model), _loss)
    for i in range(4):
        model[2].p = 0.1 + 0.2 * i
        yield step(data.labelled())


@program()
def rate_read_in_the_step(way: Any) -> Iterator[Any]:
    """Gradient noise and clipping by the learning rate of the moment."""
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        rate = optimizer.param_groups[0]["lr"]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05 / rate)
        optimizer.step()
        return loss.detach(), norm, rate

    step = way.step(train, model, optimizer)
    for i in range(4):
        optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)
        yield step(*data.labelled())


@program()
def rate_set_in_the_step(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    done = {"steps": 0}

    def train(x: Tensor, y: Tensor) -> Tensor:
        done["steps"] += 1
        for group in optimizer.param_groups:
            group["lr"] = 0.2 * min(1.0, done["steps"] / 3)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(5):
        yield step(*data.labelled()), done
