"""What decides the price of a sharding, beside the graph, the mesh and the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.baseline import Baseline


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `shard` that a sharding was found with; all others are about the search."""

    memory_bytes: int | None = None
    """What a device may hold; `None` is no limit."""
    in_flight: int = 1
    """Microbatches whose saved activations are held at a time."""
    restrict: Baseline | None = None
    """The baseline that says how inputs are stored."""
    uneven: bool = False
    """Whether dims may be split that do not divide, padded; see `enumerate_strategies`."""
    strided: bool = False
    """Whether shards may be strided; see `enumerate_strategies`."""
