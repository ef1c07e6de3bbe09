"""`Blocks`: which devices hold which block of a tensor; the basis of all texts and pictures.

Each dim is cut into *pieces*, numbered in the tensor's order. A *part* is what a device takes of a
dim: one piece or, if the dim is strided, several. A *block* is a part of every dim. So each device
holds one block, and the devices of a block hold copies of it or partial results for it.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardspec.base.axis import Axis, Split
from shardspec.base.chunking import Chunking, Run, interval
from shardspec.layout.layout import Layout, replica_axes
from shardspec.layout.spec import Spec, sharding_axes


@dataclass(frozen=True, slots=True)
class Cuts:
    """The pieces of one dim; nothing is stored per piece, so there may be any number of them.

    Examples:
        >>> cuts = Cuts(8, "ceil", (2, 2), (True, False))   # S[2]0 on two devices
        >>> [cuts.piece(i) for i in range(cuts.n_pieces)], [cuts.part(i) for i in range(4)]
        ([(0, 2), (2, 4), (4, 6), (6, 8)], [0, 1, 0, 1])
        >>> list(cuts.runs(1))
        [(2, 4), (6, 8)]
    """

    n: int
    """Size of the dim."""
    rule: Chunking
    """How the dim is cut if it cannot be cut evenly."""
    parts: tuple[int, ...]
    """Number of parts into which each level cuts, major to minor."""
    is_split: tuple[bool, ...]
    """For each level, whether a device takes all parts (a split) or one part (an axis)."""

    @property
    def n_pieces(self) -> int:
        """Number of pieces, including empty ones."""
        return math.prod(self.parts)

    @property
    def n_parts(self) -> int:
        """Number of parts: the product of the lengths of the axes that shard the dim."""
        return math.prod(
            count for count, split in zip(self.parts, self.is_split, strict=True) if not split
        )

    @property
    def is_even(self) -> bool:
        """Whether all pieces have the same size; explicit sizes count as uneven."""
        return self.n % self.n_pieces == 0 and not isinstance(self.rule, tuple)

    def piece(self, i: int) -> Run:
        """Start and stop of piece `i`."""
        return interval(self.n, self.rule, list(zip(self.parts, self._digits(i), strict=True)))

    def part(self, i: int) -> int:
        """The number of the part to which piece `i` belongs."""
        part = 0
        for count, split, digit in zip(self.parts, self.is_split, self._digits(i), strict=True):
            part = part if split else part * count + digit
        return part

    def pieces(self, start: int = 0) -> Iterator[int]:
        """The numbers of the pieces from element `start` on that are not empty."""
        while start < self.n:
            i = bisect_right(range(self.n_pieces), start, key=lambda i: self.piece(i)[0]) - 1
            yield i
            start = self.piece(i)[1]

    def runs(self, part: int) -> Iterator[Run]:
        """The intervals of a part, none empty, adjacent ones joined."""
        levels = list(zip(self.parts, self.is_split, strict=True))
        n_splits = math.prod(count for count, split in levels if split)
        last: list[Run] = []
        for split in range(n_splits):
            left, digits = [split, part], []
            for count, is_split in reversed(levels):
                left[not is_split], digit = divmod(left[not is_split], count)
                digits.append((count, digit))
            start, stop = interval(self.n, self.rule, digits[::-1])
            if last and last[0][1] == start:
                last[0] = (last[0][0], stop)
            elif start < stop:
                yield from last
                last = [(start, stop)]
        yield from last

    def _digits(self, i: int) -> list[int]:
        digits = []
        for count in reversed(self.parts):
            i, digit = divmod(i, count)
            digits.append(digit)
        return digits[::-1]


@dataclass(frozen=True)
class Blocks:
    """The blocks of a layout, and the devices of each.

    Examples:
        >>> from shardspec import Mesh, Spec
        >>> blocks = Blocks(Layout((8, 4), Mesh((2, 2), ("x", "y")), Spec.parse("RS1+P0")))
        >>> blocks.devices(1)               # along x: two terms of a sum, one device each
        array([[1],
               [3]])
    """

    layout: Layout
    """The layout that has these blocks."""

    @cached_property
    def cuts(self) -> tuple[Cuts, ...]:
        """The pieces of each dim."""
        layout = self.layout
        return tuple(
            Cuts(n, rule, parts, tuple(isinstance(entry, Split) for entry in entries))
            for n, rule, parts, entries in zip(
                layout.shape, layout.rules, layout.cuts, layout.spec.dims, strict=True
            )
        )

    @cached_property
    def copy_axes(self) -> tuple[Axis, ...]:
        """The axes, or parts of axes, along which devices hold copies."""
        return tuple(replica_axes(self.layout))

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Positions of the devices in the mesh, by block.

        The shape is (blocks, length of each partial axis ..., copies). Blocks are numbered
        row-major by their parts.
        """
        layout, mesh = self.layout, self.layout.mesh
        order = sharding_axes(layout.spec) + [partial.axis for partial in layout.spec.partial]
        parts = mesh.parts(order)
        order += self.copy_axes
        grid = np.arange(mesh.size).reshape([mesh.length(part) for part in parts])
        lengths = [mesh.length(partial.axis) for partial in layout.spec.partial]
        by_part = grid.transpose([parts.index(axis) for axis in order])
        return by_part.reshape(math.prod(layout.shards), *lengths, -1)

    @cached_property
    def _ids(self) -> NDArray[np.int64]:
        return np.array(self.layout.mesh.device_ids, np.int64)

    @property
    def n_copies(self) -> int:
        """Number of devices that hold copies of the same data."""
        return int(self.positions.shape[-1])

    def devices(self, which: int | NDArray[np.bool_]) -> NDArray[np.int64]:
        """Ids of the devices of a block, shape (length of each partial axis ..., copies).

        Args:
            which: The number of a block; or a mask over the blocks, for the devices of all in it.
        """
        return self._ids[self.positions[which]]

    @cached_property
    def number_of(self) -> dict[int, int]:
        """For each device id, the number of the block that it holds."""
        blocks = self.positions.reshape(len(self.positions), -1)
        numbers = np.empty(blocks.size, np.int64)
        numbers[blocks] = np.arange(len(blocks))[:, None]
        return dict(zip(self.layout.mesh.device_ids, numbers.tolist(), strict=True))

    def number(self, parts: Iterable[int]) -> int:
        """The number of the block with these parts, one for each dim."""
        number = 0
        for cuts, part in zip(self.cuts, parts, strict=True):
            number = number * cuts.n_parts + part
        return number

    def parts(self, number: int) -> tuple[int, ...]:
        """The part of each dim in the block with this number."""
        parts = []
        for cuts in reversed(self.cuts):
            number, part = divmod(number, cuts.n_parts)
            parts.append(part)
        return tuple(reversed(parts))

    @property
    def largest_shape(self) -> tuple[int, ...]:
        """For each dim the size in the largest shard, with padding."""
        layout = self.layout
        dims = zip(layout.shape, layout.spec.dims, layout.rules, strict=True)
        return tuple(
            Layout((n,), layout.mesh, Spec((entries,)), (rule,)).local_bytes(itemsize=1)
            for n, entries, rule in dims
        )

    @property
    def held_elements(self) -> int:
        """Elements that all devices together have room for, with padding."""
        layout = self.layout
        padded = [
            largest * shards if rule == "padded" else n
            for n, rule, largest, shards in zip(
                layout.shape, layout.rules, self.largest_shape, layout.shards, strict=True
            )
        ]
        return math.prod(padded) * layout.mesh.size // math.prod(layout.shards)

    @cached_property
    def in_mesh_order(self) -> NDArray[np.int64]:
        """Numbers of the blocks, sorted by the first device of each."""
        firsts = self.positions.reshape(len(self.positions), -1).min(axis=1)
        return np.argsort(firsts)

    @cached_property
    def is_empty(self) -> NDArray[np.bool_]:
        """For each block, whether it has no elements."""
        filled = np.ones(1, np.bool_)
        for cuts in self.cuts:
            if cuts.is_even:
                of_dim = np.full(cuts.n_parts, cuts.n > 0)
            else:
                parts = range(cuts.n_parts)
                of_dim = np.array([any(True for _ in cuts.runs(part)) for part in parts])
            filled = np.logical_and.outer(filled, of_dim).reshape(-1)
        return ~filled
