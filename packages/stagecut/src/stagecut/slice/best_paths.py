"""The dynamic program of Alpa, Eq. 3: the shortest path that uses all devices.

    F(s, u, d) = min over arcs u -> v:  t + F(s - 1, v, d - size),      F(0, last node, 0) = 0

is the smallest sum of times from the node u to the end with s stages on d devices. If neither
memory nor the caller depends on the number of stages, s is left out.

The devices of a node are counted from the smallest number that the stages after it can use. So a
row of the table is only as wide as a node has choices, not as wide as the cluster, and the entries
that an arc needs are a shifted copy of those of its head. numpy gathers them as one block for all
arcs of a node.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from stagecut.slice.arcs import Arcs, Floats, Ints
from stagecut.slice.pipeline_lengths import Lengths

BLOCK = 1 << 21
"""How many numbers are gathered at once: 16 MiB, all the memory that is needed beside the table."""

Values = Callable[[slice], Floats]
"""The values of a slice of arcs, shape (n_arcs, n_rows); inf where an arc cannot be used.

If stages are counted, the rows are for s = 1, 2, ..."""


@dataclass(frozen=True, eq=False)
class Table:
    """The table F, with what is needed to follow its best paths."""

    arcs: Arcs
    n_devices: int
    values: Values
    combine: np.ufunc
    least: Floats
    """F: shape (n_nodes, n_stages + 1, 2 width). Along the last dim the first half is inf."""
    fewest: Ints
    """For each node, the number of devices that the first entry of the second half is for."""

    @property
    def begin(self) -> int:
        """Devices left for the stages at the first node."""
        return self.n_devices

    def onward(self, leaving: slice, row: int, devices: int) -> tuple[Floats, Ints]:
        """F at the heads of the arcs of one node, and the devices left after each of these arcs.

        Before the arcs, `devices` are left.
        """
        heads, left = self.arcs.head[leaving], devices - self.arcs.size[leaving]
        at, width = left - self.fewest[heads], self.least.shape[2] // 2
        value = self.least[heads, row, width + np.clip(at, -1, width - 1)]
        return np.where(at < width, value, np.inf), left

    def best(self, n_stages: int = 0) -> float:
        """The value of the best path; inf if none.

        The path has `n_stages` stages if they are counted.
        """
        at, width = self.n_devices - int(self.fewest[0]), self.least.shape[2] // 2
        return float(self.least[0, n_stages, width + at]) if 0 <= at < width else np.inf


class Onward(Protocol):
    """A table whose best paths can be followed, `Table` or `StateTable`.

    Its *state* says how much of the cluster is left, as a number of devices, or what is taken of
    it, as a state of `Places`.
    """

    @property
    def arcs(self) -> Arcs:
        """The stages."""

    @property
    def values(self) -> Values:
        """The values that are combined along a path."""

    @property
    def combine(self) -> np.ufunc:
        """`np.add` or `np.maximum`."""

    @property
    def begin(self) -> int:
        """The state at the first node."""

    def onward(self, leaving: slice, row: int, state: int, /) -> tuple[Floats, Ints]:
        """F at the heads of the arcs of one node, and the state after each of these arcs."""


def best_path(table: Onward, n_stages: int = 0) -> Ints:
    """The indices of the arcs of a path with the best value, which must be finite.

    Ties go to the first arc.
    """
    path, node, state, row = [], 0, table.begin, n_stages
    while node < table.arcs.n_nodes - 1:
        leaving, row = table.arcs.leaving(node), max(row - 1, 0)
        after, states = table.onward(leaving, row, state)
        # The table was computed from the same sums, so the smallest of them is the table's entry.
        at = int(np.argmin(table.combine(table.values(leaving)[:, row], after)))
        path.append(leaving.start + at)
        node, state = int(table.arcs.head[path[-1]]), int(states[at])
    return np.array(path, dtype=np.int64)


def tabulate(
    arcs: Arcs, values: Values, combine: np.ufunc, n_devices: int, use_all: bool, n_stages: int
) -> Table:
    """Compute the table F.

    Args:
        arcs: The stages; each must be on some path that uses at most `n_devices`.
        values: The values that are combined along a path.
        combine: `np.add` for the smallest sum, or `np.maximum` for the smallest maximum.
        n_devices: Devices of the cluster.
        use_all: Whether every device must be used.
        n_stages: Count stages up to this number; 0 not to count them.
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
    # Of the entries of its head, an arc needs the block that begins `shift` entries from the start
    # of the second half; `shift` is at most 0.
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
