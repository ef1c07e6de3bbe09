"""Four real processes: processes.py is what they do, here is what comes of it."""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

N = 4
MPIEXEC = str(Path(sysconfig.get_path("scripts"), "mpiexec"))
PROGRAM = str(Path(__file__).with_name("processes.py"))
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"

pytest.importorskip("mpi4py", reason="processes talk to each other by MPI", exc_type=ImportError)


def start(story: str, folder: Path) -> tuple[int, dict[int, dict[str, object]], str]:
    """Exit status, what each process wrote, and what all of them printed."""
    log = folder / "log.txt"
    with (
        log.open("w") as output,
        subprocess.Popen(
            [MPIEXEC, "-n", str(N), sys.executable, PROGRAM, story, str(folder)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as ranks,
    ):
        try:
            ranks.wait(timeout=400)
        finally:
            for pid in _session(ranks.pid):
                os.kill(pid, signal.SIGKILL)
    texts = {int(path.stem): path.read_text() for path in folder.glob("[0-9].json")}
    return ranks.returncode, {r: json.loads(text) for r, text in texts.items()}, log.read_text()


def _session(leader: int) -> list[int]:
    """What is left of a session; a process that is stopped does not end with its launcher."""
    lines = subprocess.run(["ps", "-eo", "pid=,sid="], capture_output=True, text=True).stdout
    pairs = (line.split() for line in lines.splitlines())
    return [int(pid) for pid, session in pairs if int(session) == leader]


@pytest.mark.parametrize("story", ["unequal", "v"] if NIGHTLY else ["unequal"])
def test_processes_compute_the_single_device_step(story: str, tmp_path: Path) -> None:
    status, found, log = start(story, tmp_path)
    assert status == 0, log
    assert sorted(found) == list(range(N)), log
    assert max(result["worst"] for result in found.values()) <= 1e-5
    assert len({tuple(result["losses"]) for result in found.values()}) == 1, "whole everywhere"
    devices = [found[process]["devices"] for process in range(N)]
    assert devices == ([2, 2, 2, 1] if story == "unequal" else [1, 1, 1, 1])


def test_all_others_name_the_process_that_is_stopped(tmp_path: Path) -> None:
    status, found, log = start("stopped", tmp_path)
    assert status != 0
    assert not found
    reason = r"process 2 on \S+ has not been heard of for \d+ s: it was killed or is stopped"
    for process in (0, 1, 3):
        said = Path(tmp_path, f"{process}.err").read_text()
        assert re.search(rf"^meshwright: process {process}: {reason}", said, re.M), log
