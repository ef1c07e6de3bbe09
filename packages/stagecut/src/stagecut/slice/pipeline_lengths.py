"""Shortest paths for any weights of the arcs, with or without counting stages."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stagecut.slice.arcs import Arcs, Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """Paths with any number of stages; the stages are not counted."""

    arcs: Arcs
    counts: Sequence[int] = (0,)
    """The one row of a table that does not count stages."""
    n_stages: int = 0

    def stages(self, which: slice | Ints, weight: Floats) -> Floats:
        """The weights of some arcs, shape (n_which, 1)."""
        return weight[which, None]

    def most_stages(self) -> int:
        """The largest number of stages of a path; 0 if there is no path."""
        longest = -self.to_end(-np.ones(self.arcs.row.size))[0]
        return int(max(longest, 0))

    def to_end(self, weight: Floats) -> Floats:
        """The smallest weight from each node to the last one, shape (n_nodes,); inf if no path."""
        least = np.full(self.arcs.n_nodes, np.inf)
        least[-1] = 0.0
        for group in reversed(self.arcs.by_tail):
            least[self.arcs.tail[group.start]] = (
                weight[group] + least[self.arcs.head[group]]
            ).min()
        return least

    def from_start(self, weight: Floats) -> Floats:
        """The smallest weight from the first node to each, shape (n_nodes,); inf if no path."""
        least = np.full(self.arcs.n_nodes, np.inf)
        least[0] = 0.0
        for group in self.arcs.by_head:
            least[self.arcs.head[group[0]]] = (weight[group] + least[self.arcs.tail[group]]).min()
        return least

    def shortest(self, weight: Floats, to_end: Floats) -> tuple[float, Ints]:
        """The smallest weight of a path, and if it is finite, the indices of the path's arcs."""
        path, node = [], 0
        while to_end[0] < np.inf and node < self.arcs.n_nodes - 1:
            leaving = self.arcs.leaving(node)
            ways = weight[leaving] + to_end[self.arcs.head[leaving]]
            path.append(leaving.start + int(ways.argmin()))
            node = int(self.arcs.head[path[-1]])
        return float(to_end[0]), np.array(path, dtype=np.int64)

    def through(self, weight: Floats, to_end: Floats) -> Floats:
        """The smallest weight of a path through each arc, shape (n_arcs,)."""
        return self.from_start(weight)[self.arcs.tail] + weight + to_end[self.arcs.head]


@dataclass(frozen=True, slots=True, eq=False)
class CountedLengths:
    """Paths with given numbers of stages, whose arcs must fit in memory at their positions.

    The memory of a stage depends on how many stages follow. So where `Lengths` has a number for
    each node, this has one for each node and each number s of stages from there to the end:
    shape (n_nodes, n_stages + 1).
    """

    arcs: Arcs
    counts: Sequence[int]
    """Numbers of stages that a path may have, ascending."""
    room_bytes: Floats
    """For each arc, the memory that is left beside `base_bytes`; not negative."""
    in_flight: Floats
    """Microbatches held by a stage that is the last, the last but one, ...: shape (n_stages,)."""

    @property
    def n_stages(self) -> int:
        """The largest number of stages."""
        return self.in_flight.size

    def stages(self, which: slice | Ints, weight: Floats) -> Floats:
        """The weights of some arcs as the last stage, the last but one, ...; inf if one cannot fit.

        Shape (n_which, n_stages).
        """
        kept = self.arcs.activation_bytes[which, None] * self.in_flight
        return np.where(kept <= self.room_bytes[which, None], weight[which, None], np.inf)

    def to_end(self, weight: Floats) -> Floats:
        """The smallest weight from each node to the last one, for each number of stages."""
        least = np.full((self.arcs.n_nodes, self.n_stages + 1), np.inf)
        least[-1, 0] = 0.0
        for group in reversed(self.arcs.by_tail):
            ways = self.stages(group, weight) + least[self.arcs.head[group], :-1]
            least[self.arcs.tail[group.start], 1:] = ways.min(axis=0)
        return least

    def from_start(self, weight: Floats) -> Floats:
        """The smallest weight from the first node to each, for each number of stages to the end."""
        least = np.full((self.arcs.n_nodes, self.n_stages + 1), np.inf)
        least[0, self.counts] = 0.0
        for group in self.arcs.by_head:
            ways = self.stages(group, weight) + least[self.arcs.tail[group], 1:]
            least[self.arcs.head[group[0]], :-1] = ways.min(axis=0)
        return least

    def shortest(self, weight: Floats, to_end: Floats) -> tuple[float, Ints]:
        """The smallest weight of a path, and if it is finite, the indices of the path's arcs."""
        value, n_after = min(((float(to_end[0, n]), n) for n in self.counts), default=(np.inf, 0))
        path, node = [], 0
        while value < np.inf and node < self.arcs.n_nodes - 1:
            n_after -= 1
            leaving = self.arcs.leaving(node)
            ways = self.stages(leaving, weight)[:, n_after]
            ways = ways + to_end[self.arcs.head[leaving], n_after]
            path.append(leaving.start + int(ways.argmin()))
            node = int(self.arcs.head[path[-1]])
        return value, np.array(path, dtype=np.int64)

    def through(self, weight: Floats, to_end: Floats) -> Floats:
        """The smallest weight of a path through each arc, shape (n_arcs,)."""
        from_start = self.from_start(weight)
        least = np.empty_like(weight)
        for group in self.arcs.by_tail:
            before = from_start[self.arcs.tail[group.start], 1:]
            ways = before + self.stages(group, weight) + to_end[self.arcs.head[group], :-1]
            least[group] = ways.min(axis=1, initial=np.inf)
        return least
