"""Which elements of a tensor each device holds: the tiles of a layout, the boxes of a shard."""

import itertools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from shardspec import Layout, Reduction

Box = tuple[tuple[int, int], ...]
"""Start and stop in each dim of the whole tensor; `()` is the one element of a scalar."""

Runs = tuple[tuple[tuple[int, int], ...], ...]
"""For each dim, the intervals that a shard holds, in ascending order; the shard is the Cartesian
product of its dims' intervals."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of a tensor, with the devices whose shard is exactly this part."""

    runs: Runs
    """The part; a strided dim has several intervals."""
    terms: tuple[tuple[int, ...], ...]
    """The devices that hold each term of a partial sum, sorted; the terms are in the order of their
    coordinates along the partial axes, the major axis first. Without partial results there is one
    term: the devices that hold the part."""


Places = tuple[tuple[int, ...], ...]
"""For each dim, the coordinates of a device along the axes that shard it."""


def holders(layout: Layout) -> dict[Places, tuple[tuple[int, ...], ...]]:
    """Group the devices that hold the same elements: those with the same places in all dims.

    The groups depend on the mesh and the spec alone, not on the shape.

    Returns:
        For each combination of places, the devices of each term, as in `Tile.terms`.
    """
    mesh, partial = layout.mesh, layout.spec.partial
    sharding = [layout.spec.sharding_of(dim) for dim in range(len(layout.shape))]
    groups: defaultdict[Places, defaultdict[tuple[int, ...], list[int]]]
    groups = defaultdict(lambda: defaultdict(list))
    for device in mesh.device_ids:
        at = mesh.coordinates(device)
        places = tuple(tuple(mesh.coordinate(at, axis) for axis in axes) for axes in sharding)
        groups[places][tuple(mesh.coordinate(at, p.axis) for p in partial)].append(device)
    return {
        places: tuple(tuple(sorted(devices)) for _, devices in sorted(terms.items()))
        for places, terms in groups.items()
    }


def tiles(
    layout: Layout, held: Mapping[Places, tuple[tuple[int, ...], ...]] | None = None
) -> tuple[Tile, ...]:
    """The distinct shards of a layout, sorted by position; empty ones and padding are left out.

    Args:
        layout: Any layout.
        held: The result of `holders` for this layout, or for another one with the same mesh and
            spec. None: computed here.

    Examples:
        >>> from shardspec import Layout, Mesh, Spec
        >>> mesh = Mesh((2, 2), ("x", "y"))
        >>> for tile in tiles(Layout((8,), mesh, Spec.parse("S[2]0+P1"))):
        ...     print(tile)
        Tile(runs=(((0, 2), (4, 6)),), terms=((0,), (1,)))
        Tile(runs=(((2, 4), (6, 8)),), terms=((2,), (3,)))
    """
    distinct = []
    runs_at: list[dict[tuple[int, ...], tuple[tuple[int, int], ...]]] = [{} for _ in layout.shape]
    for places, terms in (held or holders(layout)).items():
        # Each dim is cut independently, so its intervals are looked up once for each place.
        if any(place not in known for place, known in zip(places, runs_at, strict=True)):
            for place, known, runs in zip(places, runs_at, layout.runs(terms[0][0]), strict=True):
                known[place] = runs
        tile = tuple(known[place] for place, known in zip(places, runs_at, strict=True))
        if all(tile):
            distinct.append(Tile(tile, terms))
    return tuple(sorted(distinct, key=lambda tile: tile.runs))


def reduction(layout: Layout) -> tuple[tuple[Reduction, int], ...]:
    """How the terms of a tile combine: levels of (kind, number of terms), major to minor.

    `(("sum", 2), ("max", 3))` is the sum of two maxima of three terms each; `()` means that there
    is one term. Adjacent levels of the same kind are merged into one, which gives the same result,
    except that an average of integers is rounded once instead of once a level.
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

    They are in the order of the tensor, and none is empty. Padding is in no box; in the array it
    lies behind them.

    Raises:
        UnknownDeviceError: The device is not in the layout's mesh.

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
    """The number of elements in a box."""
    n = 1
    for start, stop in box:  # twice as fast as math.prod of a generator
        n *= stop - start
    return n
