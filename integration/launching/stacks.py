"""Shows the stacks of all threads of processes, even of those that hold Python's global lock.

Processes are found by `MARK` in their environment, so launchers between them do not matter, nor who
their parent is by now. When a process is told to abort, Python's fault handler writes the stacks.
This needs no code in the program and not the lock; the output goes where the process writes its
errors. If py-spy is installed and permitted to read the process, it shows C's frames, too.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "MESHWRIGHT_STARTED"
"""The environment variable with the marks of the call that started a process, and of the calls that
started the process of that call: "a/b"."""

ENVIRONMENT = {"PYTHONFAULTHANDLER": "1"}
"""The variables that processes need to show their stacks."""

_SPY_S = 30.0
_DYING_S = 10.0


def marked(mark: str) -> list[int]:
    """The living processes with a mark, sorted by number."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            marks = next((v for v in variables if v.startswith(f"{MARK}=")), "")
            if mark in marks.removeprefix(f"{MARK}=").split("/"):
                pids.append(int(folder.name))
    return sorted(pids)


def end(mark: str) -> None:
    """Kill all processes with a mark."""
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def show(mark: str) -> str:
    """Describe the processes with a mark, with their C frames if py-spy can read them.

    Processes that run Python write their stacks to their error output, and have ended when this
    returns. Launchers are stopped meanwhile, because they would kill all processes when the first
    one ends.
    """
    pids = marked(mark)
    python = [pid for pid in pids if _runs_python(pid)]
    launchers = {_parent(pid) for pid in pids} & {*pids}
    shown = [_described(pid) for pid in pids]
    asked = [pid for pid in python if pid not in launchers] or python
    shown += [text for pid in asked if (text := _spied(pid))]
    for pid in launchers - {*asked}:
        _tell(pid, signal.SIGSTOP)
    for pid in asked:
        with contextlib.suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        _tell(pid, signal.SIGABRT)
        _tell(pid, signal.SIGCONT)
    until_s = time.monotonic() + _DYING_S
    while {*asked} & {*marked(mark)} and time.monotonic() < until_s:
        time.sleep(0.02)
    for pid in launchers:
        _tell(pid, signal.SIGCONT)  # so that they pass on the output of the others
    return "\n".join(shown)


def _tell(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _runs_python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(os.readlink(f"/proc/{pid}/exe")).name.startswith("python")
    return False


def _described(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return f"process {pid}: {' '.join(words)[:200].strip()}"
    return f"process {pid}: has ended"


def _spied(pid: int) -> str:
    beside = Path(sys.executable).with_name("py-spy")
    spy = str(beside) if beside.exists() else shutil.which("py-spy")
    if spy is None:
        return ""
    try:
        done = subprocess.run(
            [spy, "dump", "--native", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=_SPY_S,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout
