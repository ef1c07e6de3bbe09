"""The functions of Linux that a lab needs: commands, namespaces, mounts, a lock of processes."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import subprocess
from collections.abc import Iterator

STATE_DIR = "/run/netlab"
NETNS_DIR = "/run/netns"

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWNET = 0x40000000
MS_BIND = 4096
MS_REC = 16384
MS_SLAVE = 1 << 19

_UNITS = {"": 1, "bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_UNITS |= {"bps": 8, "kbps": 8 * 10**3, "mbps": 8 * 10**6, "gbps": 8 * 10**9}  # tc: bps is bytes


class NetlabError(RuntimeError):
    """A lab cannot be made or used as asked; the message says why."""


def parse_rate(text: str | float) -> int:
    """The bits per second of a rate in the notation of `tc`: "200mbit", "25mbps" (bytes), 2e8."""
    if isinstance(text, int | float):
        return int(text)
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in _UNITS:
        units = ", ".join(unit for unit in _UNITS if unit)
        raise NetlabError(f"a rate is a number and one of {units}; got {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def sh(*args: object, check: bool = True) -> str:
    """Run a command and return its output; if it fails, the error quotes the output."""
    words = [str(arg) for arg in args]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=300
    )
    if done.returncode and check:
        raise NetlabError(f"{' '.join(words)}: {done.stdout.strip()}")
    return done.stdout


def libc(function: str, *args: object) -> None:
    """Call a C library function that returns 0 on success (Python 3.11 has no os.setns)."""
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*args) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{function}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0) -> None:
    """Call mount(2) in the mount namespace of the calling process."""
    libc("mount", source.encode(), target.encode(), kind and kind.encode(), flags, None)


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """Keep two processes from building or removing labs at the same time."""
    os.makedirs(STATE_DIR, exist_ok=True)
    with open(f"{STATE_DIR}/.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
