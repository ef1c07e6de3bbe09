"""`Machine`: what tells the machine of a profile from others."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from costmodel.base.checks import assign, count


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine on which a profile was measured.

    Raises:
        QuantityError: The machine has no core or no memory.
    """

    cpu: str
    """Model name, as the system reports it."""
    n_cores: int
    """Number of cores that the process may use."""
    memory_bytes: int
    """Memory of the whole machine."""
    host: str
    """First 12 digits of the SHA-256 of the host's name; the name itself is not stored."""

    def __post_init__(self) -> None:
        assign(
            self,
            n_cores=count("n_cores of a machine", self.n_cores, least=1),
            memory_bytes=count("memory_bytes of a machine", self.memory_bytes, least=1),
        )

    @classmethod
    def this(cls) -> Machine:
        """The machine that runs this process."""
        return cls(
            cpu=_cpu_model(),
            n_cores=n_cores(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            host=hashlib.sha256(platform.node().encode()).hexdigest()[:12],
        )

    def is_like(self, other: Machine) -> bool:
        """Whether `other` has the same times; the reported memory may change with a restart."""
        return (self.cpu, self.n_cores, self.host) == (other.cpu, other.n_cores, other.host)

    def __str__(self) -> str:
        return f"{self.n_cores} cores of {self.cpu} (host {self.host})"


def n_cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    """The processor's model name as Linux reports it, or else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
