"""The stages that a slicing may have, as arcs of a graph in which every slicing is a path.

A node lies between two layers: node k is before layer k. A stage of the layers i to j on some
submesh, with one of its options, is an arc from i to j + 1. A path from the first node to the last
takes each layer once. So what Alpa finds (Eq. 3) is a shortest path whose arcs together use all
devices, and the methods for shortest paths apply to it, in particular bounds from both ends.

If the time to move values into a stage depends on the submesh of the stage before it, a node also
says which shape that submesh has: there is one node for each layer and shape.
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
    """Arrays with one entry for each arc, in ascending order of `tail`."""

    n_nodes: int
    """Number of nodes. The first has no stage before it, and the last has none after it."""
    tail: Ints
    """The node where the arc begins; its number is lower than that of `head`."""
    head: Ints
    """The node where the arc ends."""
    shape: Ints
    """Index of the shape of its submesh."""
    size: Ints
    """Number of devices."""
    time_s: Floats
    """Time of one microbatch, with what the stage receives."""
    rest_s: Floats
    """What this stage adds to the step if none is slower: (B - 1) `time_s`, and work done once."""
    base_bytes: Floats
    """Memory with no microbatch in flight."""
    activation_bytes: Floats
    """Memory for each microbatch in flight."""
    row: Ints
    """Identifies the stage and its option for the caller that made the arcs."""

    def take(self, which: NDArray[np.bool_]) -> "Arcs":
        """The arcs for which `which` is true."""
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
        """For each node where arcs begin, in ascending order, the slice of these arcs."""
        return _groups(self.tail)

    @cached_property
    def by_head(self) -> tuple[Ints, ...]:
        """For each node where arcs end, in ascending order, the indices of these arcs."""
        order = np.argsort(self.head, kind="stable")
        return tuple(order[group] for group in _groups(self.head[order]))

    def leaving(self, node: int) -> slice:
        """The slice of the arcs that begin at a node."""
        start, stop = np.searchsorted(self.tail, (node, node + 1))
        return slice(int(start), int(stop))


def _groups(ascending: Ints) -> tuple[slice, ...]:
    """The slice of the entries of each value, in ascending order of the values."""
    edges = [0, *(np.flatnonzero(np.diff(ascending)) + 1).tolist(), ascending.size]
    return tuple(slice(start, stop) for start, stop in pairwise(edges) if start < stop)
