"""Single steps to and from strided specs, for which the graph of plain ones has no moves.

A strided shard is made or read by one collective of shardspec whose parts are blocks of the local
array, moved in place before and after it: a slice, a gather, an exchange along the axes that cut it
in pieces. What takes more steps goes through a plain spec. Prices are costmodel's, of these steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from costmodel import MeshLinks, step_time
from shardspec import Layout, Mesh, Reduction, ReshardError, Spec, Split, Step, reshard

from autoshard.graph import Value
from autoshard.problem import Array

Place = tuple[int, int] | Reduction | None
"""Of an axis: the dim that it cuts and into how many parts that is cut before, how it is still to
be combined, or nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Seconds between a strided spec and each plain one, shape (plain specs,); infinite if no way.

    A single step leaves the strided spec or leads to it; all others are between plain ones.
    """

    first: Array
    """Of the single step from the strided spec."""
    there: Array
    """From the strided spec, all steps."""
    last: Array
    """Of the single step to the strided spec."""
    back: Array
    """To the strided spec, all steps."""


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
        """How a value gets from a strided spec to plain ones, and back.

        Args:
            value: What is converted.
            spec: The strided one.
            plain: The others.
            lengths: Seconds between these, shape (plain specs, plain specs).
        """
        first = np.array([self.seconds(value, spec, other) for other in plain])
        last = np.array([self.seconds(value, other, spec) for other in plain])
        there = (first[:, None] + lengths).min(axis=0)
        return Reach(first, there, last, (lengths + last[None, :]).min(axis=1))


@lru_cache(maxsize=1 << 16)
def single_step(
    shape: tuple[int, ...], mesh: Mesh, src: Spec, dst: Spec, uneven: bool = False
) -> Step | None:
    """The one step between two specs, one of them strided; `None` if it takes several.

    Args:
        shape: Of the tensor.
        mesh: Where.
        src: Before.
        dst: Afterwards.
        uneven: Whether it may be padded, in dims that are not strided.

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
        return None  # the pieces of a dim that is padded would be others
    if not all(layout.is_even for layout in layouts) or not _change_alike(src, dst, mesh):
        return None
    try:
        steps = reshard(*layouts).steps
    except ReshardError:
        return None
    return steps[0] if len(steps) == 1 else None


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


def _change_alike(src: Spec, dst: Spec, mesh: Mesh) -> bool:
    """Whether the axes that change all do so in one way: a quick no to what takes several steps."""
    before, after = _places(src, mesh), _places(dst, mesh)
    changes = {(_way(old), _way(new)) for old, new in zip(before, after, strict=True) if old != new}
    return len(changes) == 1 and not any(isinstance(new, str) for _, new in changes)


def _way(place: Place) -> str | bool:
    return place if isinstance(place, str) else place is not None


def _places(spec: Spec, mesh: Mesh) -> list[Place]:
    """Of each axis that has more than one device."""
    places: dict[int, Place] = {}
    for partial in spec.partial:
        if isinstance(partial.axis, int):
            places[partial.axis] = partial.kind
    for dim, entries in enumerate(spec.dims):
        above = 1
        for entry in entries:
            if isinstance(entry, int):
                places[entry] = (dim, above)
                above *= mesh.shape[entry]
            elif isinstance(entry, Split):
                above *= entry.factor
    return [places.get(axis) for axis, n in enumerate(mesh.shape) if n > 1]
