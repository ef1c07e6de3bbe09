"""A run goes on from its last checkpoint, on other devices and by another plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import frontends.jax as mj
import frontends.torch as mt
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from costmodel import Cluster
from frontends import CheckpointError, PlanError
from frontends.base.host_sizes import with_host_sizes
from frontends.jax.run import processes
from frontends.run.elastic import check_same
from torch import nn

STEPS = 10
CLUSTERS = [Cluster.preset("virtual-cpu").resized(devices_per_host=n) for n in (4, 2, 1)]
"""What is there at each start of a run."""

OPTIMIZER = optax.adam(1e-2, eps=1e-2)


def init(key: jax.Array) -> tuple[Any, Any]:
    params = {f"w{i}": jax.random.normal(k, (8, 8)) for i, k in enumerate(jax.random.split(key, 3))}
    return params, OPTIMIZER.init(params)


def train(params: Any, state: Any, batch: jax.Array) -> tuple[Any, Any, jax.Array]:
    def loss_of(params: Any) -> jax.Array:
        x = batch
        for w in params.values():
            x = jnp.tanh(x @ w)
        return jnp.mean((x - batch) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


def batch_of(number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(number).normal(size=(8, 8)).astype(np.float32)


def starts_in_jax(folder: Path, every: int) -> Iterator[tuple[int, float]]:
    """The losses of a run that is ended after some steps, and started again on other devices."""
    for cluster, most in zip(CLUSTERS, (4, 3, STEPS), strict=True):
        step = mj.parallelize(train, cluster=cluster)
        key = jax.random.key(0)
        step.prepare(*jax.eval_shape(init, key), batch_of(0))
        run = mj.elastic(step, folder, STEPS, init, key, every=every)
        for number in itertools.islice(run, most):
            *run.state, loss = step(*run.state, batch_of(number))
            yield number, float(loss)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_jax_goes_on_to_the_same_losses(every: int, tmp_path: Path, capsys: Any) -> None:
    found = [*starts_in_jax(tmp_path, every)]
    losses = dict(found)
    state = init(jax.random.key(0))
    for number in range(STEPS):
        *state, loss = jax.jit(train)(*state, batch_of(number))  # type: ignore[assignment]
        assert losses[number] == pytest.approx(float(loss), rel=1e-4)
    again = [number for number, _ in found[4:]]
    assert again[0] == 3 // every * every, "what was done after the checkpoint is done again"
    said = capsys.readouterr().err
    assert f"going on after step {again[0]} of {STEPS}" in said or again[0] == 0


def model_of() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 8))
    return model, torch.optim.AdamW(model.parameters(), 1e-2, eps=1e-2)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch), batch)


@pytest.mark.parametrize("every", [1, 3])
def test_torch_goes_on_to_the_same_losses(every: int, tmp_path: Path) -> None:
    losses: dict[int, float] = {}
    for cluster, most in zip(CLUSTERS, (4, 3, STEPS), strict=True):
        model, optimizer = model_of()
        step = mt.parallelize(model, optimizer, loss_of, cluster=cluster)
        step.prepare(torch.from_numpy(batch_of(0)))
        numbers = mt.elastic(step, tmp_path, STEPS, every=every)
        for number in itertools.islice(numbers, most):
            losses[number] = float(step(torch.from_numpy(batch_of(number))))
    model, optimizer = model_of()
    for number in range(STEPS):
        loss = loss_of(model, torch.from_numpy(batch_of(number)))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        assert losses[number] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert mt.latest(tmp_path) == STEPS


def test_processes_that_see_other_checkpoints_are_told(tmp_path: Path) -> None:
    check_same(tmp_path, ["None"])
    check_same(tmp_path, ["21", "21"])
    with pytest.raises(CheckpointError, match=r"process 0 sees 21 .* process 2 sees None"):
        check_same(tmp_path, ["21", "21", "None"])


class Counter:
    """Something with state beside model and optimizer."""

    def __init__(self) -> None:
        self.n = 0

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n = state["n"]


def test_nothing_that_was_saved_is_left_behind(tmp_path: Path) -> None:
    def start(**extra: Any) -> Iterator[int]:
        step = mt.parallelize(*model_of(), loss_of, cluster=CLUSTERS[-1])
        step.prepare(torch.from_numpy(batch_of(0)))
        for number in mt.elastic(step, tmp_path, 4, every=1, extra=extra):
            step(torch.from_numpy(batch_of(number)))
            yield number

    counter = Counter()
    for _ in itertools.islice(start(counter=counter), 3):
        counter.n += 1
    with pytest.raises(CheckpointError, match=r"has the extra \['counter'\], and extra= has \[\]"):
        next(start())
    again = Counter()
    assert next(start(counter=again)) == 2
    assert again.n == 2


@pytest.mark.parametrize("wrong", [None, train, "a step"])
def test_what_is_no_step_is_refused(wrong: Any, tmp_path: Path) -> None:
    for elastic in (mt.elastic, mj.elastic):
        with pytest.raises(
            PlanError, match=r"step is a ParallelStep; .* parallelize\(...\) makes one"
        ):
            elastic(wrong, tmp_path, 4, *[init] * (elastic is mj.elastic))


def test_hosts_with_unlike_numbers_of_processes_are_the_same_in_all_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PMI_SIZE", "6")
    sizes = ["4", "4", "4", "4", "2", "2"]
    monkeypatch.setattr(processes, "gather", lambda word, doing: sizes)
    for here in ("4", "2"):
        monkeypatch.setenv("MPI_LOCALNRANKS", here)
        assert processes.processes_of_hosts() == (4, 2)
    cluster = with_host_sizes(Cluster.preset("two-hosts"), (4, 2))
    assert [host.n_devices for host in cluster.hosts] == [4, 2]


def test_a_file_is_no_folder_of_checkpoints(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    step = mt.parallelize(*model_of(), loss_of, cluster=CLUSTERS[-1])
    step.prepare(torch.from_numpy(batch_of(0)))
    with pytest.raises(CheckpointError, match="is a file: name another"):
        mt.elastic(step, file, 4)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"every": -1}, {"steps": 2.5}, {"keep": 0}])
def test_what_is_no_number_of_steps_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    model, optimizer = model_of()
    step = mt.parallelize(model, optimizer, loss_of, cluster=CLUSTERS[-1])
    (name,) = wrong
    with pytest.raises(CheckpointError, match=f"got {name}="):
        mt.elastic(step, tmp_path, **{"steps": 5, **wrong})
    with pytest.raises(PlanError, match="a step has a plan after"):
        mt.elastic(step, tmp_path, 5)
