"""What each device holds of a tensor: tiles of a layout, and the boxes of a shard."""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from shardspec import Layout, Reduction

Box = tuple[tuple[int, int], ...]
"""Start and stop in each dim of the whole tensor; `()` is the one element of a scalar."""

Runs = tuple[tuple[tuple[int, int], ...], ...]
"""For each dim the intervals that a shard has of it, rising; the shard is their product."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of a tensor that some devices hold, all of it and no more of the tensor."""

    runs: Runs
    """Which part; several intervals in a dim if it is strided."""
    terms: tuple[tuple[int, ...], ...]
    """The devices, sorted. With partial results, those of each addend, the major axis first."""


Places = tuple[tuple[int, ...], ...]
"""For each dim the coordinates of a device along the axes that shard it."""


def holders(layout: Layout) -> dict[Places, tuple[tuple[int, ...], ...]]:
    """The devices at the same places, which hold the same; depends on mesh and spec alone.

    Returns:
        For each set of places the devices of each term, as in `Tile.terms`.
    """
    mesh, partial = layout.mesh, layout.spec.partial
    sharding = [layout.spec.sharding_of(dim) for dim in range(len(layout.shape))]
    found: defaultdict[Places, defaultdict[tuple[int, ...], list[int]]]
    found = defaultdict(lambda: defaultdict(list))
    for device in mesh.device_ids:
        at = mesh.coordinates(device)
        places = tuple(tuple(mesh.coordinate(at, axis) for axis in axes) for axes in sharding)
        found[places][tuple(mesh.coordinate(at, p.axis) for p in partial)].append(device)
    return {
        places: tuple(tuple(sorted(devices)) for _, devices in sorted(terms.items()))
        for places, terms in found.items()
    }


def tiles(
    layout: Layout, held: Mapping[Places, tuple[tuple[int, ...], ...]] | None = None
) -> tuple[Tile, ...]:
    """The distinct shards of a layout that have elements, by position; padding is in none.

    Args:
        layout: Any.
        held: What `holders` says of it, or of another layout with the same mesh and spec.

    Examples:
        >>> from shardspec import Layout, Mesh, Spec
        >>> mesh = Mesh((2, 2), ("x", "y"))
        >>> for tile in tiles(Layout((8,), mesh, Spec.parse("S[2]0+P1"))):
        ...     print(tile)
        Tile(runs=(((0, 2), (4, 6)),), terms=((0,), (1,)))
        Tile(runs=(((2, 4), (6, 8)),), terms=((2,), (3,)))
    """
    found = []
    runs_at: list[dict[tuple[int, ...], tuple[tuple[int, int], ...]]] = [{} for _ in layout.shape]
    for places, terms in (held or holders(layout)).items():
        # A dim is cut by itself: its intervals are looked up once for each place along it.
        if any(place not in known for place, known in zip(places, runs_at, strict=True)):
            for place, known, runs in zip(places, runs_at, layout.runs(terms[0][0]), strict=True):
                known[place] = runs
        tile = tuple(known[place] for place, known in zip(places, runs_at, strict=True))
        if all(tile):
            found.append(Tile(tile, terms))
    return tuple(sorted(found, key=lambda tile: tile.runs))


def reduction(layout: Layout) -> tuple[tuple[Reduction, int], ...]:
    """How the terms of a tile combine: kinds and numbers, major to minor; () if there is one.

    `(("sum", 2), ("max", 3))` is the sum of two maxima of three terms each. Neighbours of one kind
    are one level, which makes no difference (an average of integers is then rounded once).
    """
    levels: list[tuple[Reduction, int]] = []
    for partial in layout.spec.partial:
        count = layout.mesh.length(partial.axis)
        if levels and levels[-1][0] == partial.kind:
            levels[-1] = (partial.kind, levels[-1][1] * count)
        elif count > 1:
            levels.append((partial.kind, count))
    return tuple(levels)


def shard_boxes(layout: Layout, device: int) -> tuple[tuple[Box, tuple[int, ...]], ...]:
    """The boxes that make up a device's shard, each with its offset in the device's array.

    They are in the tensor's order, not empty, and leave out padding, which lies behind them.

    Raises:
        UnknownDeviceError: the device is not in the layout's mesh.

    Examples:
        >>> from shardspec import Layout, Mesh, Spec
        >>> shard_boxes(Layout((8,), Mesh((2,), ("x",)), Spec.parse("S[2]0")), 1)
        ((((2, 4),), (0,)), (((6, 8),), (2,)))
    """
    runs = layout.runs(device)
    offsets = [
        [0, *itertools.accumulate(stop - start for start, stop in of_dim)][:-1] for of_dim in runs
    ]
    return tuple(zip(itertools.product(*runs), itertools.product(*offsets), strict=True))


def n_elements(box: Box) -> int:
    """Elements in a box."""
    return math.prod(stop - start for start, stop in box)
