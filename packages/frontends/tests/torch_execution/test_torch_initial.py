"""Weights from the meta device: each process makes its parts, with the numbers of one device."""

import copy
from collections.abc import Callable
from typing import Any

import frontends.torch as mw
import numpy as np
import pytest
import torch
from costmodel import Cluster
from frontends import InitializationError, PlanError
from frontends.torch.state.recording import record
from torch import nn
from torch.profiler import profile

CLUSTER = Cluster.preset("two-hosts:1")
QUICK: dict[str, Any] = {"cluster": CLUSTER, "strategy": "data_parallel", "microbatches": 1}
BATCH = torch.ones(8, 8)
TABLE = np.linspace(0.0, 1.0, 8, dtype=np.float32)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def on_one_device(build: Callable[[], nn.Module]) -> tuple[nn.Module, torch.Tensor]:
    """The model, and what is drawn after it."""
    torch.manual_seed(3)
    return build(), torch.rand(4)


def assert_equal_state(found: nn.Module | dict[str, Any], expected: nn.Module) -> None:
    """All values, buffers that no state_dict has included."""
    wanted = {**dict(expected.named_parameters()), **dict(expected.named_buffers())}
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def made(build: Callable[[], nn.Module]) -> dict[str, Any]:
    """What a recording of a model makes, in one process that needs all of it."""
    torch.manual_seed(3)
    with record() as recording:
        model = build()
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        places = {name: recording.find(tensor) for name, tensor in tensors.items()}
    found: dict[str, Any] = {}
    recording.make(places, lambda name: True, lambda name, t: found.update({name: t.clone()}))
    return found


class Plain(nn.Module):
    """Linear layers under one table, a cast weight, and buffers that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
        self.norm = nn.LayerNorm(8)
        self.low = nn.Parameter(torch.randn(8, 8).to(torch.bfloat16))
        self.register_buffer("scale", 1 / 10_000 ** (torch.arange(8) / 8), persistent=False)
        self.register_buffer("mask", torch.triu(torch.ones(8, 8, dtype=torch.bool), 1))
        nn.init.normal_(self.body[0].weight)
        self.body[2].weight = self.body[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.norm(self.body(x)) @ self.low.float()).masked_fill(self.mask, 0) * self.scale


@pytest.mark.parametrize("strategy", ["zero", "equal_layers"])
def test_a_step_from_the_meta_device_is_that_of_one_device(strategy: str) -> None:
    model, after = on_one_device(Plain)
    with torch.device("meta"):
        bare = Plain()
    options: dict[str, Any] = {"cluster": CLUSTER, "strategy": strategy, "microbatches": 1}
    losses = []
    for mine in (copy.deepcopy(model), bare):
        optimizer = torch.optim.AdamW(mine.parameters(), 0.01, eps=1e-2)
        step = mw.parallelize(mine, optimizer, loss_of, BATCH, **options)
        if mine is bare:
            with pytest.raises(PlanError, match=r"on the meta device: make them by init, or"):
                step(BATCH)
            torch.manual_seed(3)
            step.init_weights(Plain)
            assert torch.equal(torch.rand(4), after)
            names = {f"buffers[{n!r}]": n for n, _ in model.named_buffers()}
            names |= {f"params[{n!r}]": n for n, _ in model.named_parameters()}
            state = step.runtime.whole_state()
            assert_equal_state({n: state[name] for name, n in names.items()}, model)
            with pytest.raises(InitializationError, match="all of this step's state has some"):
                step.init_weights(Plain)
            with pytest.raises(PlanError, match=r"written back .*params\['low'\] and \d+ others"):
                step.write_back()
            with pytest.raises(PlanError, match="compared with eager steps of a model with memory"):
                step.verify(BATCH)
        losses.append([float(step(BATCH)) for _ in range(3)])
    assert losses[0] == losses[1]


class Unusual(nn.Module):
    """Draws under seeds of its own, draws that others depend on, values that Python reads."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.5, 4)]
        self.first = nn.Linear(7, 5)
        self.scaled = nn.Parameter(torch.randn(5, 7).T.contiguous() * self.rates[1])
        width = 3 + int(torch.randint(3, 9, ()))
        self.square = nn.Linear(width, width)
        nn.init.orthogonal_(self.square.weight)
        nn.init.trunc_normal_(self.first.weight)
        with torch.random.fork_rng():
            torch.manual_seed(9)
            self.seeded = nn.Parameter(torch.randn(6))
        generator = torch.Generator().manual_seed(4)
        self.register_buffer("noise", torch.randn(40, generator=generator))
        self.more = nn.Parameter(torch.randn(33, generator=generator))
        self.table = nn.Embedding(8, width, padding_idx=2)
        with torch.no_grad():
            self.first.weight.mul_(0.5)
            self.table.weight[3] = self.square.weight[0]
            self.square.bias.copy_(self.square.weight.sum(0))
            self.table.weight[:, 1].normal_()
        self.part = nn.Parameter(self.first.weight.detach().clone()[:, :3])
        nn.init.sparse_(self.square.weight, 0.5)
        given = torch.from_numpy(TABLE.copy())
        given[2:4].fill_(7)
        self.register_buffer("given", given)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
        self.recurrent = nn.LSTM(4, 4)
        self.twin = copy.deepcopy(self.normed)
        self.to(torch.bfloat16)


def test_any_construction_is_followed() -> None:
    model, after = on_one_device(Unusual)
    assert_equal_state(made(Unusual), model)
    assert torch.equal(torch.rand(4), after)


def test_processes_draw_alike_whatever_each_needs() -> None:
    """What a process keeps is not changed by what it does not."""
    model, after = on_one_device(Unusual)
    torch.manual_seed(3)
    with record() as recording:
        built = Unusual()
        places = {name: recording.find(p) for name, p in built.named_parameters()}
    found: dict[str, torch.Tensor] = {}
    recording.make(places, lambda n: n == "part", lambda n, t: found.update({n: t.clone()}))
    assert found.keys() == {"part"}
    assert torch.equal(found["part"], model.part)
    assert torch.equal(torch.rand(4), after)


def test_what_is_not_random_draws_nothing() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with record() as recording:
        model = Plain()
        place = recording.find(model.scale)
    found: list[torch.Tensor] = []
    recording.make({"scale": place}, lambda name: True, lambda _, t: found.append(t))
    assert torch.equal(found[0], Plain().scale)
    torch.set_rng_state(state)
    with record():
        Plain()
    assert torch.equal(torch.get_rng_state(), state)


def test_no_process_has_more_than_one_parameter_whole() -> None:
    """By the allocator's own account of what lives, in one of four processes that share each."""

    def build() -> nn.Module:
        model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(16)))
        for linear in model:
            nn.init.trunc_normal_(linear.weight, std=0.02)
        return model

    one_bytes = 512 * 512 * 4
    kept: list[torch.Tensor] = []
    torch.manual_seed(3)
    with record() as recording:
        places = {n: recording.find(p) for n, p in build().named_parameters()}
    with profile(profile_memory=True) as profiled:
        recording.make(places, lambda n: True, lambda _, t: kept.append(t[:128].clone()))
    live, peak = 0, 0
    for event in sorted(profiled.events(), key=lambda event: event.time_range.start):
        live += event.self_cpu_memory_usage
        peak = max(peak, live)
    assert sum(t.nbytes for t in kept) == 4 * one_bytes <= live
    assert 4 * one_bytes < peak < 4 * one_bytes + 1.25 * one_bytes


class Early(torch.optim.Optimizer):
    """Has state before its first update, as Adagrad had."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["sum"] = torch.full_like(p, 0.5)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                total = self.state[p]["sum"].add_(p.grad.square())
                p.sub_(p.grad / total.sqrt() * group["lr"])


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, 0.1, eps=1e-2),
    "early": Early,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_begin_as_on_one_device(name: str) -> None:
    def both() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        return model, OPTIMIZERS[name](model.parameters())

    torch.manual_seed(3)
    pairs = [both()]
    with torch.device("meta"):
        pairs.append(both())
    steps = [mw.parallelize(*pair, loss_of, BATCH, **QUICK) for pair in pairs]
    torch.manual_seed(3)
    if name == "early":
        with pytest.raises(InitializationError, match=r"Early has none .*return \(model, optim"):
            steps[1].init_weights(lambda: both()[0])
        steps[1].init_weights(both)
    else:
        steps[1].init_weights(lambda: both()[0])
    for _ in range(2):
        assert float(steps[0](BATCH)) == float(steps[1](BATCH))


def test_what_cannot_be_made_is_refused() -> None:
    with torch.device("meta"):
        bare = Plain()
    step = mw.parallelize(bare, torch.optim.SGD(bare.parameters(), 0.1), loss_of, cluster=CLUSTER)
    with pytest.raises(PlanError, match="a step has a plan after its first call"):
        step.init_weights(Plain)
    step = mw.parallelize(bare, torch.optim.SGD(bare.parameters(), 0.1), loss_of, BATCH, **QUICK)
    with pytest.raises(InitializationError, match=r"lacks \['body.0.bias', .* besides \['bias', "):
        step.init_weights(lambda: nn.Linear(8, 8))
    with pytest.raises(InitializationError, match=r"got params\['low'\] of torch.float64\[8, 8\] "):
        step.init_weights(lambda: Plain().double())

    def on_meta() -> nn.Module:
        with torch.device("meta"):
            return Plain()

    with pytest.raises(InitializationError, match=r"got a draw on cpu, meta at .*Linear\(8, 8\)"):
        step.init_weights(on_meta)

    def partly() -> nn.Module:
        model = Plain()
        model.scale = model.scale.to("meta")
        return model

    with pytest.raises(InitializationError, match=r"buffers\['scale'\] of .* on meta instead of"):
        step.init_weights(partly)

    def by_numpy() -> nn.Module:
        model = Plain()
        model.scale.copy_(torch.from_numpy(model.norm.weight.detach().numpy() * 2))
        return model

    with pytest.raises(InitializationError, match=r"test_torch_initial.py:\d+: .*numpy\(\) \* 2"):
        step.init_weights(by_numpy)

    def by_shape() -> nn.Module:
        model = Plain()
        model.extra = nn.Parameter(torch.ones(8)[torch.rand(8) > 0.5])
        return model

    with pytest.raises(InitializationError, match=r"test_torch_initial.py:\d+: .*> 0.5"):
        step.init_weights(by_shape)
    with pytest.raises(InitializationError, match=r"lies in memory as a dense tensor; .*sparse"):
        made(lambda: nn.ParameterList([torch.eye(3).to_sparse()]))
