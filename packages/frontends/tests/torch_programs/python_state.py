"""Attributes, flags, closures and globals of Python that a step reads, and that change."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from torch_programs.driver import program
from torch_programs.pieces import Data, Tensor, adam, mlp, sgd


def _loss(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


class _Annealed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.beta, self.settings = mlp(), 0.0, {"scale": 1.0}

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * (1 + self.beta) * self.settings["scale"]


@program()
def annealed_attribute(way: Any) -> Iterator[Any]:
    data, model = Data(), _Annealed()
    step = way.loss(model, sgd(model), _loss)
    for i in range(5):
        model.beta = 0.2 * i
        yield step(data.labelled())


@program()
def annealed_entry_of_an_attribute(way: Any) -> Iterator[Any]:
    data, model = Data(), _Annealed()
    step = way.loss(model, sgd(model), _loss)
    for i in range(5):
        yield step(data.labelled())
        model.settings["scale"] = 1 / (2 + i)


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.calls = mlp(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.body(x) * min(1.0, 0.25 * self.calls)


@program()
def counter_in_forward(way: Any) -> Iterator[Any]:
    data, model = Data(), _Counting()
    step = way.loss(model, sgd(model), _loss)
    for _ in range(6):
        yield step(data.labelled()), model.calls


class _Alternating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.even, self.odd, self.register = mlp(), mlp(), None
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.turn = 0

    def forward(self, x: Tensor) -> Tensor:
        self.turn = 1 - self.turn
        self.calls += 1
        return (self.odd if self.turn else self.even)(x)


@program()
def branches_that_alternate(way: Any) -> Iterator[Any]:
    data, model = Data(), _Alternating()
    step = way.loss(model, sgd(model), _loss)
    for _ in range(6):
        yield step(data.labelled()), model.turn


@program()
def model_keeps_its_last_loss(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        model.last = F.cross_entropy(model(batch[0]), batch[1])
        model.losses = [*getattr(model, "losses", []), model.last.detach()]
        return model.last

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled()), model.last.detach(), model.losses


@program()
def evaluation_mode(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp(dropout=0.4)
    step = way.loss(model, sgd(model), _loss)
    for i in range(5):
        model.train(i % 2 == 0)
        yield step(data.labelled())


@program()
def evaluation_mode_of_batch_norm(way: Any) -> Iterator[Any]:
    """Frozen statistics from the third step on, as fine-tuning does."""
    data = Data()
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), mlp(8))
    step = way.loss(model, sgd(model), _loss)
    for i in range(5):
        if i == 2:
            model[1].eval()
        yield step(data.labelled())


@program()
def evaluation_inside_the_step(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp(dropout=0.4)
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Any:
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            return loss.detach(), F.cross_entropy(model(x), y)

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), model.training


@program()
def frozen_later(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, adam(model), _loss)
    for i in range(5):
        if i == 2:
            model[0].requires_grad_(False)
        yield step(data.labelled())


@program()
def unfrozen_later(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    model[0].requires_grad_(False)
    step = way.loss(model, adam(model), _loss)
    for i in range(5):
        if i == 2:
            model[0].requires_grad_(True)
        yield step(data.labelled())


@program()
def frozen_and_unfrozen(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model, momentum=0.9), _loss)
    for i in range(6):
        model[3].weight.requires_grad_(i % 3 != 1)
        yield step(data.labelled())


@program()
def frozen_inside_the_step(way: Any) -> Iterator[Any]:
    """Only the head is trained on every second call, by flags that the step sets."""
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor, head_only: bool) -> Tensor:
        model[0].requires_grad_(not head_only)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for i in range(4):
        yield step(*data.labelled(), i % 2 == 1)


CONFIG = {"smoothing": 0.0}


@program()
def dictionary_in_a_global(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(
        model,
        sgd(model),
        lambda m, b: F.cross_entropy(m(b[0]), b[1], label_smoothing=CONFIG["smoothing"]),
    )
    for i in range(4):
        CONFIG["smoothing"] = 0.1 * i
        yield step(data.labelled())


TEMPERATURE = 1.0


@program()
def number_in_a_global(way: Any) -> Iterator[Any]:
    global TEMPERATURE
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), lambda m, b: F.cross_entropy(m(b[0]) / TEMPERATURE, b[1]))
    for i in range(4):
        TEMPERATURE = 1.0 + i
        yield step(data.labelled())


@dataclass
class _Settings:
    """A configuration as people pass it around."""

    weight: float = 1.0
    kind: str = "ce"
    inner: Any = None


@program()
def configuration_object_in_a_closure(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    config = _Settings(inner=SimpleNamespace(power=1))

    def loss(model: Any, batch: Any) -> Tensor:
        out = model(batch[0])
        if config.kind == "ce":
            return config.weight * F.cross_entropy(out, batch[1])
        return config.weight * out.abs().pow(config.inner.power).mean()

    step = way.loss(model, sgd(model), loss)
    for weight, kind, power in ((1.0, "ce", 1), (2.0, "ce", 1), (1.0, "l", 1), (1.0, "l", 2)):
        config.weight, config.kind, config.inner.power = weight, kind, power
        yield step(data.labelled())


@program()
def number_in_a_closure(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    beta = 0.0

    def loss(model: Any, batch: Any) -> Tensor:
        out = model(batch[0])
        return F.cross_entropy(out, batch[1]) + beta * out.square().mean()

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled())
        beta += 0.2


@program()
def number_in_a_default_argument(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any, beta: list[float] = [0.0]) -> Tensor:  # noqa: B006
        beta[0] += 0.2
        out = model(batch[0])
        return F.cross_entropy(out, batch[1]) + beta[0] * out.square().mean()

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled())
    loss.__defaults__[0][0] = 0.0  # type: ignore[index]


@program()
def schedule_by_a_counter_of_the_step(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    counter = 0

    def train(x: Tensor, y: Tensor) -> Tensor:
        nonlocal counter
        counter += 1
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
        if counter % 2 == 0:
            loss = loss + 0.5 * out.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(6):
        yield step(*data.labelled()), counter


@program()
def regulariser_every_third_step(way: Any) -> Iterator[Any]:
    """The counter is the caller's, and read by the step."""
    data, model = Data(), mlp()
    state = SimpleNamespace(step=0)

    def loss(model: Any, batch: Any) -> Tensor:
        out = F.cross_entropy(model(batch[0]), batch[1])
        if state.step % 3 == 2:
            out = out + sum(p.square().sum() for p in model.parameters())
        return out

    step = way.loss(model, sgd(model, 0.05), loss)
    for _ in range(6):
        yield step(data.labelled())
        state.step += 1


@program("typed")
def random_of_python(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        flipped = batch[0].flip(1) if random.random() < 0.5 else batch[0]
        return F.cross_entropy(model(flipped), batch[1])

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled())


@program("typed")
def random_of_numpy(way: Any) -> Iterator[Any]:
    """Mixup as it is often written."""
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        share = float(np.random.beta(0.4, 0.4))
        x = share * batch[0] + (1 - share) * batch[0].flip(0)
        out = model(x)
        return share * F.cross_entropy(out, batch[1]) + (1 - share) * F.cross_entropy(
            out, batch[1].flip(0)
        )

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled())


@program("typed")
def own_generator_of_numpy(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    rng = np.random.default_rng(0)

    def loss(model: Any, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0] * rng.uniform(0.5, 1.5)), batch[1])

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled())


@program("typed")
def own_generator_of_python(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    rng = random.Random(0)

    def loss(model: Any, batch: Any) -> Tensor:
        keep = rng.sample(range(6), 4)
        return F.cross_entropy(model(batch[0] * torch.eye(6)[keep].sum(0)), batch[1])

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled())


@program("any")
def own_generator_of_torch(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    generator = torch.Generator().manual_seed(3)

    def loss(model: Any, batch: Any) -> Tensor:
        noise = torch.randn(batch[0].shape, generator=generator)
        return F.cross_entropy(model(batch[0] + 0.1 * noise), batch[1])

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled()), generator.get_state()


@program("any")
def seeded_inside_the_step(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp(dropout=0.3)

    def loss(model: Any, batch: Any) -> Tensor:
        torch.manual_seed(7)
        return F.cross_entropy(model(batch[0]), batch[1])

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled())


@program()
def noise_on_the_gradients(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for p in model.parameters():
            p.grad.add_(torch.randn_like(p), alpha=0.01)
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program()
def mixup_by_torch(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        x, y = batch
        share, order = torch.rand(()), torch.randperm(len(x))
        out = model(share * x + (1 - share) * x[order])
        return share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[order])

    step = way.loss(model, sgd(model), loss)
    for _ in range(4):
        yield step(data.labelled())


@program("any")
def clock_in_the_step(way: Any) -> Iterator[Any]:
    """The time is only logged: how long it takes is not compared, that it is new each time is."""
    data, model = Data(), mlp()
    optimizer = sgd(model)
    times: list[float] = []

    def train(x: Tensor, y: Tensor) -> Tensor:
        times.append(time.perf_counter())
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), len(set(times))


@program("any")
def printed_losses(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    printed: list[str] = []

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        printed.append(f"loss {loss.item():.3f}")
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), printed


@program()
def printed_tensors(way: Any) -> Iterator[Any]:
    """Text of what eager prints, but for the name of a gradient's function."""
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print("loss", loss.detach().round(decimals=3), round(2.5), sep=": ")
        print((loss.detach() * 0 + 4).item())
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(3):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            loss = step(*data.labelled())
        yield loss, printed.getvalue()


@program()
def written_lines(way: Any) -> Iterator[Any]:
    """Written once a call, though a decision on a loss makes it capture twice."""
    data, model, file = Data(), mlp(), io.StringIO()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        file.writelines(["one step\n", "small\n" if loss.item() < 0.5 else "large\n"])
        file.flush()
        sys.stdout.write("seen\n")
        json.dump({"lr": 0.1}, file)
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(3):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            loss = step(*data.labelled())
        yield loss, printed.getvalue(), file.getvalue()


@program("typed")
def written_rows(way: Any) -> Iterator[Any]:
    data, model, file = Data(), mlp(), io.StringIO()
    rows = csv.DictWriter(file, ["lr"])

    def loss(model: Any, batch: Any) -> Tensor:
        rows.writerow({"lr": 0.1})
        return F.cross_entropy(model(batch[0]), batch[1])

    step = way.loss(model, sgd(model), loss)
    for _ in range(2):
        yield step(data.labelled()), file.getvalue()


@program("typed")
def lines_of_a_file(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    file = Path(__file__).open(encoding="utf8")  # noqa: SIM115

    def loss(model: Any, batch: Any) -> Tensor:
        scale = float(len(next(file)))
        return F.cross_entropy(model(batch[0]), batch[1]) * scale

    step = way.loss(model, sgd(model), loss)
    for _ in range(2):
        yield step(data.labelled())


@program("typed")
def printed_lists_of_tensors(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def loss(model: Any, batch: Any) -> Tensor:
        found = F.cross_entropy(model(batch[0]), batch[1])
        print([found])
        return found

    step = way.loss(model, sgd(model), loss)
    for _ in range(2):
        with contextlib.redirect_stdout(io.StringIO()):
            yield step(data.labelled())


@program()
def skipped_when_the_loss_is_large(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if loss.item() < 1.2:
            loss.backward()
            optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program()
def skipped_when_not_finite(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if torch.isfinite(loss):
            loss.backward()
            optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for i in range(4):
        x, y = data.labelled()
        yield step(x if i != 2 else x * float("inf"), y)


@program()
def layer_that_is_replaced(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    step = way.loss(model, optimizer, _loss)
    for i in range(5):
        if i == 2:
            torch.manual_seed(5)
            model[3] = nn.Linear(16, 3)
            optimizer.param_groups[0]["params"] = list(model.parameters())
        yield step(data.labelled())


@program()
def activation_that_is_replaced(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), _loss)
    for i in range(4):
        if i == 2:
            model[1] = nn.ReLU()
        yield step(data.labelled())


@program()
def layers_that_are_added(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    step = way.loss(model, optimizer, _loss)
    for i in range(4):
        if i == 2:
            torch.manual_seed(6)
            model.append(nn.Linear(3, 3))
            optimizer.add_param_group({"params": model[-1].parameters()})
        yield step(data.labelled())


@program()
def parameter_that_is_replaced(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    step = way.loss(model, optimizer, _loss)
    for i in range(4):
        if i == 2:
            model[3].bias = None
            optimizer.param_groups[0]["params"] = list(model.parameters())
        yield step(data.labelled())


@program()
def forward_that_is_patched(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    step = way.loss(model, sgd(model), _loss)
    plain = model.forward
    for i in range(4):
        if i == 2:
            model.forward = lambda x: 0.5 * plain(x)
        yield step(data.labelled())


@program()
def loss_that_is_swapped_in_a_dictionary(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    losses = {"now": F.cross_entropy}
    step = way.loss(model, sgd(model), lambda m, b: losses["now"](m(b[0]), b[1]))
    for i in range(4):
        if i == 2:
            losses["now"] = F.multi_margin_loss
        yield step(data.labelled())


@program()
def trainer_object(way: Any) -> Iterator[Any]:
    """A trainer as in Lightning: the step is a method, and all state is in `self`."""

    class Trainer:
        def __init__(self) -> None:
            self.model = mlp(dropout=0.1)
            self.optimizer = adam(self.model)
            self.global_step, self.running, self.history = 0, 0.0, []
            self.warmup = 3

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = F.cross_entropy(self.model(batch[0]), batch[1])
            self.log("loss", loss)
            return loss * min(1.0, (self.global_step + 1) / self.warmup)

        def log(self, name: str, value: Tensor) -> None:
            self.history.append((name, value.detach()))

        def fit_batch(self, batch: Any, index: int) -> Tensor:
            loss = self.training_step(batch, index)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.global_step += 1
            return loss.detach()

    data, trainer = Data(), Trainer()
    step = way.step(trainer.fit_batch, trainer.model, trainer.optimizer)
    for i in range(5):
        yield step(data.labelled(), i), trainer.global_step, trainer.history


@program()
def trainer_whose_settings_change(way: Any) -> Iterator[Any]:
    class Trainer:
        def __init__(self) -> None:
            self.model, self.clip, self.alpha = mlp(), 1.0, 0.0
            self.optimizer = sgd(self.model)

        def __call__(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            out = self.model(x)
            loss = F.cross_entropy(out, y) + self.alpha * out.square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            return loss.detach()

    data, trainer = Data(), Trainer()
    step = way.step(trainer, trainer.model, trainer.optimizer)
    for i in range(5):
        trainer.clip, trainer.alpha = 0.1 * (i + 1), 0.1 * i
        yield step(*data.labelled())


@program(devices=1)
def numbers_of_tensors_of_one_element(way: Any) -> Iterator[Any]:
    """A total that begins as a tensor of shape (1,), as in PyTorch's tutorials."""
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Any:
        loss = torch.zeros(1)
        for part, labels in zip(x.split(4), y.split(4), strict=True):
            loss += F.cross_entropy(model(part), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item() / x.size(0), loss.view(1, 1).item() * 2

    step = way.step(train, model, optimizer)
    for _ in range(2):
        yield step(*data.labelled())


@program(devices=1)
def numbers_of_the_batch_as_keys(way: Any) -> Iterator[Any]:
    """The history of a run by its epoch, and what was seen."""
    data, model = Data(), mlp()
    optimizer = sgd(model)
    history: dict[Any, float] = {}
    seen: set[int] = set()

    def train(x: Tensor, y: Tensor, epoch: int, rate: float) -> float:
        loss = rate * F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history[epoch] = loss.item()
        history["rate", epoch] = rate
        seen.add(epoch)
        return history[epoch]

    step = way.step(train, model, optimizer)
    for epoch in (0, 1, 1, 2):
        yield step(*data.labelled(), epoch, 0.5 + epoch), dict(history), set(seen)
