"""The stages that a slicing may have, as arcs of a graph in which every slicing is a path.

A node is a place between two layers, node k lying before layer k. A stage of the layers i to j on
some submesh, run in some way, is an arc from i to j + 1. A path from the first node to the last
takes each layer once. So what Alpa finds (Eq. 3) is a shortest path whose arcs together use up the
devices, and everything about shortest paths holds for it: bounds from both ends above all.

If moving values into a stage takes a time that depends on the stage before, a node also says on
which shape that was: there is one for each layer and shape.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Arcs:
    """Arrays of one entry for each arc, in ascending order of `tail`."""

    n_nodes: int
    """The first node has no stage before it, the last none after it."""
    tail: Ints
    """Node where it begins. Of lower number than `head`."""
    head: Ints
    """Node where it ends."""
    shape: Ints
    """Index of its submesh's shape."""
    size: Ints
    """Devices."""
    time_s: Floats
    """What one microbatch takes."""
    rest_s: Floats
    """What the step takes longer if no stage is slower: (B - 1) `time_s`, and work done once."""
    base_bytes: Floats
    """Memory whatever the schedule."""
    activation_bytes: Floats
    """Memory for each microbatch in flight."""
    row: Ints
    """Which stage and option this is, to those who made the arcs."""

    def take(self, which: NDArray[np.bool_]) -> "Arcs":
        """Those for which `which` is true."""
        return Arcs(
            self.n_nodes,
            self.tail[which],
            self.head[which],
            self.shape[which],
            self.size[which],
            self.time_s[which],
            self.rest_s[which],
            self.base_bytes[which],
            self.activation_bytes[which],
            self.row[which],
        )

    @cached_property
    def by_tail(self) -> tuple[slice, ...]:
        """Of each node where some begin, ascending, where they are."""
        return _groups(self.tail)

    @cached_property
    def by_head(self) -> tuple[Ints, ...]:
        """Of each node where some end, ascending, which they are."""
        order = np.argsort(self.head, kind="stable")
        return tuple(order[group] for group in _groups(self.head[order]))

    def leaving(self, node: int) -> slice:
        """Where those that begin at a node are."""
        start, stop = np.searchsorted(self.tail, (node, node + 1))
        return slice(int(start), int(stop))


def _groups(ascending: Ints) -> tuple[slice, ...]:
    """Where the entries of each value are."""
    edges = [0, *(np.flatnonzero(np.diff(ascending)) + 1).tolist(), ascending.size]
    return tuple(slice(start, stop) for start, stop in pairwise(edges) if start < stop)
