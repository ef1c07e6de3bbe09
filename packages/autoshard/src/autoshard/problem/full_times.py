"""The times at which memory can be full: those whose set of live nodes is maximal.

A set is maximal if the live nodes of no other time contain it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoshard.base.arrays import Array
from autoshard.problem.problem import Problem


class Live:
    """The times that matter for the limit, and at which of them each node is alive.

    The set of live nodes can only be maximal at a start that is followed by an end before the next
    start. If a choice keeps the limit at all of these times, it keeps it at every time.

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
        """Shape (times,), in increasing order."""
        self.first = np.searchsorted(self.times, begin)
        """For each node, the index of the first of the times at which it is alive."""
        self.stop = np.where(real, np.searchsorted(self.times, end), self.first)
        """For each node, one more than the index of the last; equal to `first` if none."""

    def alive(self, time: int) -> NDArray[np.intp]:
        """The nodes alive at a time, which is an index into `times`."""
        return np.flatnonzero((self.first <= time) & (time < self.stop))

    def used(self, choice: Sequence[int]) -> Array:
        """The usage of a choice at each of the times, shape (times,)."""
        usage = np.array([of[s] for of, s in zip(self.usages, choice, strict=True)])
        n = len(self.times) + 1
        change = np.bincount(self.first, usage, n) - np.bincount(self.stop, usage, n)
        used: Array = change.cumsum()[:-1]
        return used
