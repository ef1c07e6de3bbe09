"""`Backend`: the interface of mpi, torch and jax for a calibration, and `join`, which makes one."""

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
"""`repeat(times)` runs an operation `times` times, one after the other, and returns when all are
done."""

KINDS = (
    "point_to_point",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "permute",
)
"""All collectives that are measured, in this order."""


class Backend(Protocol):
    """One process of a group, or the only process, with all virtual devices.

    All processes call the same methods in the same order. Operands are created, and programs are
    compiled, before a method returns its `Repeat`. A group of `n` consists of the first `n`
    processes; in the others `Repeat` does nothing.
    """

    rank: int
    n_processes: int
    """Number of processes, or virtual devices."""
    kinds: tuple[str, ...]
    """The collectives that the backend has, out of `KINDS`."""
    dtypes: tuple[str, ...]
    """The dtypes that matrix products can have."""
    versions: tuple[tuple[str, str], ...]
    """Versions of the libraries: (name, version)."""

    def collective(self, kind: str, n: int, n_bytes: int) -> Repeat:
        """A collective in a group of `n`, of `n_bytes` as in `costmodel.time.ring`, in float32."""
        ...

    def matmul(self, m: int, n: int, k: int, dtype: str) -> Repeat:
        """A matrix product on every device."""
        ...

    def stream(self, n_bytes: int) -> Repeat:
        """A pass that reads `n_bytes / 2` and writes as many, on every device."""
        ...

    def slowest(self, seconds: list[float]) -> list[float]:
        """For each entry, the largest value of all processes; all processes wait here."""
        ...

    def message(self, first: int, second: int, n_bytes: int) -> Repeat:
        """A message between two processes, there and back in turn; others do nothing."""
        ...

    def gather(self, text: str) -> list[str]:
        """The texts of all processes, by rank; all processes wait here."""
        ...

    def close(self) -> None:
        """Leaves the group."""
        ...


def repeating(once: Callable[[int], object]) -> Repeat:
    """A `Repeat` that calls `once` in a loop, with the number of earlier calls as its argument."""

    def repeat(times: int) -> None:
        for i in range(times):
            once(i)

    return repeat


def idle(times: int) -> None:
    """The `Repeat` of processes outside a group: does nothing."""


def require(backend: Name) -> None:
    """Checks that the libraries of a backend, and scipy for the fits, are installed.

    Raises:
        MissingExtraError: One of them is not.
    """
    if find_spec(_LIBRARIES[backend]) is None:
        raise MissingExtraError(f"backend {backend}", backend)
    if find_spec("scipy") is None:
        raise MissingExtraError("calibration", "calibrate")


def join(backend: Name, deadline_s: float) -> Backend:
    """Makes this process a member of the group that was started; waits for the other processes."""
    joined: Backend = import_module(f"costmodel.calibrate.{backend}").join(deadline_s)
    return joined
