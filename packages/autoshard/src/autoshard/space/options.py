"""The options that, besides the graph, the mesh and the cluster, decide the price of a sharding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, get_args

import numpy as np

from autoshard.errors import OptionError
from autoshard.space.baseline import Baseline

MemoryRule = Literal["limit", "largest"]
"""`limit`: live bytes are a constraint of the search. `largest`: the fewest of the largest
parameters are forced to be sharded (Rhino 4.4; see `largest_first`)."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `shard` that a sharding depends on; all others control the search."""

    memory_bytes: int | None = None
    """What a device may hold; `None` is no limit."""
    memory_rule: MemoryRule = "limit"
    """How the limit is kept; see `MemoryRule`."""
    in_flight: int = 1
    """Microbatches whose saved activations are held at a time."""
    restrict: Baseline | None = None
    """The baseline that prescribes how inputs are stored; `None` leaves it to the search."""
    uneven: bool = False
    """Whether dims may be split unevenly, with padding; see `enumerate_strategies`."""
    strided: bool = False
    """Whether shards may be strided; see `enumerate_strategies`."""
    overlap: float = 0.0
    """The part of a phase's communication that is hidden behind its compute, as far as that
    lasts."""
    bucket_bytes: int | None = None
    """The largest bucket of small collectives; `None` runs each one alone. See `bucket`."""

    def __post_init__(self) -> None:
        if self.memory_bytes == math.inf:
            object.__setattr__(self, "memory_bytes", None)
        for misfit in _misfits(self):
            raise OptionError(misfit)
        # JSON needs plain numbers: not numpy's, and an int rather than 16e9 bytes
        for name, of in _PLAIN.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, of(value))


_PLAIN: dict[str, type] = {
    "memory_bytes": int,
    "in_flight": int,
    "uneven": bool,
    "strided": bool,
    "overlap": float,
    "bucket_bytes": int,
}


def _misfits(options: Options) -> Iterator[str]:
    """Yield a sentence for each option that has the wrong type or is out of range."""
    if not (isinstance(options.in_flight, Integral) and int(options.in_flight) >= 1):
        yield f"at least one microbatch is in flight; got in_flight={options.in_flight!r}"
    if not (options.memory_bytes is None or _is_number_from(options.memory_bytes, 0.0)):
        yield (
            "a device holds a number of bytes, or None for no limit; got "
            f"memory_bytes={options.memory_bytes!r}"
        )
    if not (_is_number_from(options.overlap, 0.0) and options.overlap < 1.0):
        yield (
            "overlap is the part of communication that is hidden, at least 0 and below 1; got "
            f"overlap={options.overlap!r}"
        )
    if not (options.bucket_bytes is None or _is_number_from(options.bucket_bytes, 1.0)):
        yield (
            "a bucket holds at least one byte, or None runs each collective alone; got "
            f"bucket_bytes={options.bucket_bytes!r}"
        )
    for name in ("uneven", "strided"):
        if not isinstance(getattr(options, name), bool | np.bool_):
            yield f"{name} is True or False; got {name}={getattr(options, name)!r}"
    if options.memory_rule not in get_args(MemoryRule):
        yield f"a memory rule is one of {get_args(MemoryRule)}; got {options.memory_rule!r}"


def _is_number_from(value: object, least: float) -> bool:
    return isinstance(value, Real) and bool(least <= value < math.inf)  # type: ignore[operator]
