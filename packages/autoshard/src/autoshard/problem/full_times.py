"""When memory can be full: times whose set of nodes alive is contained in no other time's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoshard.base.arrays import Array
from autoshard.problem.problem import Problem


class Live:
    """The times that matter, and which of them each node is alive at.

    A set of nodes alive can only be maximal at a start that an end follows before the next start.
    Where all of these keep the limit, every time does.

    Examples:
        >>> problem = Problem(
        ...     (np.zeros(1),) * 3, (), (), (np.ones(1),) * 3, ((0, 4), (2, 6), (5, 9))
        ... )
        >>> live = Live(problem)
        >>> live.times, live.alive(0), live.used([0, 0, 0])
        (array([2, 5]), array([0, 1]), array([2., 2.]))
    """

    def __init__(self, problem: Problem) -> None:
        intervals = np.array(problem.intervals, dtype=np.int64).reshape(-1, 2)
        begin, end = intervals[:, 0], intervals[:, 1]
        real = begin < end
        starts, ends = np.unique(begin[real]), np.unique(end[real])
        last_start = starts[np.searchsorted(starts, ends) - 1] if len(ends) else starts
        self.usages = problem.usages
        self.times: NDArray[np.int64] = np.unique(last_start)
        """Shape (times,), rising."""
        self.first = np.searchsorted(self.times, begin)
        """Per node the first of the times that it is alive at."""
        self.stop = np.where(real, np.searchsorted(self.times, end), self.first)
        """Per node one more than the last of them; nowhere alive where it is `first`."""

    def alive(self, time: int) -> NDArray[np.intp]:
        """The nodes alive at a time, given by its place in `times`."""
        return np.flatnonzero((self.first <= time) & (time < self.stop))

    def used(self, choice: Sequence[int]) -> Array:
        """What a choice uses at each of the times, shape (times,)."""
        usage = np.array([of[s] for of, s in zip(self.usages, choice, strict=True)])
        n = len(self.times) + 1
        change = np.bincount(self.first, usage, n) - np.bincount(self.stop, usage, n)
        used: Array = change.cumsum()[:-1]
        return used
