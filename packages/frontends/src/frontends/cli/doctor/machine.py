"""The compiler, the launchers, the cores and the memory of this machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Where Linux says how much memory a container may take; "max" if there is no limit."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What this machine offers to this process."""

    system: str
    """System and architecture, such as `Linux x86_64`."""
    cores: int
    """Those that this process may use."""
    memory_bytes: int
    compiler: str | None
    """What the C++ compiler says of itself; None if there is none."""
    launchers: tuple[str, ...]
    """Those of `mpiexec`, `srun` and `torchrun` that are found."""


def look_around() -> Surroundings:
    """Find out what this machine offers."""
    names = ("mpiexec", "srun", "torchrun")
    return Surroundings(
        f"{platform.system()} {platform.machine()}",
        len(os.sched_getaffinity(0)),
        _memory_bytes(),
        _compiler(),
        tuple(name for name in names if _found(name)),
    )


def _found(name: str) -> bool:
    """Whether a program is in the PATH, or beside Python, where pip puts those that it installs."""
    beside = str(Path(sys.executable).parent)
    return any(shutil.which(name, path=path) for path in (None, beside))


def _memory_bytes() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(memory, int(_LIMIT.read_text()))
    except (OSError, ValueError):
        return memory


def _compiler() -> str | None:
    for name in (os.environ.get("CXX", "c++"), "g++", "clang++"):
        if shutil.which(name):
            try:
                done = subprocess.run(
                    [name, "--version"], capture_output=True, text=True, check=True, timeout=20
                )
            except (OSError, subprocess.SubprocessError):
                continue
            return done.stdout.partition("\n")[0]
    return None
