"""What a backend does, and how to get one."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, Protocol, TypeAlias, get_args

from costmodel.errors import MissingExtraError

Name = Literal["mpi", "torch", "jax"]
NAMES: tuple[Name, ...] = get_args(Name)
_LIBRARIES = {"mpi": "mpi4py", "torch": "torch", "jax": "jax"}

Repeat: TypeAlias = Callable[[int], None]
"""Does an operation so many times, one after the other, and returns when all are done."""


class Backend(Protocol):
    """One process of a group, or a process with all virtual devices.

    All processes call the same methods in the same order. Operands are made, and programs compiled,
    before a method returns its `Repeat`. Groups are the first `n` processes; in the others `Repeat`
    does nothing.
    """

    rank: int
    n_processes: int
    """Processes, or virtual devices."""
    kinds: tuple[str, ...]
    """The collectives that there are, and "point_to_point"."""
    dtypes: tuple[str, ...]
    """That matrix products can have."""
    versions: tuple[tuple[str, str], ...]

    def collective(self, kind: str, n: int, n_bytes: int) -> Repeat:
        """A collective of `n` with `n_bytes`, as in `costmodel.time.ring`, all float32."""
        ...

    def matmul(self, m: int, n: int, k: int, dtype: str) -> Repeat:
        """A product on every device."""
        ...

    def stream(self, n_bytes: int) -> Repeat:
        """A pass that reads `n_bytes / 2` and writes as many, on every device."""
        ...

    def slowest(self, seconds: list[float]) -> list[float]:
        """The largest of all processes, entry by entry; all wait here for each other."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


def repeating(once: Callable[[int], object]) -> Repeat:
    """`once` in a loop; it is told how often it was called before."""

    def repeat(times: int) -> None:
        for i in range(times):
            once(i)

    return repeat


def idle(times: int) -> None:
    """What the processes outside a group do."""


def require(backend: Name) -> None:
    """Check that the libraries of a backend, and scipy for the fits, are there.

    Raises:
        MissingExtraError: One is not.
    """
    if find_spec(_LIBRARIES[backend]) is None:
        raise MissingExtraError(f"backend {backend}", backend)
    if find_spec("scipy") is None:
        raise MissingExtraError("calibration", "calibrate")


def join(backend: Name, deadline_s: float) -> Backend:
    """Become a process of the group that was started; waits for the others."""
    found: Backend = import_module(f"costmodel.calibrate.{backend}").join(deadline_s)
    return found
