"""Four real processes: processes.py is what they do, here is what comes of it."""

import contextlib
import json
import os
import re
import socket
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from frontends.plan.schedule import names_that_run
from launching import run, started

N = 4
MPIEXEC = str(Path(sysconfig.get_path("scripts"), "mpiexec"))
PROGRAM = str(Path(__file__).with_name("processes.py"))
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


UNNOTICED = ["sh", "-c", '"$@"; status=$?; [ $status -lt 128 ] || sleep 60; exit $status', "sh"]
"""Keeps from mpiexec that a process was killed: it would kill the others at once, unheard, and with
`-disable-auto-cleanup` it does so every other time."""


def start(story: str, folder: Path, *wrapper: str) -> tuple[int, dict[int, dict[str, Any]], str]:
    """Exit status, what each process wrote, and what all of them printed."""
    status, log = launch([PROGRAM, story, str(folder)], folder, *wrapper)
    texts = {int(path.stem): path.read_text() for path in folder.glob("[0-9].json")}
    return status, {process: json.loads(text) for process, text in texts.items()}, log


def launch(program: Sequence[str], folder: Path, *wrapper: str, n: int = N) -> tuple[int, str]:
    """Exit status of a Python program in so many processes, and what all of them printed."""
    command = [MPIEXEC, "-n", str(n), *wrapper, sys.executable, *program]
    ended = run(command, deadline_s=400, errors=folder)
    return ended.status, ended.output


@pytest.mark.parametrize("schedule", names_that_run() if NIGHTLY else ["eager-1f1b"])
def test_processes_compute_the_single_device_step(schedule: str, tmp_path: Path) -> None:
    status, found, log = start(schedule, tmp_path)
    assert status == 0, log
    assert sorted(found) == list(range(N)), log
    assert max(result["worst"] for result in found.values()) <= 1e-5
    assert len({tuple(result["losses"]) for result in found.values()}) == 1, "whole everywhere"
    devices = [found[process]["devices"] for process in range(N)]
    assert devices in ([2, 2, 2, 1], [1, 1, 1, 1])


UNLIKE = (
    r"processes 0 and 1 have different values of state\[0\].*: seed what draws",
    r"processes 0 and 2 have different values of batch\['x'\]: seed what draws",
    r"processes 0 and 2 have different values of batch\['x'\]: seed what draws",
    r"process 0 gives \d+ values, and process 3 \d+: call it in the same way in all",
    r"processes 0 and 1 have different values of n: seed what draws",
    r"process 0 and process 3 have different numbers in mul\.\d+ \(.*factor \* loss.*\): let",
    r"is about to (read whole state, .* to call a step|call a step, .* to read whole state): let",
)


def test_processes_plan_the_same_variants_and_keep_their_state(tmp_path: Path) -> None:
    status, found, log = start("variants", tmp_path)
    assert status == 0, log
    assert sorted(found) == list(range(N)), log
    for result in found.values():
        assert result["ours"] == pytest.approx(result["expected"], rel=1e-5)
        assert result["held"] == [False, True, True, True, True]
        assert result["verified"] < 1e-5
        assert result["compared"] < 1e-5
        assert result["accumulated"] < 1e-5
        assert result["padded_to"] == 8
        assert result["alone"][0] == pytest.approx(result["alone"][1], rel=1e-5)
        assert result["follows"]
        for said, expected in zip(result["unlike"], UNLIKE, strict=True):
            assert re.search(expected, said)
        assert result["read"] == {"x": 2, "y": 2} or result["read"] == {"x": 1, "y": 1}
        for ours, expected in result["padded"]:
            assert ours == pytest.approx(expected, rel=1e-5)


REASONS = {
    "killed": r"process 2 on \S+ has not been heard of for \d+ s: it was killed or is stopped",
    "stopped": r"process 2 on \S+ has not been heard of for \d+ s: it was killed or is stopped",
    "raises": r"process 2 on \S+ failed: ValueError: no batch left",
    "hangs": r"no step stands still for 8 s; process 2 on \S+ is before step 2, and all others .*",
    "exits": r"process 2 on \S+ has ended after 2 steps, and process \d is in step 2: all .*",
}


@pytest.mark.parametrize(
    "story",
    [s if s != "stopped" else pytest.param(s, marks=pytest.mark.nightly) for s in REASONS],
)
def test_all_others_end_and_name_the_process_at_fault(story: str, tmp_path: Path) -> None:
    status, found, log = start(story, tmp_path, *(UNNOTICED if story == "killed" else []))
    assert status != 0
    assert not found
    for process in (0, 1, 3):
        said = Path(tmp_path, f"{process}.err").read_text()
        assert re.search(rf"^meshwright: process {process}: {REASONS[story]}$", said, re.M), log


def test_all_others_name_the_process_that_does_not_start(tmp_path: Path) -> None:
    status, found, log = start("absent", tmp_path)
    assert status != 0
    assert not found
    for process in (0, 1, 3):
        said = Path(tmp_path, f"{process}.err").read_text()
        assert f"process 2 of 4 has not, and process {process} has waited 15 s" in said, log


ENVIRONMENTS = {  # what launchers leave, as far as it is read
    "slurm": lambda process, number: {
        "SLURM_JOB_ID": str(number),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(process),
        "SLURM_LOCALID": str(process),
    },
    "open mpi 4": lambda process, number: {
        "OMPI_MCA_orte_hnp_uri": f"{4096 * number}.0;tcp://127.0.0.1:1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": str(process),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": str(process),
    },
}


@pytest.mark.parametrize("launcher", ENVIRONMENTS)
def test_init_joins_processes_that_jax_finds_by_their_environment(launcher: str) -> None:
    program = (
        "import frontends.jax as mw; mw.init(3, start_s=100); import jax; "
        "print(jax.process_index(), jax.local_device_count(), jax.device_count())"
    )
    number = _free_job()
    environments = [ENVIRONMENTS[launcher](process, number) for process in range(2)]
    with contextlib.ExitStack() as entered:
        both = [
            entered.enter_context(started([sys.executable, "-c", program], env=environment))
            for environment in environments
        ]
        said = [process.wait(200).output.splitlines()[-1] for process in both]
    assert said == ["0 2 3", "1 1 3"]


def test_init_refuses_a_launcher_of_another_mpi() -> None:
    foreign = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    command = [sys.executable, "-c", "import frontends.jax as mw; mw.init(3)"]
    ended = run(command, deadline_s=200, env=foreign)
    assert ended.status == 1
    said = "DeviceError: a launcher starts processes of its own MPI; it started 2, and"
    assert said in ended.output
    assert "library finds 1: take that library's mpiexec, or install mpi4py" in ended.output


def _free_job() -> int:
    """A number of a job whose port, which JAX makes of it, is free."""
    for number in range(os.getpid(), os.getpid() + 4096):
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", number % 4096 + 61440)):
                return number
    raise AssertionError("4096 ports in use")


def test_the_readmes_example_runs_in_four_processes(tmp_path: Path) -> None:
    status, found, log = start("readme", tmp_path)
    assert status == 0, log
    assert [found[process]["failed"] for process in range(N)] == [0] * N, log
    assert found[0]["attempted"] >= 10


def test_train_is_verified_and_told_by_one_process(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 8)
    sizes = "--layers 1 --d-model 16 --heads 2 --sequence 8 --batch 8 --steps 3 --devices 4"
    options = "--strategy equal_layers --microbatches 2"  # a search is for other tests
    command = ["-m", "frontends", "train", *sizes.split(), *options.split(), "--data", str(text)]
    status, log = launch([*command, "--output", str(tmp_path / "run")], tmp_path, n=2)
    assert status == 0, log
    said = [line for line in log.splitlines() if not line.startswith("[Gloo]")]
    for once in ("Text: ", "Verified: the first 3 losses", "Verified: the ", "Results: "):
        assert sum(line.startswith(once) for line in said) == (2 if once == "Verified: the " else 1)
    assert len(json.loads((tmp_path / "run" / "losses.json").read_text())["parallel"]) == 3
    assert (tmp_path / "run" / "plan.html").exists()
