"""`transfers`: who sends what to whom in a step that reduces nothing."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from shardspec.base.axis import Axis
from shardspec.base.chunking import Run
from shardspec.layout.layout import Layout
from shardspec.refine.refine import FREE, refine


@dataclass(frozen=True, slots=True)
class Transfer:
    """A block of the tensor that one device gets from another, or keeps."""

    sender: int
    """Device id."""
    receiver: int
    """Device id; equal to `sender` for what stays."""
    runs: tuple[tuple[Run, ...], ...]
    """For each dim the intervals of indices, in the whole tensor."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(sum(stop - start for start, stop in runs) for runs in self.runs)


def transfers(src: Layout, dst: Layout, axes: tuple[Axis, ...]) -> Iterator[Transfer]:
    """Where every device gets its shard of `dst` from, within groups along `axes`.

    Of several devices that hold a block, the one sends it that shares the receiver's coordinates
    along the axes that shard nothing. So what a device has stays, and replicas share the sending.
    If such an axis takes over for another that will be free, then their coordinates change places
    (a permutation, in which every device sends to one).

    Args:
        src: Before; with the same partial results as `dst`.
        dst: After.
        axes: Step.axes.
    """
    mesh = src.mesh
    pairs = _partners(src, dst)
    sharding = {a for dim in range(len(src.shape)) for a in src.spec.sharding_of(dim)}
    rest = [(part, part) for part in mesh.parts(sharding) if part not in sharding]
    fixed = pairs if pairs is not None else rest
    for group in mesh.groups(axes):
        places = {device: mesh.coordinates(device) for device in group}
        held = {device: src.runs(device) for device in group}
        for receiver in group:
            wanted = dst.runs(receiver)
            for sender in group:
                if all(
                    mesh.coordinate(places[sender], mine) == mesh.coordinate(places[receiver], his)
                    for mine, his in fixed
                ):
                    runs = tuple(map(common, held[sender], wanted))
                    if all(runs):
                        yield Transfer(sender, receiver, runs)


def common(a: tuple[Run, ...], b: tuple[Run, ...]) -> tuple[Run, ...]:
    """The intervals that two lists of intervals have in common."""
    found = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, stop = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < stop:
            found.append((start, stop))
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def _partners(src: Layout, dst: Layout) -> list[tuple[Axis, Axis]] | None:
    """For each atom that is free in `src`, whose coordinate of the receiver the sender has."""
    units = refine(src, dst)
    if units is None:
        return None
    standing = {place: atom for atom, place in enumerate(units.src) if place >= 0}
    found = []
    for atom, place in enumerate(units.src):
        if place >= 0:
            continue
        end = atom
        while units.dst[end] in standing:
            end = standing[units.dst[end]]
        # Only a chain that ends in a free atom closes; others end on a digit that was not in use.
        partner = end if place == FREE and units.dst[end] == FREE else atom
        found.append((units.atoms[atom], units.atoms[partner]))
    return found
