"""Three real processes, one of which is at fault: torch_faults.py is what they do."""

import contextlib
import os
import re
import signal
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from launching import run, started

N, AT_FAULT = 3, 1
PROGRAM = str(Path(__file__).parents[1] / "torch_faults.py")
LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone"],
    "mpiexec": [str(Path(sysconfig.get_path("scripts"), "mpiexec")), "-n", str(N)],
}
LAUNCHERS["torchrun"] += ["--nproc-per-node", str(N)]
UNNOTICED = ["sh", "-c", '"$@"; status=$?; [ $status -lt 128 ] || sleep 60; exit $status', "sh"]
"""Keeps from mpiexec that a process was killed: it would kill the others at once, unheard."""

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
REASONS = {
    "killed": r"process 1 on \S+ has not been heard of for \d+ s: it was killed or is stopped",
    "stopped": r"process 1 on \S+ has not been heard of for \d+ s: it was killed or is stopped",
    "raises": r"process 1 on \S+ failed: ValueError: no batch left",
    "hangs": r"no step stands still for 6 s; process 1 on \S+ is before step 2, and all others .*",
    "exits": r"process 1 on \S+ has ended after 2 steps, and process \d is in step 2: all .*",
}
CASES = [(launcher, story) for launcher in LAUNCHERS for story in REASONS]


TWICE = """
import torch.distributed as dist
from frontends.errors import DeviceError
from frontends.torch.run.watch import watch

store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
assert watch() is watch()
dist.destroy_process_group()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
try:
    watch()
except DeviceError as error:
    print(error)
dist.destroy_process_group()
"""


def test_processes_that_join_again_are_refused() -> None:
    """The watch would hear, and count, those of before."""
    done = run([sys.executable, "-c", TWICE], deadline_s=300)
    assert (done.status, "start new processes" in done.output) == (0, True), done.output


@pytest.mark.parametrize(
    ("launcher", "story"),
    CASES if NIGHTLY else [("torchrun", "stopped")],
)
def test_all_others_end_and_name_the_process_at_fault(
    launcher: str, story: str, tmp_path: Path
) -> None:
    wrapper = []
    if launcher == "mpiexec":
        wrapper = [*(UNNOTICED if story == "killed" else []), sys.executable]
    command = [*LAUNCHERS[launcher], *wrapper, PROGRAM, story, str(tmp_path)]
    with started(command, errors=tmp_path) as processes:
        said = heard(tmp_path)
        end(tmp_path)  # torchrun waits for it for 30 s
        ended = processes.wait(60)
    assert ended.status != 0
    assert not list(tmp_path.glob("*.done"))
    for process, text in said.items():
        assert re.search(rf"^meshwright: process {process}: {REASONS[story]}$", text, re.M), text


def test_processes_name_the_line_of_an_operator_that_fails_in_each(tmp_path: Path) -> None:
    said = (
        r"StepError: .*; aten.embedding.default, at \S+torch_faults.py:\d+: `return model\(rows\).*"
        r"`, fails in forward of stage 0, on params\['weight'\] float32\[4, 4\] and batch "
        r"int64\[6\]: IndexError: index"
    )
    command = [*LAUNCHERS["torchrun"], PROGRAM, "looks too far", str(tmp_path)]
    with started(command, errors=tmp_path) as processes:
        ended = processes.wait(200)
    assert ended.status != 0
    for process in range(N):
        text = Path(tmp_path, f"{process}.err").read_text()
        assert re.search(said, text), text


def heard(folder: Path) -> dict[int, str]:
    """What the others have said, when all have said why they end; or when they are late."""
    others = [process for process in range(N) if process != AT_FAULT]
    until_s = time.monotonic() + 200
    said: dict[int, str] = {}
    while time.monotonic() < until_s:
        for process in others:
            with contextlib.suppress(FileNotFoundError):
                said[process] = Path(folder, f"{process}.err").read_text()
        if len(said) == len(others) and all("meshwright: " in text for text in said.values()):
            break
        time.sleep(0.1)
    return said


def end(folder: Path) -> None:
    """A process that is stopped does not end otherwise."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(Path(folder, "at-fault").read_text()), signal.SIGKILL)
