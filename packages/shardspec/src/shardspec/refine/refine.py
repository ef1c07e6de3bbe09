"""`refine`: two layouts of a tensor in common units, so that resharding is moving digits about.

Write the index of an element along each dim in a mixed radix whose *digits* are cut nowhere by
either layout, and the coordinates of a device in *atoms*, parts of mesh axes likewise. Then each
layout is a map: an atom stands on one digit (the device holds the elements whose digit equals its
coordinate), or it is free (replicas), or it holds partial results. Two atoms never share a digit.

`S01 -> S10` of 8 elements on a 4×2 mesh: cuts after 4 and after 2 parts make the digits 2, 2, 2,
and axis 0 the atoms 0:(1)2 and 0:(2)2. The source places the atoms 0:(1)2, 0:(2)2, 1 on the digits
in this order, the destination 1, 0:(1)2, 0:(2)2.

Not every pair has such units: uneven dims do not, nor does a dim that one layout cuts in 2 and
the other in 3. A dim that is uneven but the same in both is left out, with its axes.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from shardspec.base.axis import Axis, Entry, Split, SubAxis
from shardspec.base.partial import Partial, Reduction
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import Mesh
from shardspec.layout.spec import Spec

FREE = -1
"""Place of an atom along which devices hold replicas."""
PARTIAL = -2
"""Place of an atom along which devices hold partial results."""

Places = tuple[int, ...]
"""For each atom the digit it stands on, or FREE or PARTIAL."""
Kinds = tuple[Reduction | None, ...]
"""For each atom how its partial results combine, None if it holds none."""
_Extent = tuple[int, int, int]
"""A part of a mesh axis: axis index, pre-size, size."""
_Segment = tuple[int, int, int, int, int]
"""Dim and the number of parts above it, cut by a part of an axis."""


@dataclass(slots=True)
class Refined:
    """Two layouts in common units. Digits can be added (`carve`), nothing else changes."""

    atoms: list[Axis]
    """Parts of mesh axes longer than 1 that do not lie in a left-out dim, in mesh order."""
    sizes: list[int]
    """Length of each atom."""
    digits: list[int]
    """Size of each digit."""
    order: list[list[int]]
    """For each dim its digits, major to minor."""
    left: list[int]
    """For each dim the elements that stay together below its digits; -1 for a left-out dim."""
    src: Places
    dst: Places
    src_kinds: Kinds
    dst_kinds: Kinds
    layout: Layout
    """The source: shape, mesh, and what left-out dims have."""

    def at(self, places: Places, kinds: Kinds) -> Layout:
        """The layout with the atoms at these places."""
        occupants: dict[int, Entry] = dict(zip(places, self.atoms, strict=True))
        dims = tuple(
            tuple(occupants.get(digit, Split(self.digits[digit])) for digit in digits)
            if left >= 0
            else entries
            for digits, left, entries in zip(
                self.order, self.left, self.layout.spec.dims, strict=True
            )
        )
        partial = [
            Partial(atom, kind) for atom, kind in zip(self.atoms, kinds, strict=True) if kind
        ]
        return replace(self.layout, spec=Spec(dims, tuple(partial)))

    def axes(self, atoms: Iterable[int], places: Places | None = None) -> tuple[Axis, ...]:
        """What atoms in mesh order make up; in the order of their digits, if given `places`."""
        if places is not None:
            rank = {digit: n for n, digit in enumerate(itertools.chain(*self.order))}
            atoms = sorted(atoms, key=lambda atom: rank[places[atom]])
        joined = self.layout.mesh.joined(self.atoms[atom] for atom in atoms)
        return tuple(axis for axis in joined if not isinstance(axis, Split))

    def carve(self, size: int) -> int | None:
        """A new digit of this size out of what is left of some dim; None if it divides none."""
        for dim, left in enumerate(self.left):
            if left > 0 and left % size == 0:
                self.left[dim] = left // size
                self.digits.append(size)
                self.order[dim].append(len(self.digits) - 1)
                return len(self.digits) - 1
        return None


def refine(src: Layout, dst: Layout) -> Refined | None:
    """Two layouts of one tensor on one mesh in common units; None if they have none."""
    uneven = {*src.uneven_dims, *dst.uneven_dims}
    if not uneven.isdisjoint(changed_dims(src, dst)):
        return None
    left_out = [dim in uneven for dim in range(len(src.shape))]

    mesh = src.mesh
    dim_cuts = [{1} for _ in src.shape]
    axis_cuts = [{1, length} for length in mesh.shape]
    segments: list[list[_Segment]] = []
    for layout in (src, dst):
        segments.append([])
        for dim, entries in enumerate(layout.spec.dims):
            above = 1
            for entry in entries:
                if isinstance(entry, Split):
                    above *= entry.factor
                else:
                    axis, pre, size = _extent(entry, mesh)
                    axis_cuts[axis] |= {pre, pre * size}
                    segments[-1].append((dim, above, axis, pre, size))
                    above *= size
                dim_cuts[dim].add(above)
        for partial in layout.spec.partial:
            axis, pre, size = _extent(partial.axis, mesh)
            axis_cuts[axis] |= {pre, pre * size}
    if not _spread([*segments[0], *segments[1]], dim_cuts, axis_cuts):
        return None

    ranges = [list(itertools.pairwise(sorted(cuts))) for cuts in dim_cuts]
    names = [(dim, low) for dim, cuts in enumerate(ranges) for low, _ in cuts]
    number = {name: digit for digit, name in enumerate(names)}
    still = [seg for seg in segments[0] if left_out[seg[0]]]
    extents = [
        (axis, low, high // low)
        for axis, cuts in enumerate(axis_cuts)
        for low, high in itertools.pairwise(sorted(cuts))
        if not any(axis == s[2] and s[3] <= low < s[3] * s[4] for s in still)
    ]
    position = {(axis, pre): atom for atom, (axis, pre, _) in enumerate(extents)}
    found: list[tuple[Places, Kinds]] = []
    for layout, own in zip((src, dst), segments, strict=True):
        place = [FREE] * len(extents)
        kind: list[Reduction | None] = [None] * len(extents)
        for dim, above, axis, pre, size in own:
            if not left_out[dim]:
                for part in _parts(axis, pre, size, axis_cuts):
                    place[position[axis, part]] = number[dim, above * part // pre]
        for partial in layout.spec.partial:
            axis, pre, size = _extent(partial.axis, mesh)
            for part in _parts(axis, pre, size, axis_cuts):
                place[position[axis, part]] = PARTIAL
                kind[position[axis, part]] = partial.kind
        found.append((tuple(place), tuple(kind)))
    (src_places, src_kinds), (dst_places, dst_kinds) = found
    return Refined(
        [a if size == mesh.shape[a] else SubAxis(a, pre, size) for a, pre, size in extents],
        [size for _, _, size in extents],
        [high // low for cuts in ranges for low, high in cuts],
        [[number[dim, low] for low, _ in cuts] for dim, cuts in enumerate(ranges)],
        [
            -1 if out else n // max(cuts)
            for n, cuts, out in zip(src.shape, dim_cuts, left_out, strict=True)
        ],
        src_places,
        dst_places,
        src_kinds,
        dst_kinds,
        src,
    )


def changed_dims(src: Layout, dst: Layout) -> list[int]:
    """Dims that are cut in another way."""
    return [
        dim
        for dim in range(len(src.shape))
        if src.spec.dims[dim] != dst.spec.dims[dim] or src.rules[dim] != dst.rules[dim]
    ]


def _spread(segments: list[_Segment], dim_cuts: list[set[int]], axis_cuts: list[set[int]]) -> bool:
    """Carry every cut over to what it lies on, until nothing is new; whether the cuts nest."""
    grown = True
    while grown:
        grown = False
        for dim, above, axis, pre, size in segments:
            for here, start, there, origin in (
                (dim_cuts[dim], above, axis_cuts[axis], pre),
                (axis_cuts[axis], pre, dim_cuts[dim], above),
            ):
                for cut in [c for c in here if start < c < start * size]:
                    if cut % start or (start * size) % cut:
                        return False
                    carried = origin * (cut // start)
                    if carried not in there:
                        there.add(carried)
                        grown = True
    return all(
        high % low == 0
        for cuts in (*dim_cuts, *axis_cuts)
        for low, high in itertools.pairwise(sorted(cuts))
    )


def _extent(axis: Axis, mesh: Mesh) -> _Extent:
    if isinstance(axis, SubAxis):
        return axis.axis, axis.pre, axis.size
    return axis, 1, mesh.shape[axis]


def _parts(axis: int, pre: int, size: int, axis_cuts: list[set[int]]) -> Iterator[int]:
    """The pre-sizes of the atoms that a part of an axis is made of."""
    return (cut for cut in sorted(axis_cuts[axis]) if pre <= cut < pre * size)
