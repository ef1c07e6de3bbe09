"""Where processes stand: the stacks of all their threads, also of those that hold Python's lock.

All that is started with `MARK` in its environment is found by it, whatever launchers are between,
and whoever its parent is by now. Python's own fault handler writes the stacks when a process is
told to abort; it needs neither a line of the program nor the lock, and what it writes goes where
the errors of the process go. Where py-spy is installed and may look, it shows C's frames, too.
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
"""The variable that tells by whom a process was started, and by whom the one that did: "a/b"."""

ENVIRONMENT = {"PYTHONFAULTHANDLER": "1"}
"""What processes need to be asked."""

_SPY_S = 30.0
_DYING_S = 10.0


def marked(mark: str) -> list[int]:
    """The processes that have a mark, and are not dead; in the order in which they began."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or is another user's
            variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            of = next((v for v in variables if v.startswith(f"{MARK}=")), "")
            if mark in of.removeprefix(f"{MARK}=").split("/"):
                found.append(int(folder.name))
    return sorted(found)


def end(mark: str) -> None:
    """Kill all processes that have a mark."""
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def show(mark: str) -> str:
    """What the processes with a mark are, and their C frames if py-spy can tell them.

    Those that run Python write their stacks to their errors, and have ended when this returns.
    Launchers are stopped meanwhile: at the first end they would kill the others.
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
        _tell(pid, signal.SIGCONT)  # they pass on what the others wrote
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
