"""Whole loops as people write them, with epochs, logs, evaluation and checkpoints."""

from __future__ import annotations

import copy
import io
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from torch_programs.driver import program
from torch_programs.pieces import Data, Tensor, adam, mlp, needed, sgd

GLOBAL_STEP = 0


def _loss(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@program()
def epochs_of_a_loader(way: Any) -> Iterator[Any]:
    """Shuffled, and with a short last batch."""
    data, model = Data(), mlp(dropout=0.1)
    loader = DataLoader(TensorDataset(*data.labelled(19)), batch_size=8, shuffle=True)
    optimizer = adam(model)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 6)
    step = way.loss(model, optimizer, _loss)
    for _ in range(2):
        for batch in loader:
            yield step(batch)
            schedule.step()


@program()
def evaluation_and_early_stopping(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp(dropout=0.2)
    optimizer = sgd(model, 0.5, momentum=0.9)
    step = way.loss(model, optimizer, _loss)
    held, best, kept = data.labelled(12), float("inf"), None
    for _ in range(6):
        model.train()
        loss = step(data.labelled())
        model.eval()
        with torch.no_grad():
            value = _loss(model, held).item()
        if value < best:
            best, kept = value, copy.deepcopy(model.state_dict())
        yield loss, value
    model.load_state_dict(kept)
    yield model(held[0]).detach()


@program()
def stopped_and_resumed(way: Any) -> Iterator[Any]:
    """A checkpoint is read into new objects, which go on."""
    data = Data()

    def build() -> Any:
        model = mlp(dropout=0.1)
        optimizer = adam(model)
        schedule = lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=8)
        return model, optimizer, schedule, way.loss(model, optimizer, _loss)

    model, optimizer, schedule, step = build()
    for _ in range(3):
        yield step(data.labelled())
        schedule.step()
    file = io.BytesIO()
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    file.seek(0)
    saved = torch.load(file)
    model, optimizer, schedule, step = build()
    for name, part in (("model", model), ("optimizer", optimizer), ("schedule", schedule)):
        part.load_state_dict(saved[name])
    for _ in range(3):
        yield step(data.labelled())
        schedule.step()


@program()
def progressive_unfreezing(way: Any) -> Iterator[Any]:
    data = Data()
    model = nn.Sequential(mlp(6, 16, 8), nn.ReLU(), mlp(8, 16, 3))
    optimizer = torch.optim.AdamW(
        [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[2].parameters()}], lr=1e-2
    )
    step = way.loss(model, optimizer, _loss)
    for epoch in range(3):
        model[0].requires_grad_(epoch > 0)
        model[0].train(epoch > 0)
        for _ in range(2):
            yield step(data.labelled())


@program()
def curriculum(way: Any) -> Iterator[Any]:
    """Lengths, dropout, smoothing and rate all change with the epoch."""
    data = Data()
    model = nn.Sequential(nn.Embedding(9, 8), nn.Dropout(0.0), nn.Linear(8, 9))
    optimizer = sgd(model)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.0)
    step = way.loss(
        model, optimizer, lambda m, t: criterion(m(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten())
    )
    for epoch in range(3):
        model[1].p = 0.1 * epoch
        criterion.label_smoothing = 0.05 * epoch
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + epoch)
        for _ in range(2):
            yield step(data.classes(9, 4, 5 + epoch))


@program()
def counters_and_meters_everywhere(way: Any) -> Iterator[Any]:
    global GLOBAL_STEP

    class Meter:
        def __init__(self) -> None:
            self.sum, self.count = 0.0, 0

        def update(self, value: float, n: int) -> None:
            self.sum += value * n
            self.count += n

        @property
        def average(self) -> float:
            return self.sum / max(self.count, 1)

    data, model = Data(), mlp()
    optimizer = sgd(model)
    losses, accuracies = Meter(), Meter()
    GLOBAL_STEP = 0

    def train(x: Tensor, y: Tensor) -> float:
        global GLOBAL_STEP
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        GLOBAL_STEP += 1
        losses.update(loss.item(), len(x))
        accuracies.update((out.argmax(1) == y).float().mean().item(), len(x))
        return losses.average

    step = way.step(train, model, optimizer)
    for n in (8, 8, 4):
        yield step(*data.labelled(n)), GLOBAL_STEP, losses.count, accuracies.average


@program("any")
def logging_in_the_step(way: Any) -> Iterator[Any]:
    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    data, model = Data(), mlp()
    optimizer = sgd(model)
    lines: list[str] = []
    logger = logging.Logger("train")
    logger.addHandler(Kept())
    numbers = itertools.count()

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        logger.info("step %d of lr %s", next(numbers), optimizer.param_groups[0]["lr"])
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), lines


@program()
def log_every_second_step(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    log: list[float] = []

    def train(x: Tensor, y: Tensor, number: int) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if number % 2 == 0:
            log.append(loss.item())
        return loss.detach()

    step = way.step(train, model, optimizer)
    for i in range(5):
        yield step(*data.labelled(), i), log


@program()
def progress_bar(way: Any) -> Iterator[Any]:
    tqdm = needed("tqdm")
    data, model = Data(), mlp()
    optimizer = sgd(model)
    bar = tqdm.tqdm(total=4, disable=None, file=io.StringIO())

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        bar.update()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), bar.n


@program()
def knowledge_distillation(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    teacher = mlp(6, 32, 3).eval()

    def loss(model: Any, batch: Any) -> Tensor:
        with torch.no_grad():
            wanted = (teacher(batch[0]) / 2).softmax(1)
        out = model(batch[0])
        return F.cross_entropy(out, batch[1]) + F.kl_div(
            (out / 2).log_softmax(1), wanted, reduction="batchmean"
        )

    step = way.loss(model, sgd(model), loss)
    for i in range(5):
        yield step(data.labelled())
        if i == 2:  # a better teacher is loaded
            teacher.load_state_dict({k: 2 * v for k, v in teacher.state_dict().items()})


@program()
def policy_with_a_moving_baseline(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = adam(model)
    baseline = torch.zeros(())

    def train(states: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
        logp = model(states).log_softmax(1).gather(1, actions[:, None]).squeeze(1)
        loss = -(logp * (rewards - baseline)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        baseline.mul_(0.8).add_(rewards.mean(), alpha=0.2)
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(5):
        yield step(*data.labelled(), data.normal(8)), baseline


@program()
def pseudo_labels_with_a_ramp(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp(dropout=0.1)
    epoch = {"now": 0}

    def loss(model: Any, batch: Any) -> Tensor:
        x, y, unlabelled = batch
        ramp = min(1.0, epoch["now"] / 3)
        with torch.no_grad():
            guess = model(unlabelled).softmax(1)
        sure = (guess.amax(1) > 0.35).float()
        each = F.cross_entropy(model(unlabelled), guess.argmax(1), reduction="none")
        return F.cross_entropy(model(x), y) + ramp * (sure * each).mean()

    step = way.loss(model, sgd(model), loss)
    for _ in range(5):
        yield step((*data.labelled(), data.normal(8, 6)))
        epoch["now"] += 1
