"""This machine, as far as a profile tells it from others."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from costmodel.base.checks import assign, count


@dataclass(frozen=True, slots=True)
class Machine:
    """What a profile was measured on.

    Raises:
        QuantityError: It has no core or no memory.
    """

    cpu: str
    """Model, as the system names it."""
    n_cores: int
    """That this process may use."""
    memory_bytes: int
    host: str
    """First 12 digits of the SHA-256 of the host's name, which itself nobody else needs to know."""

    def __post_init__(self) -> None:
        assign(
            self,
            n_cores=count("n_cores of a machine", self.n_cores, least=1),
            memory_bytes=count("memory_bytes of a machine", self.memory_bytes, least=1),
        )

    @classmethod
    def this(cls) -> Machine:
        """The machine that this runs on."""
        return cls(
            cpu=_cpu_model(),
            n_cores=n_cores(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            host=hashlib.sha256(platform.node().encode()).hexdigest()[:12],
        )

    def is_like(self, other: Machine) -> bool:
        """Whether the same times hold; the memory that systems report varies with their start."""
        return (self.cpu, self.n_cores, self.host) == (other.cpu, other.n_cores, other.host)

    def __str__(self) -> str:
        return f"{self.n_cores} cores of {self.cpu} (host {self.host})"


def n_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    """The processor's name as Linux knows it, or else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
