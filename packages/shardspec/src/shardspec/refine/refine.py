"""`refine`: two layouts of a tensor in common units, in which resharding moves atoms over digits.

The index of an element along each dim is written as a mixed-radix number, with *digits* so fine
that neither layout cuts one of them. The coordinates of a device are likewise split into *atoms*:
mesh axes, or parts of them. Then a layout is a map of atoms. Each atom stands on a digit (a device
holds the elements whose digit equals its coordinate along the atom), or it is free (devices along
it hold replicas), or it holds partial results. Two atoms never stand on the same digit.

Example: `S01 -> S10` of 8 elements on a 4×2 mesh. The source cuts the dim after 4 parts and the
destination after 2, which makes the digits 2, 2, 2 and splits axis 0 into the atoms 0:(1)2 and
0:(2)2. On these digits, major to minor, the source has the atoms 0:(1)2, 0:(2)2, 1 and the
destination 1, 0:(1)2, 0:(2)2.

Not every pair of layouts has such units: uneven dims have none, nor has a dim that one layout cuts
in 2 and the other in 3. A dim that is uneven but the same in both layouts is left out, with the
axes that shard it.
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
"""For each atom the digit on which it stands, or FREE or PARTIAL."""
Kinds = tuple[Reduction | None, ...]
"""For each atom how its partial results combine; None if it holds none."""
_Extent = tuple[int, int, int]
"""A part of a mesh axis: axis index, pre-size, size."""
_Segment = tuple[int, int, int, int, int]
"""A part of an axis that shards a dim: the dim, the number of parts into which more major entries
cut it, then the extent of the part."""


@dataclass(slots=True)
class Refined:
    """Two layouts in common units. Digits can be added (`carve`); nothing else changes."""

    atoms: list[Axis]
    """Parts of mesh axes longer than 1 that do not shard a left-out dim, in mesh order."""
    sizes: list[int]
    """Length of each atom."""
    digits: list[int]
    """Size of each digit."""
    order: list[list[int]]
    """For each dim its digits, major to minor."""
    left: list[int]
    """For each dim the elements that stay together below its digits; -1 for a left-out dim."""
    src: Places
    """Places of the atoms in the source."""
    dst: Places
    """Places of the atoms in the destination."""
    src_kinds: Kinds
    """Partial results in the source."""
    dst_kinds: Kinds
    """Partial results in the destination."""
    layout: Layout
    """The source: it has the shape, the mesh, and the entries of left-out dims."""

    def at(self, places: Places, kinds: Kinds) -> Layout:
        """The layout whose atoms have these places and partial results."""
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
        """The axes that `atoms` make up: in mesh order, or in the order of their digits.

        Args:
            atoms: In mesh order.
            places: Where the atoms stand; None to keep them in mesh order.
        """
        if places is not None:
            rank = {digit: n for n, digit in enumerate(itertools.chain(*self.order))}
            atoms = sorted(atoms, key=lambda atom: rank[places[atom]])
        joined = self.layout.mesh.joined(self.atoms[atom] for atom in atoms)
        return tuple(axis for axis in joined if not isinstance(axis, Split))

    def carve(self, size: int) -> int | None:
        """A new digit of this size, split off what is left of some dim; None if no dim has one."""
        for dim, left in enumerate(self.left):
            if left > 0 and left % size == 0:
                self.left[dim] = left // size
                self.digits.append(size)
                self.order[dim].append(len(self.digits) - 1)
                return len(self.digits) - 1
        return None


def refine(src: Layout, dst: Layout) -> Refined | None:
    """Common units of two layouts of one tensor on one mesh; None if there are none."""
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
    unchanged = [segment for segment in segments[0] if left_out[segment[0]]]
    extents = [
        (axis, low, high // low)
        for axis, cuts in enumerate(axis_cuts)
        for low, high in itertools.pairwise(sorted(cuts))
        if not any(axis == s[2] and s[3] <= low < s[3] * s[4] for s in unchanged)
    ]
    position = {(axis, pre): atom for atom, (axis, pre, _) in enumerate(extents)}
    maps: list[tuple[Places, Kinds]] = []
    for layout, of_layout in zip((src, dst), segments, strict=True):
        place = [FREE] * len(extents)
        kind: list[Reduction | None] = [None] * len(extents)
        for dim, above, axis, pre, size in of_layout:
            if not left_out[dim]:
                for part in _parts(axis, pre, size, axis_cuts):
                    place[position[axis, part]] = number[dim, above * part // pre]
        for partial in layout.spec.partial:
            axis, pre, size = _extent(partial.axis, mesh)
            for part in _parts(axis, pre, size, axis_cuts):
                place[position[axis, part]] = PARTIAL
                kind[position[axis, part]] = partial.kind
        maps.append((tuple(place), tuple(kind)))
    (src_places, src_kinds), (dst_places, dst_kinds) = maps
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
    """Dims that the two layouts cut differently."""
    return [
        dim
        for dim in range(len(src.shape))
        if src.spec.dims[dim] != dst.spec.dims[dim] or src.rules[dim] != dst.rules[dim]
    ]


def _spread(segments: list[_Segment], dim_cuts: list[set[int]], axis_cuts: list[set[int]]) -> bool:
    """Carries cuts over between dims and the axes that shard them, until no new one appears.

    Args:
        segments: Which part of an axis shards which part of a dim, in both layouts.
        dim_cuts: For each dim, after how many parts it is cut; cuts are added in place.
        axis_cuts: The same for each mesh axis.

    Returns:
        Whether the cuts nest: of each dim and axis, every cut is a multiple of the one before.
    """
    grown = True
    while grown:
        grown = False
        for dim, above, axis, pre, size in segments:
            for cuts, start, other_cuts, other_start in (
                (dim_cuts[dim], above, axis_cuts[axis], pre),
                (axis_cuts[axis], pre, dim_cuts[dim], above),
            ):
                for cut in [c for c in cuts if start < c < start * size]:
                    if cut % start or (start * size) % cut:
                        return False
                    carried = other_start * (cut // start)
                    if carried not in other_cuts:
                        other_cuts.add(carried)
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
    """The pre-sizes of the atoms that make up a part of an axis."""
    return (cut for cut in sorted(axis_cuts[axis]) if pre <= cut < pre * size)
