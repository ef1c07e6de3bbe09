"""Single steps to and from strided specs, for which the graph of plain specs has no moves.

A strided shard is created or read by one collective of shardspec, whose parts are blocks of the
local array that are rearranged before and after it: a slice, an all-gather, a reduction, an
all-to-all to other dims, or an exchange along the axes that split a dim. Conversions of more than
one step go through a plain spec. The prices are costmodel's for these steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from costmodel import MeshLinks, step_time
from shardspec import (
    WHOLE_AXES,
    Layout,
    Mesh,
    Reduction,
    ReshardError,
    Spec,
    Split,
    Step,
    reshard,
)

from autoshard.base.arrays import Array
from autoshard.errors import InternalError
from autoshard.graph.graph_fields import Value

EXCHANGES = 64
"""The most devices on which exchanges are used. Pricing an exchange counts, for each device, how
much it sends to whom: 0.3 s for one step on 256 devices [measured on two cores, 2026-11-20]. On
more devices, an all-to-all to another dim and one back, or an all-gather, takes its place."""
Place = tuple[int, int] | Reduction | None
"""What an axis does in a spec: (the dim that it splits, into how many parts the dim is cut before),
the reduction of the partial results along it, or `None`."""


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Seconds between a strided spec and each plain one, shape (plain specs,); infinite if no path.

    One step leaves the strided spec or leads to it; all others are between plain specs.
    """

    first: Array
    """From the strided spec, by a single step."""
    there: Array
    """From the strided spec, by the fastest path."""
    last: Array
    """To the strided spec, by a single step."""
    back: Array
    """To the strided spec, by the fastest path."""


@dataclass(frozen=True, slots=True, eq=False)
class StridedMoves:
    """Prices the steps to and from strided specs on a mesh."""

    mesh: Mesh
    links: MeshLinks
    uneven: bool
    """Whether tensors may be padded."""

    def seconds(self, value: Value, src: Spec, dst: Spec) -> float:
        """Seconds of the one step between two specs; infinite if there is none."""
        step = single_step(value.shape, self.mesh, src, dst, self.uneven)
        return math.inf if step is None else step_time(step, value.itemsize, self.links)

    def reach(self, value: Value, spec: Spec, plain: Sequence[Spec], lengths: Array) -> Reach:
        """Seconds from a strided spec to plain ones, and back.

        Args:
            value: The value to convert.
            spec: The strided spec.
            plain: The plain specs.
            lengths: Seconds between the plain specs, shape (plain specs, plain specs).
        """
        first = np.array([self.seconds(value, spec, other) for other in plain])
        last = np.array([self.seconds(value, other, spec) for other in plain])
        there = (first[:, None] + lengths).min(axis=0)
        return Reach(first, there, last, (lengths + last[None, :]).min(axis=1))


@lru_cache(maxsize=1 << 16)
def single_step(
    shape: tuple[int, ...], mesh: Mesh, src: Spec, dst: Spec, uneven: bool = False
) -> Step | None:
    """The step between two specs, at least one of them strided; `None` if one step is not enough.

    Args:
        shape: The tensor's shape.
        mesh: The mesh of both specs.
        src: The spec before the step.
        dst: The spec after it.
        uneven: Whether the tensor may be padded, in dims that are not strided.

    Examples:
        >>> mesh = Mesh((2,), ("x",))
        >>> for dst in ("S0", "R"):
        ...     print(single_step((8,), mesh, Spec.parse("S[2]0"), Spec.parse(dst)))
        all_to_all over axis 0: S[2]0 -> S0
        all_gather over axis 0: S[2]0 -> R
    """
    layouts = padded_layouts(shape, mesh, src, dst)
    strided = [
        dim for dim in range(len(shape)) if any(map(_is_cut, (src.dims[dim], dst.dims[dim])))
    ]
    fixed = strided if uneven else range(len(shape))
    if any(layouts[0].shape[dim] != shape[dim] for dim in fixed):
        return None  # padding a strided dim would change its pieces
    if not all(layout.is_even for layout in layouts):
        return None
    before, after = _places(src, mesh), _places(dst, mesh)
    moved = [axis for axis in before if before[axis] != after[axis]]
    changes = {(_role(before[axis]), _role(after[axis])) for axis in moved}
    if len(changes) != 1:
        return None
    ((old, new),) = changes
    if (old, new) == ("dim", None):
        return Step("all_gather", _in_order(moved, before), None, None, None, *layouts)
    if (old, new) == (None, "dim"):
        return Step("slice", _in_order(moved, after), None, None, None, *layouts)
    turned = False
    if (old, new) == ("dim", "dim"):
        left, entered = ({_dim(of[axis]) for axis in moved} for of in (before, after))
        if left.isdisjoint(entered):
            return Step("all_to_all", _in_order(moved, before), None, None, None, *layouts)
        if mesh.size > EXCHANGES:
            return None
        turned = any(_dim(before[axis]) != _dim(after[axis]) for axis in moved)
    elif new not in ("dim", None):
        return None
    try:  # shardspec decides which partial results can be combined, and how
        steps = reshard(*layouts).steps
    except ReshardError:
        return None
    if len(steps) != 1 or (turned and steps[0].kind not in WHOLE_AXES):
        return None
    return steps[0]


def padded_layouts(shape: tuple[int, ...], mesh: Mesh, *specs: Spec) -> tuple[Layout, ...]:
    """The layouts of a tensor in some specs, padded so that all of them are even.

    Examples:
        >>> specs = (Spec.parse("S0"), Spec.parse("R"))
        >>> [layout.shape for layout in padded_layouts((10,), Mesh((4,), ("x",)), *specs)]
        [(12,), (12,)]
    """
    padded = []
    for dim, size in enumerate(shape):
        n = math.lcm(*(mesh.axis_size(spec.sharding_of(dim)) for spec in specs))
        padded.append(-(-size // n) * n)
    return tuple(Layout(tuple(padded), mesh, spec) for spec in specs)


def _is_cut(entries: Sequence[object]) -> bool:
    return any(isinstance(entry, Split) for entry in entries)


def _places(spec: Spec, mesh: Mesh) -> dict[int, Place]:
    """What each axis of more than one device does in a spec."""
    places: dict[int, Place] = {axis: None for axis, n in enumerate(mesh.shape) if n > 1}
    for partial in spec.partial:
        if isinstance(partial.axis, int) and partial.axis in places:
            places[partial.axis] = partial.kind
    for dim, entries in enumerate(spec.dims):
        above = 1
        for entry in entries:
            if isinstance(entry, Split):
                above *= entry.factor
            else:
                if isinstance(entry, int) and entry in places:
                    places[entry] = (dim, above)
                above *= mesh.length(entry)
    return places


def _role(place: Place) -> str | None:
    return "dim" if isinstance(place, tuple) else place


def _dim(place: Place) -> int:
    if not isinstance(place, tuple):
        raise InternalError(f"an axis that splits a dim has a position in it; got {place!r}")
    return place[0]


def _in_order(axes: list[int], places: dict[int, Place]) -> tuple[int, ...]:
    """Axes ordered by the dims and parts that they split, the order that shardspec uses."""
    return tuple(sorted(axes, key=lambda axis: places[axis] or ()))
