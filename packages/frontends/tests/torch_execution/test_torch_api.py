"""What a PyTorch user sees: the step is called as before, and trains as before."""

import contextlib
import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import frontends.torch as mw
import numpy as np
import pytest
import torch
from costmodel import Cluster
from frontends import (
    BatchError,
    CheckpointError,
    PlanError,
    VerificationError,
)
from frontends.torch.run import processes
from torch import nn

CLUSTER = Cluster.preset("two-hosts:1")
QUICK: dict[str, Any] = {"cluster": CLUSTER, "strategy": "data_parallel", "microbatches": 1}
"""A plan that needs no search."""


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32, affine=False), nn.Linear(32, 8))
    model[2].weight.requires_grad_(False)
    return model, torch.optim.AdamW(model.parameters(), 0.01, eps=1e-2)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch["x"]) - batch["y"]).square().mean()


def batches(n: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{k: torch.randn(8, 8, generator=generator) for k in ("x", "y")} for _ in range(n)]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


def test_a_model_trains_as_on_one_device_and_goes_on_from_what_was_saved() -> None:
    model, optimizer = model_and_optimizer()
    twin, its_optimizer = copy.deepcopy((model, optimizer))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    its_schedule = torch.optim.lr_scheduler.StepLR(its_optimizer, 1, 0.5)
    examples = batches(5)
    step = mw.parallelize(
        model, optimizer, loss_of, examples[0], cluster=CLUSTER, strategy="zero", microbatches=1
    )
    assert "1 microbatches" in repr(step)
    optimizer.step()  # what a schedule wants to see; there are no gradients
    its_optimizer.step()
    for batch in examples[:3]:
        assert torch.allclose(step(batch), train(twin, its_optimizer, batch), rtol=1e-5)
        schedule.step()
        its_schedule.step()
    saved = copy.deepcopy(step.state_dict())
    for ours, theirs in (
        (saved["model"], twin.state_dict()),
        (saved["optimizer"]["state"][0], its_optimizer.state_dict()["state"][0]),
    ):
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-7)
    assert not torch.equal(model[0].weight, twin[0].weight)
    step.write_back()
    torch.testing.assert_close(model[0].weight, twin[0].weight)

    other, others_optimizer = model_and_optimizer()
    again = mw.parallelize(other, others_optimizer, loss_of, **QUICK)
    again.load_state_dict(saved)
    for batch in examples[3:]:
        expected = step(batch)
        torch.testing.assert_close(again(batch), expected)


def test_a_whole_step_is_called_as_it_was() -> None:
    model, optimizer = model_and_optimizer()

    def closed(x: torch.Tensor, *, y: torch.Tensor) -> dict[str, Any]:
        loss = train(model, optimizer, {"x": x, "y": y})
        return {"loss": loss, "number": loss.item(), "name": "mse"}

    (batch,) = batches(1)
    first = mw.parallelize_step(train, model, optimizer, **QUICK)
    loss = first(model, optimizer, batch)
    model, optimizer = model_and_optimizer()
    second = mw.parallelize_step(closed, model, optimizer, **QUICK)
    returned = second(batch["x"], y=batch["y"])
    assert (returned["loss"], returned["name"]) == (loss, "mse")
    assert returned["number"] == loss.item()
    with pytest.raises(BatchError, match=r"as it is defined, with \(x: .*too many positional"):
        second(batch["x"], batch["y"])
    assert len(second.variants) == 1


def test_a_run_is_verified_and_leaves_no_trace() -> None:
    model, optimizer = model_and_optimizer()
    (batch,) = batches(1)
    step = mw.parallelize(model, optimizer, loss_of, batch, **QUICK)
    before = step.state_dict()["model"]["0.weight"].clone()
    verified = step.verify(batch, n_steps=3)
    (stage,) = step.plan.stages
    assert verified.n_collectives == 3 * len(stage.collectives) > 0
    assert max(verified.results, verified.state) < 1e-5
    assert str(verified).startswith("ok: 3 steps return what eager ones do")
    assert torch.equal(step.state_dict()["model"]["0.weight"], before)
    assert model[0].weight.grad is None

    runtime = step.compile(batch)
    for wrong in (stage.collectives[1:], (*stage.collectives, stage.collectives[0])):
        runtime.plan = replace(runtime.plan, stages=(replace(stage, collectives=wrong),))
        with pytest.raises(VerificationError, match="must communicate what the plan says"):
            step.verify(batch)


TYPES: dict[str, Callable[[nn.Module, Any], tuple[nn.Module, Any, Any]]] = {
    "float32": lambda model, batch: (model, batch, contextlib.nullcontext()),
    "bfloat16": lambda model, batch: (
        model.bfloat16(),
        {name: tensor.bfloat16() for name, tensor in batch.items()},
        contextlib.nullcontext(),
    ),
    "autocast": lambda model, batch: (model, batch, torch.autocast("cpu", torch.bfloat16)),
}
"""By name, what a step computes in."""


@pytest.mark.parametrize("name", TYPES)
def test_numbers_that_differ_by_more_than_their_type_rounds_are_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch,) = batches(1)
    model, batch, context = TYPES[name](model_and_optimizer()[0], batch)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, eps=1e-2)
    tolerance = 1e-5 if name == "float32" else 2**-6

    def unsteady(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        with context:
            loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        return loss.detach().float()

    step = mw.parallelize_step(unsteady, model, optimizer, **QUICK)
    verified = step.verify(batch)
    assert 0 <= verified.results <= verified.tolerance == tolerance
    run = step.variants[0].run
    monkeypatch.setattr(step.variants[0], "run", lambda *args: run(*args) * (1 - 3 * tolerance))
    with pytest.raises(VerificationError, match=rf"to a relative {tolerance:g}; step 1 has"):
        step.verify(batch)


def test_what_cannot_be_is_refused() -> None:
    model, optimizer = model_and_optimizer()
    with pytest.raises(
        TypeError,
        match=r"^parallelize has the options cluster, .*; got microbatch: did you mean microbat",
    ):
        mw.parallelize(model, optimizer, loss_of, cluster=CLUSTER, microbatch=2)
    step = mw.parallelize(model, optimizer, loss_of, cluster=CLUSTER)
    with pytest.raises(PlanError, match="a step has a plan after its first call"):
        _ = step.plan
    whole = mw.parallelize_step(train, model, optimizer, cluster=CLUSTER)
    with pytest.raises(BatchError, match=r"a step is planned for a batch: .* got model, optimizer"):
        whole(model, optimizer)
    with pytest.raises(BatchError, match=r"a step is called as it is defined, with \(.*, extra=\)"):
        whole(model, optimizer, batches(1)[0], extra=1)


def test_a_run_goes_on_from_a_checkpoint_by_another_plan(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    *examples, last = batches(3)
    step = mw.parallelize(model, optimizer, loss_of, **QUICK | {"strategy": "zero"})
    with pytest.raises(PlanError, match="a step has a plan after its first call"):
        mw.save(tmp_path, 1, step)
    for number, batch in enumerate(examples):
        step(batch)
        mw.save(tmp_path, number, step)
    expected = step(last)
    with pytest.raises(CheckpointError, match=r"got number=1, and .* has one of step 1"):
        mw.save(tmp_path, 1, step)

    with torch.device("meta"):
        bare, its_optimizer = model_and_optimizer()
    assert bare[0].weight.is_meta
    again = mw.parallelize(bare, its_optimizer, loss_of, **QUICK)
    again.compile(last)
    with pytest.raises(PlanError, match=r"and \d+ others are on the meta device: make them"):
        again(last)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7 in .*: \[0, 1\]"):
        mw.restore(tmp_path, again, 7)
    assert mw.restore(tmp_path, again) == mw.latest(tmp_path) == 1
    torch.testing.assert_close(again(last), expected)
    assert mw.latest(tmp_path / "nowhere") is None

    other = nn.Linear(8, 8)
    smaller = mw.parallelize(other, torch.optim.SGD(other.parameters(), 0.1), loss_of, **QUICK)
    smaller.compile(last)
    with pytest.raises(CheckpointError, match="holds the state of the step that reads it"):
        mw.restore(tmp_path, smaller)


def test_a_step_saves_and_keeps_the_last_checkpoints(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    (batch,) = batches(1)
    step = mw.parallelize(model, optimizer, loss_of, batch, **QUICK)
    for number in range(4):
        step.save(tmp_path, number, keep=2)
        if number == 2:
            expected = step(batch)
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == [2, 3]
    assert step.restore(tmp_path, 2) == 2
    assert torch.equal(step(batch), expected)
    assert step.compile() is step.runtime
    assert "params['0.weight'] on stage 0" in str(step.explain("params['0.weight']"))


def test_batches_are_made_of_examples_in_an_order_to_go_on_with() -> None:
    model, optimizer = model_and_optimizer()
    examples = [{"x": torch.full((8,), float(i)), "y": np.full(8, i, "f")} for i in range(20)]
    step = mw.parallelize(model, optimizer, loss_of, **QUICK)
    with pytest.raises(PlanError, match="a step has a plan after its first call"):
        step.feed(examples)
    step.prepare(batches(1)[0])
    first, second, third = itertools.islice(step.feed(examples, seed=1), 3)
    assert {*first["x"][:, 0].int().tolist(), *second["x"][:, 0].int().tolist()} < {*range(20)}
    assert torch.equal(first["x"], first["y"])
    again = next(iter(step.feed(examples, seed=1, start=2)))
    assert torch.equal(again["x"], third["x"])
    step(first)
    assert len(step.variants) == 1
    with pytest.raises(BatchError, match=r"got dict\(x: \*\) instead of dict\(x: \*, y: \*\)$"):
        next(iter(step.feed([{"x": torch.zeros(8)}] * 8)))
    with pytest.raises(BatchError, match=r"got batch\['x'\] of torch.float32\[2\] instead of tor"):
        next(iter(step.feed([{"x": torch.zeros(2), "y": torch.zeros(8)}] * 8)))


def test_batches_of_what_has_no_rows_are_not_made() -> None:
    model, optimizer = model_and_optimizer()

    def scaled(model: nn.Module, batch: Any) -> torch.Tensor:
        return batch["scale"] * loss_of(model, batch)

    step = mw.parallelize(model, optimizer, scaled, batches(1)[0] | {"scale": 2.0}, **QUICK)
    with pytest.raises(
        BatchError, match=r"one row for each example; got .*batch\['scale'\] of shape \(\)"
    ):
        step.feed([])


def test_a_step_that_fails_leaves_the_state_as_it_was() -> None:
    model, optimizer = model_and_optimizer()
    (batch,) = batches(1)
    step = mw.parallelize(model, optimizer, loss_of, **QUICK)
    runtime = step.compile(batch)
    calls, begin = list(runtime._calls), step.state_dict()["model"]["0.weight"].clone()

    def fail(values: Any) -> None:
        raise KeyboardInterrupt

    runtime._calls[:] = [(0, fail), *calls]
    with pytest.raises(KeyboardInterrupt):
        step(batch)
    assert torch.equal(step.state_dict()["model"]["0.weight"], begin)
    runtime._calls[:] = [*calls, (0, fail)]
    with pytest.raises(KeyboardInterrupt):
        step(batch)
    runtime._calls[:] = calls
    assert torch.equal(step.state_dict()["model"]["0.weight"], begin)
    step(batch)
    assert not torch.equal(step.state_dict()["model"]["0.weight"], begin)


class Residual(nn.Module):
    """A block whose last bias gets its gradient in the next block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def test_equal_blocks_are_planned_by_a_few_of_them() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Residual() for _ in range(7)))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, eps=1e-2)
    (batch,) = batches(1)
    step = mw.parallelize(
        model, optimizer, loss_of, batch, cluster=CLUSTER, strategy="megatron", microbatches=1
    )
    assert step.planned.layered.n_layers >= 7
    assert step.verify(batch, n_steps=1).state < 1e-5


@pytest.mark.parametrize(
    ("environment", "hosts"),
    [
        ({}, ("virtual-cpu", 1, 8)),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, ("virtual-cpu", 1, 4)),
        ({"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2"}, ("two-hosts", 3, 2)),
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, ("two-hosts", 2, 2)),
        ({"WORLD_SIZE": "5", "LOCAL_WORLD_SIZE": "3"}, ("virtual-cpu", 1, 5)),
    ],
)
def test_the_default_cluster_is_what_the_launcher_started(
    environment: dict[str, str], hosts: tuple[str, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    cluster = mw.default_cluster()
    assert (cluster.name, cluster.n_hosts, cluster.devices_per_host) == hosts


@pytest.mark.parametrize(
    ("local_sizes", "hosts"),
    [([4, 4, 4, 4, 2, 2], (4, 2)), ([1, 2, 2], (1, 2)), ([2, 1, 2], (3,)), ([4, 4, 4], (3,))],
)
def test_hosts_with_unlike_numbers_of_processes_are_seen(
    local_sizes: list[int], hosts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(len(local_sizes)))
    monkeypatch.setattr(processes.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(processes.dist, "get_world_size", lambda: len(local_sizes))
    monkeypatch.setattr(processes, "gather", lambda word: [*map(str, local_sizes)])
    assert processes.processes_of_hosts() == hosts
    cluster = mw.default_cluster()
    assert tuple(host.n_devices for host in cluster.hosts) == hosts
