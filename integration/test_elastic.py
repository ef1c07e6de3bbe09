"""A run that loses a host goes on with what is left, to the losses of one that lost nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from elastic.agents import Ended, run
from elastic.program import batch_of, loss_of, make

STEPS, EVERY = 60, 7
"""Of the runs at night; by day they are shorter."""


def single_device_losses(steps: int) -> list[float]:
    """The losses of one device."""
    model, optimizer = make()
    losses = []
    for number in range(steps):
        loss = loss_of(model, batch_of(number))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def check(ended: Ended, steps: int) -> None:
    assert [*ended.losses] == [*range(steps)]
    assert ended.worlds == [3, 2]
    assert [*ended.losses.values()] == pytest.approx(single_device_losses(steps), rel=1e-5)


def test_a_run_whose_host_is_killed_ends_with_the_losses_of_one_device(tmp_path: Path) -> None:
    ended = run(tmp_path, 24, EVERY, kill_after=9)
    check(ended, 24)
    assert "meshwright: going on after step 7 of 24" in ended.output


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_wherever_the_host_is_killed(seed: int, tmp_path: Path) -> None:
    kill_after = random.Random(seed).randrange(STEPS - 9)
    check(run(tmp_path, STEPS, EVERY, kill_after), STEPS)


TRAIN = [
    *(sys.executable, "-m", "frontends", "train", "--elastic", "--layers", "1", "--d-model", "16"),
    *("--heads", "2", "--sequence", "8", "--batch", "8", "--microbatches", "2", "--steps", "24"),
    *("--verify-steps", "0", "--checkpoint-every", "3", "--cluster", "virtual-cpu"),
]
MPIEXEC = Path(sys.executable).with_name("mpiexec")


def start_training(folder: Path, n: int) -> subprocess.Popen[bytes]:
    """Train with as many devices as there are processes."""
    launcher = [str(MPIEXEC), "-n", str(n)] if n > 1 else []
    outputs = ["--checkpoints", str(folder / "checkpoints"), "--output", str(folder)]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [*launcher, *TRAIN, *outputs],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def losses_after(folder: Path) -> dict[int, float]:
    """By step, the losses of the last start."""
    found = json.loads((folder / "losses.json").read_text())
    return dict(enumerate(found["parallel"], found["after_step"]))


def test_the_main_job_goes_on_in_a_loop_around_mpiexec(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    assert start_training(whole, 1).wait(300) == 0
    training = start_training(broken, 3)
    until_s = time.monotonic() + 200
    while not (broken / "checkpoints" / "6").is_dir():
        assert time.monotonic() < until_s
        assert training.poll() is None, (broken / "log").read_text()[-3000:]
        time.sleep(0.05)
    for process in _training_in(broken)[:1]:
        os.kill(process, signal.SIGKILL)
    assert training.wait(120) != 0
    assert start_training(broken, 2).wait(300) == 0, (broken / "log").read_text()[-3000:]
    ours, expected = losses_after(broken), losses_after(whole)
    assert min(ours) >= 6
    assert max(ours) == 23
    assert list(ours.values()) == pytest.approx([expected[n] for n in ours], rel=1e-5)


def _training_in(folder: Path) -> list[int]:
    """The processes that train in a folder, by their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"frontends" in words[:4] and os.fsencode(folder) in words:
            found.append(int(path.parent.name))
    return found
