"""Four processes train, one is killed, and four others go on: training.py is what they do."""

import json
import os
import re
import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Any

import jax
import launching
import numpy as np
import pytest

N = 4
MPIEXEC = str(Path(sysconfig.get_path("scripts"), "mpiexec"))
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
PROGRAM = str(Path(__file__).with_name("training.py"))

Story = tuple[Path, str]
"""A folder, and the name of the run in it that ended early."""


UNNOTICED = ["sh", "-c", '"$@"; status=$?; [ $status -lt 128 ] || sleep 60; exit $status', "sh"]
"""Keeps from mpiexec that a process was killed: it would kill the others at once, unheard, and with
`-disable-auto-cleanup` it does so every other time."""


def run(folder: Path, name: str, *wrapper: str) -> tuple[int, str]:
    """Exit status of a run of all processes, and what they printed."""
    command = [MPIEXEC, "-n", str(N), *wrapper, sys.executable, PROGRAM, str(folder), name]
    ended = launching.run(command, deadline_s=400, errors=folder)
    return ended.status, ended.output


def reports(folder: Path, name: str) -> list[Any]:
    return [json.loads(Path(folder, f"{name}.{i}.json").read_text()) for i in range(N)]


@pytest.fixture(scope="module", params=["killed", "cut"] if NIGHTLY else ["killed"])
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A run that ended early, and one that went on."""
    name, folder = request.param, tmp_path_factory.mktemp("runs")
    status, log = run(folder, name, *UNNOTICED)
    assert status != 0, log
    checkpoints = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert checkpoints == (["2"] if name == "killed" else ["2", "3.orbax-checkpoint-tmp"])
    status, log = run(folder, "resumed")
    errors = "".join(path.read_text() for path in folder.glob("resumed.*.err"))
    assert status == 0, log + errors
    return folder, name


def test_all_others_name_the_process_that_was_killed(story: Story) -> None:
    folder, name = story
    for process in (0, 1, 3):
        said = Path(folder, f"{name}.{process}.err").read_text()
        assert re.search(rf"^meshwright: process {process}: process 2 on \S+ .*killed", said, re.M)


def test_the_run_goes_on_from_the_last_checkpoint_bit_for_bit(story: Story) -> None:
    folder, name = story
    before, after = reports(folder, name), reports(folder, "resumed")
    assert [s["step"] for s in before[0]["steps"]] == [0, 1, 2]
    assert [s["step"] for s in after[0]["steps"]] == [2, 3, 4]
    assert before[0]["stages"] == 2
    for process in range(N):
        assert after[process]["steps"][0] == before[process]["steps"][2]
        assert after[process]["kept"] == ([[1.0, 1.0, 1.0]] if process == N - 1 else [])


def test_losses_and_metrics_are_those_of_one_device_and_whole_everywhere(story: Story) -> None:
    folder, name = story
    training = runpy.run_path(PROGRAM)
    examples, n_rows = training["Examples"](), training["N_ROWS"]
    state = training["init"](jax.random.key(training["KEY"]))
    before, after = reports(folder, name), reports(folder, "resumed")
    for number in range(training["N_STEPS"]):
        first = number * n_rows % len(examples)
        rows = [examples[i] for i in range(first, first + n_rows)]
        batch = {name: np.stack([row[name] for row in rows]) for name in ("x", "y")}
        state, expected = jax.jit(training["train_step"])(*state, batch)
        for report in before if number < 2 else after:
            (found,) = [step for step in report["steps"] if step["step"] == number]
            assert found.keys() - {"step"} == expected.keys()
            for metric, value in expected.items():
                np.testing.assert_allclose(found[metric], value, rtol=1e-5, atol=1e-6)


def test_a_process_reads_only_the_examples_of_its_devices(story: Story) -> None:
    folder, _ = story
    rows = [set(report["rows"]) for report in reports(folder, "resumed")]
    for pair in (rows[:2], rows[2:]):  # the processes of a stage share a batch
        assert len(pair[0]) == len(pair[1]) == 32
        assert pair[0] | pair[1] == set(range(64))
