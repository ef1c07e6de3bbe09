"""What decides the price of a sharding, beside the graph, the mesh and the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from autoshard.baseline import Baseline
from autoshard.errors import OptionError

MemoryRule = Literal["limit", "largest"]
"""`limit`: live bytes are a constraint of the search. `largest`: the fewest of the largest
parameters are forced to be sharded (Rhino 4.4; see `largest`)."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `shard` that a sharding was found with; all others are about the search."""

    memory_bytes: int | None = None
    """What a device may hold; `None` is no limit."""
    memory_rule: MemoryRule = "limit"
    """How the limit is kept; see `MemoryRule`."""
    in_flight: int = 1
    """Microbatches whose saved activations are held at a time."""
    restrict: Baseline | None = None
    """The baseline that says how inputs are stored."""
    uneven: bool = False
    """Whether dims may be split that do not divide, padded; see `enumerate_strategies`."""
    strided: bool = False
    """Whether shards may be strided; see `enumerate_strategies`."""
    overlap: float = 0.0
    """The part of a phase's communication that runs while it computes, if it computes so long."""
    bucket_bytes: int | None = None
    """The largest bucket of small collectives; `None` runs each alone. See `bucket`."""

    def __post_init__(self) -> None:
        if self.in_flight < 1:
            raise OptionError(
                f"at least one microbatch is in flight; got in_flight={self.in_flight}"
            )
        if self.memory_bytes is not None and self.memory_bytes < 0:
            raise OptionError(
                f"a device holds a number of bytes; got memory_bytes={self.memory_bytes}"
            )
        if not 0.0 <= self.overlap < 1.0:
            raise OptionError(
                "overlap is the part of communication that is hidden, at least 0 and below 1; got "
                f"overlap={self.overlap}"
            )
        if self.bucket_bytes is not None and self.bucket_bytes < 1:
            raise OptionError(f"a bucket holds bytes; got bucket_bytes={self.bucket_bytes}")
        if self.memory_rule not in get_args(MemoryRule):
            raise OptionError(
                f"a memory rule is one of {get_args(MemoryRule)}; got {self.memory_rule!r}"
            )
