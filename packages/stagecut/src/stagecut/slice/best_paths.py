"""The dynamic program of Alpa, Eq. 3: the shortest path that uses all devices.

    F(s, u, d) = min over arcs u -> v:  t + F(s - 1, v, d - size),      F(0, last node, 0) = 0

is the least sum of times from the node u to the end with s stages on d devices. Where memory does
not ask how many stages follow, and nobody else does, s is left out.

Devices are counted from the fewest that the stages after a node can use. So a node's rows are as
wide as its choices are, not as the cluster, and an arc's part of the table is a shifted copy of
that of its head, which numpy gathers as one block for all arcs of a node.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from stagecut.slice.arcs import Arcs, Floats, Ints
from stagecut.slice.pipeline_lengths import Lengths

BLOCK = 1 << 21
"""Numbers gathered at once, 16 MiB: all the memory it needs beside the table."""

Values = Callable[[slice], Floats]
"""Of a run of arcs, their value: shape (n_arcs, n_rows), for s = 1, 2, ... if stages are counted;
inf where the arc cannot be used."""


@dataclass(frozen=True, eq=False)
class Table:
    """F, with what is needed to find its paths."""

    arcs: Arcs
    n_devices: int
    values: Values
    combine: np.ufunc
    least: Floats
    """F: shape (n_nodes, n_stages + 1, 2 width). Along the last axis the first half is inf."""
    fewest: Ints
    """Devices of the first entry of each node's second half."""

    @property
    def begin(self) -> int:
        """Devices left for the stages at the first node."""
        return self.n_devices

    def onward(self, leaving: slice, row: int, devices: int) -> tuple[Floats, Ints]:
        """F behind arcs of one node that are taken with `devices` left, and what is left then."""
        heads, left = self.arcs.head[leaving], devices - self.arcs.size[leaving]
        at, width = left - self.fewest[heads], self.least.shape[2] // 2
        value = self.least[heads, row, width + np.clip(at, -1, width - 1)]
        return np.where(at < width, value, np.inf), left

    def best(self, n_stages: int = 0) -> float:
        """The value of the best path, with so many stages if they are counted; inf if none."""
        at, width = self.n_devices - int(self.fewest[0]), self.least.shape[2] // 2
        return float(self.least[0, n_stages, width + at]) if 0 <= at < width else np.inf


class Onward(Protocol):
    """A table whose paths can be followed."""

    @property
    def arcs(self) -> Arcs:
        """The stages."""

    @property
    def values(self) -> Values:
        """What is combined along a path."""

    @property
    def combine(self) -> np.ufunc:
        """`np.add` or `np.maximum`."""

    @property
    def begin(self) -> int:
        """What is left, or taken, of the cluster at the first node."""

    def onward(self, leaving: slice, row: int, place: int, /) -> tuple[Floats, Ints]:
        """F behind arcs of one node, and what is left, or taken, there."""


def best_path(table: Onward, n_stages: int = 0) -> Ints:
    """Indices of the arcs of a path of the best value, which must be finite.

    Ties go to the first arc.
    """
    path, node, place, row = [], 0, table.begin, n_stages
    while node < table.arcs.n_nodes - 1:
        leaving, row = table.arcs.leaving(node), max(row - 1, 0)
        after, places = table.onward(leaving, row, place)
        # The table was made of these very sums, so the first least is that of the table.
        at = int(np.argmin(table.combine(table.values(leaving)[:, row], after)))
        path.append(leaving.start + at)
        node, place = int(table.arcs.head[path[-1]]), int(places[at])
    return np.array(path, dtype=np.int64)


def tabulate(
    arcs: Arcs, values: Values, combine: np.ufunc, n_devices: int, use_all: bool, n_stages: int
) -> Table:
    """Fill F.

    Args:
        arcs: Every one of them must be on some path that uses at most `n_devices`.
        values: What is combined along a path.
        combine: `np.add`, or `np.maximum` for the smallest largest value.
        n_devices: Of the cluster.
        use_all: Whether none of them may stay unused.
        n_stages: Count stages, up to this number; 0 to leave them uncounted.
    """
    lengths, size = Lengths(arcs), arcs.size.astype(np.float64)
    nearest, farthest = lengths.to_end(size), -lengths.to_end(-size)
    before = lengths.from_start(size)
    is_used = np.isfinite(nearest) & np.isfinite(before)
    spare = 0 if use_all else n_devices
    choices = np.minimum(farthest + spare, n_devices - before) - nearest
    width = int(choices[is_used].max(initial=0)) + 1
    fewest = np.where(is_used, nearest, 0).astype(np.int64)
    least = np.full((arcs.n_nodes, n_stages + 1, 2 * width), np.inf)
    least[-1, 0, width : width + spare + 1] = 0.0
    # What an arc needs of its head's entry is the block that begins `shift` before its second half.
    first = min(n_stages, 1)  # row of the tail for row 0 of the head
    block = n_stages + 1 - first, width
    blocks = as_strided(
        least,
        (least.size - (block[0] - 1) * 2 * width - width + 1, *block),
        (least.itemsize, 2 * width * least.itemsize, least.itemsize),
        writeable=False,
    )
    shift = fewest[arcs.tail] - arcs.size - fewest[arcs.head]
    at = (arcs.head * (n_stages + 1) * 2 + 1) * width + np.clip(shift, -width, 0)
    at_once = max(1, BLOCK // (block[0] * block[1]))
    for group in reversed(arcs.by_tail):
        here = least[arcs.tail[group.start], first:, width:]
        for start in range(group.start, group.stop, at_once):
            part = slice(start, min(start + at_once, group.stop))
            ways = blocks[at[part]]
            combine(ways, values(part)[:, :, None], out=ways)
            np.minimum(here, ways.min(axis=0), out=here)
    return Table(arcs, n_devices, values, combine, least, fewest)
