"""Every optimizer of torch, some of their options, and some that people write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn, optim
from torch.nn import functional as F  # noqa: N812

from torch_programs.driver import Generated, program
from torch_programs.pieces import Data, Tensor, mlp, sgd


def _loss(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _of(make: Callable[[Any], Any], model: Any = mlp) -> Callable[[Any], Generated]:
    """The usual loop with an optimizer whose learning rate falls."""

    def run(way: Any) -> Iterator[Any]:
        data, trained = Data(), model()
        optimizer = make(trained.parameters())
        step = way.loss(trained, optimizer, _loss)
        for _ in range(5):
            yield step(data.labelled())
            for group in optimizer.param_groups:
                group["lr"] *= 0.8

    return run


_MADE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "adam": (lambda p: optim.Adam(p, 0.01), "equal"),
    "adam_amsgrad": (lambda p: optim.Adam(p, 0.01, amsgrad=True, weight_decay=0.1), "equal"),
    "adam_not_foreach": (lambda p: optim.Adam(p, 0.01, foreach=False), "equal"),
    "adam_fused": (lambda p: optim.Adam(p, 0.01, fused=True), "equal"),
    "adam_of_a_tensor_as_rate": (lambda p: optim.AdamW(p, torch.tensor(0.01)), "equal"),
    "adamw_maximize": (lambda p: optim.AdamW(p, 0.01, maximize=True), "equal"),
    "adamax": (lambda p: optim.Adamax(p, 0.01), "equal"),
    "nadam": (lambda p: optim.NAdam(p, 0.01), "equal"),
    "nadam_decoupled": (
        lambda p: optim.NAdam(p, 0.01, weight_decay=0.1, decoupled_weight_decay=True),
        "equal",
    ),
    "radam": (lambda p: optim.RAdam(p, 0.01), "equal"),
    "radam_past_its_warmup": (lambda p: optim.RAdam(p, 0.01, betas=(0.9, 0.5)), "equal"),
    "rmsprop": (lambda p: optim.RMSprop(p, 0.01), "equal"),
    "rmsprop_centered": (lambda p: optim.RMSprop(p, 0.01, centered=True, momentum=0.9), "equal"),
    "rprop": (lambda p: optim.Rprop(p, 0.01), "equal"),
    "adagrad": (lambda p: optim.Adagrad(p, 0.05), "equal"),
    "adagrad_decay": (
        lambda p: optim.Adagrad(p, 0.05, lr_decay=0.1, initial_accumulator_value=0.1),
        "equal",
    ),
    "adadelta": (lambda p: optim.Adadelta(p, 0.5), "equal"),
    "asgd": (lambda p: optim.ASGD(p, 0.05, t0=2), "equal"),
    "sgd": (lambda p: optim.SGD(p, 0.1), "equal"),
    "sgd_momentum": (lambda p: optim.SGD(p, 0.1, momentum=0.9), "equal"),
    "sgd_nesterov": (
        lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        "equal",
    ),
    "sgd_dampening": (lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.5), "equal"),
    "sgd_maximize": (lambda p: optim.SGD(p, 0.1, maximize=True), "equal"),
    "sgd_fused": (lambda p: optim.SGD(p, 0.1, momentum=0.9, fused=True), "equal"),
    "adafactor": (lambda p: optim.Adafactor(p, 0.01), "equal"),
}
for _name, (_make, _verdict) in _MADE.items():
    _run = _of(_make)
    _run.__name__, _run.__module__ = _name, __name__
    program(_verdict)(_run)


@program(rtol=2e-3)  # it computes in bfloat16
def muon(way: Any) -> Iterator[Any]:
    """Rounds to bfloat16: what a sum in another order changes may be rounded the other way."""
    yield from _by_muon(way)


@program(devices=1, rtol=2e-3)
def muon_on_one_device(way: Any) -> Iterator[Any]:
    yield from _by_muon(way)


def _by_muon(way: Any) -> Iterator[Any]:
    data = Data()
    model = nn.Sequential(nn.Linear(6, 16, bias=False), nn.Tanh(), nn.Linear(16, 3, bias=False))
    optimizer = optim.Muon(model.parameters(), 0.02)
    step = way.loss(model, optimizer, _loss)
    for _ in range(4):
        yield step(data.labelled())


@program(rtol=2e-3, devices=4)
def muon_beside_adam(way: Any) -> Iterator[Any]:
    """Matrices by Muon, the rest by AdamW: two optimizers in one step."""
    data, model = Data(), mlp()
    muon = optim.Muon([p for p in model.parameters() if p.ndim == 2], 0.02)
    adam = optim.AdamW([p for p in model.parameters() if p.ndim != 2], 0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        muon.step()
        adam.step()
        return loss.detach()

    step = way.step(train, model, muon)
    for _ in range(4):
        yield step(*data.labelled()), adam.state_dict()["state"]


@program("any", rtol=1e-2)
def lbfgs(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = optim.LBFGS(model.parameters(), 0.1, max_iter=3)

    def train(x: Tensor, y: Tensor) -> Any:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program()
def closure_of_a_plain_optimizer(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)

    def train(x: Tensor, y: Tensor) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled())


@program("any")
def sparse_adam(way: Any) -> Iterator[Any]:
    data, model = Data(), nn.Embedding(9, 4, sparse=True)
    optimizer = optim.SparseAdam(model.parameters(), 0.05)
    step = way.loss(model, optimizer, lambda m, b: m(b).square().mean())
    for _ in range(4):
        yield step(data.classes(9, 5))


class _CountingInPython(optim.Optimizer):
    """Adam without squares, whose step count is a number of Python."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["mean"] = 0, torch.zeros_like(p)
                state["step"] += 1
                state["mean"].lerp_(p.grad, 0.1)
                p.add_(state["mean"] / (1 - 0.9 ** state["step"]), alpha=-group["lr"])


@program()
def own_that_counts_in_python(way: Any) -> Iterator[Any]:
    yield from _of(lambda p: _CountingInPython(p, 0.1))(way)


class _Lion(optim.Optimizer):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.1})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["m"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                m = self.state[p]["m"]
                direction = torch.tanh(50 * (first * m + (1 - first) * p.grad))
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * direction)
                m.mul_(second).add_(p.grad, alpha=1 - second)


@program()
def own_with_its_state_made_at_once(way: Any) -> Iterator[Any]:
    yield from _of(lambda p: _Lion(p, 0.01))(way)


class _CountingOutside(optim.SGD):
    """Keeps a counter in an attribute, and halves the rate by it."""

    calls = 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        for group in self.param_groups:
            group["lr"] = 0.1 * 0.5 ** (self.calls // 2)
        return super().step(closure)


@program()
def own_with_a_counter_as_attribute(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = _CountingOutside(model.parameters(), 0.1)
    step = way.loss(model, optimizer, _loss)
    for _ in range(6):
        yield step(data.labelled()), optimizer.calls


class _Lookahead(optim.Optimizer):
    """Wraps another; slow weights are synchronised every second step."""

    def __init__(self, inner: optim.Optimizer) -> None:
        self.inner, self.count = inner, 0
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups
        self.slow = [[p.detach().clone() for p in g["params"]] for g in self.param_groups]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.inner.step()
        self.count += 1
        if self.count % 2 == 0:
            for group, slow in zip(self.param_groups, self.slow, strict=True):
                for p, s in zip(group["params"], slow, strict=True):
                    s.add_(p - s, alpha=0.5)
                    p.copy_(s)


@program()
def own_that_wraps_another(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = _Lookahead(optim.SGD(model.parameters(), 0.1, momentum=0.9))
    step = way.loss(model, optimizer, _loss)
    for _ in range(5):
        yield step(data.labelled()), optimizer.slow


@program()
def two_of_them_for_two_halves(way: Any) -> Iterator[Any]:
    """Actor and critic, each with its own optimizer, in one step."""
    data = Data()
    model = nn.ModuleDict({"actor": mlp(), "critic": mlp(6, 16, 1)})
    first = optim.Adam(model["actor"].parameters(), 0.01)
    second = optim.SGD(model["critic"].parameters(), 0.1, momentum=0.9)

    def train(x: Tensor, y: Tensor) -> Any:
        value = model["critic"](x).squeeze(1)
        policy = F.cross_entropy(model["actor"](x), y, reduction="none")
        first.zero_grad()
        (policy * value.detach()).mean().backward()
        first.step()
        second.zero_grad()
        loss = F.mse_loss(value, y.float())
        loss.backward()
        second.step()
        return policy.detach().mean(), loss.detach()

    step = way.step(train, model, first)
    for _ in range(4):
        yield step(*data.labelled()), second.state_dict()["state"]


@program()
def adversarial(way: Any) -> Iterator[Any]:
    """A generator and a discriminator in turns, as one step of the whole."""
    data = Data()
    pair = nn.ModuleDict({"g": mlp(4, 16, 6), "d": mlp(6, 16, 1)})
    opt_g, opt_d = (
        optim.Adam(pair["g"].parameters(), 0.01),
        optim.Adam(pair["d"].parameters(), 0.01),
    )

    def train(real: Tensor) -> dict[str, Tensor]:
        fake = pair["g"](torch.randn(len(real), 4))
        opt_d.zero_grad()
        loss_d = F.softplus(-pair["d"](real)).mean() + F.softplus(pair["d"](fake.detach())).mean()
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_g = F.softplus(-pair["d"](fake)).mean()
        loss_g.backward()
        opt_g.step()
        return {"d": loss_d.detach(), "g": loss_g.detach()}

    step = way.step(train, pair, opt_d)
    for _ in range(4):
        yield step(data.normal(8, 6)), opt_g.state_dict()["state"]


@program("any")
def adversarial_as_two_steps(way: Any) -> Iterator[Any]:
    data = Data()
    g, d = mlp(4, 16, 6), mlp(6, 16, 1)
    opt_g, opt_d = optim.Adam(g.parameters(), 0.01), optim.Adam(d.parameters(), 0.01)

    def train_d(real: Tensor, noise: Tensor) -> Tensor:
        opt_d.zero_grad()
        with torch.no_grad():
            fake = g(noise)
        loss = F.softplus(-d(real)).mean() + F.softplus(d(fake)).mean()
        loss.backward()
        opt_d.step()
        return loss.detach()

    def train_g(noise: Tensor) -> Tensor:
        opt_g.zero_grad()
        loss = F.softplus(-d(g(noise))).mean()
        loss.backward()
        opt_g.step()
        return loss.detach()

    step_d, step_g = way.step(train_d, d, opt_d), way.step(train_g, g, opt_g)
    for _ in range(4):
        yield step_d(data.normal(8, 6), data.normal(8, 4)), step_g(data.normal(8, 4))


@program("any")
def parameters_outside_of_the_model(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    temperature = nn.Parameter(torch.ones(()))
    optimizer = optim.SGD([*model.parameters(), temperature], 0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x) * temperature, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = way.step(train, model, optimizer)
    for _ in range(4):
        yield step(*data.labelled()), temperature.detach()


@program()
def of_some_parameters_only(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = optim.AdamW(model[3].parameters(), 0.01)
    step = way.loss(model, optimizer, _loss)
    for _ in range(4):
        yield step(data.labelled())


@program()
def hooks_before_and_after(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()
    optimizer = sgd(model)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))

    def shrink(optimizer: Any, *_: Any) -> None:
        with torch.no_grad():
            for p in optimizer.param_groups[0]["params"]:
                p.mul_(0.99)

    optimizer.register_step_post_hook(shrink)
    step = way.loss(model, optimizer, _loss)
    for _ in range(4):
        yield step(data.labelled()), calls


@program("any")
def no_optimizer_but_a_loop(way: Any) -> Iterator[Any]:
    data, model = Data(), mlp()

    def train(x: Tensor, y: Tensor, lr: float) -> Tensor:
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad
        return loss.detach()

    step = way.step(train, model, None)
    for i in range(4):
        yield step(*data.labelled(), 0.1 / (1 + i))
