"""`transfers`: which device sends what to which, in a step that reduces nothing."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from shardspec.base.axis import Axis
from shardspec.base.chunking import Run
from shardspec.layout.layout import Layout
from shardspec.layout.spec import sharding_axes
from shardspec.refine.refine import FREE, refine


@dataclass(frozen=True, slots=True)
class Transfer:
    """A part of the tensor that one device gets from another, or keeps."""

    sender: int
    """Device id."""
    receiver: int
    """Device id; equal to `sender` if the device keeps the part."""
    runs: tuple[tuple[Run, ...], ...]
    """For each dim, the intervals of indices in the whole tensor."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(sum(stop - start for start, stop in runs) for runs in self.runs)


def transfers(src: Layout, dst: Layout, axes: tuple[Axis, ...]) -> Iterator[Transfer]:
    """Where each device gets its shard of `dst` from, within groups along `axes`.

    If several devices hold a block, the sender is the one with the receiver's coordinates along the
    axes that shard nothing. So what a device already has stays, and replicas share the sending. If
    such an axis replaces another that becomes free, the coordinates along the two are swapped (a
    permutation, in which every device sends to one).

    Args:
        src: Layout before; with the same partial results as `dst`.
        dst: Layout after.
        axes: The axes of the step.
    """
    mesh = src.mesh
    pairs = _partners(src, dst)
    sharding = set(sharding_axes(src.spec))
    rest = [(part, part) for part in mesh.parts(sharding) if part not in sharding]
    fixed = pairs if pairs is not None else rest
    for group in mesh.groups(axes):
        at = {device: mesh.coordinates(device) for device in group}
        held = {device: src.runs(device) for device in group}
        for receiver in group:
            wanted = dst.runs(receiver)
            for sender in group:
                if all(
                    mesh.coordinate(at[sender], of_sender)
                    == mesh.coordinate(at[receiver], of_receiver)
                    for of_sender, of_receiver in fixed
                ):
                    runs = tuple(map(common, held[sender], wanted))
                    if all(runs):
                        yield Transfer(sender, receiver, runs)


def common(a: tuple[Run, ...], b: tuple[Run, ...]) -> tuple[Run, ...]:
    """The intersection of two lists of intervals, each in rising order."""
    intersection = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, stop = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < stop:
            intersection.append((start, stop))
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(intersection)


def _partners(src: Layout, dst: Layout) -> list[tuple[Axis, Axis]] | None:
    """Which coordinates of sender and receiver are equal, for each atom that is free in `src`.

    Pairs of an axis of the sender and one of the receiver; None if there are no common units.
    """
    units = refine(src, dst)
    if units is None:
        return None
    standing = {place: atom for atom, place in enumerate(units.src) if place >= 0}
    pairs = []
    for atom, place in enumerate(units.src):
        if place >= 0:
            continue
        end = atom
        while units.dst[end] in standing:
            end = standing[units.dst[end]]
        # Only a chain whose last atom becomes free closes; others end on a digit not in use before.
        partner = end if place == FREE and units.dst[end] == FREE else atom
        pairs.append((units.atoms[atom], units.atoms[partner]))
    return pairs
