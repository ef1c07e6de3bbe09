"""Of all ways to cut work into a given number of runs, the one with the least sum of squares.

Possible cuts are given, and how far a run from each may go; L runs of mean m are wanted. Then r
runs with work x, followed by L - r with the rest, make a sum of at least

    q(x, r) + q(L m - x, L - r)        where q(x, r) = x^2 / r, or more if pieces are heavier

A piece is the work between two possible cuts, which no run can split. If one has more than x / r,
best it is a run of its own, and the rest is shared by the others: q(x, r) = p^2 + q(x - p, r - 1).
(The k largest runs have at least the k heaviest pieces; of all such sums, that one's runs differ
least: they are majorized by every other's.)

So if the least sum is larger than q(L m, L) by little, few cuts can be the r-th. We guess by how
much it is larger, keep only cuts that can be within, and guess more until there is a way: it is the
best then. The search is exact for any guess; the better all runs can be equal, the faster it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagecut.base.edges import Ints

Floats = NDArray[np.float64]

_ROUNDING = 1e-9
"""Relative; sums of floats in another order."""

_HEAVY = 8
"""Heavy pieces looked at; a matter of speed only. Every one more sharpens the bound, and costs."""

_ROWS = 64
"""Cuts compared at once. A matter of speed only: fewer make more calls, more compare in vain."""


def most_uniform(done: Floats, reach: Ints, n_runs: int) -> list[int]:
    """Find the way of `n_runs` runs with the least sum of squares of their work.

    Args:
        done: Work before each possible cut, the first and the last included; on average 1 a run.
        reach: Of each cut the index of the furthest at which a run from there may end; it may end
            at all between. From each but the last, the last can be reached.
        n_runs: Runs in a way; there is at least one such way.

    Returns:
        Indices of the `n_runs + 1` cuts. Ties go to the longest last runs.

    Examples:
        >>> most_uniform(np.array([0.0, 0.5, 1.5, 2.5, 3.0]), np.array([2, 3, 3, 4, 4]), 3)
        [0, 2, 3, 4]
    """
    last = len(done) - 1
    # The r-th cut is one to which r runs lead, and from which as many as are left lead on.
    furthest = np.maximum.accumulate(reach)
    to, back = [0], [last]
    for _ in range(n_runs):
        to.append(int(furthest[to[-1]]))
        back.append(int(np.searchsorted(furthest, back[-1])))
    pieces = np.diff(done)
    heavy = np.argsort(-pieces, kind="stable")[:_HEAVY]
    search = _Search(
        done=done,
        reach=reach,
        furthest=furthest,
        possible=tuple(
            (max(first, r), min(end, last - (n_runs - r)))
            for r, (first, end) in enumerate(zip(reversed(back), to, strict=True))
        ),
        heavy=tuple((float(pieces[k]), int(k)) for k in heavy if pieces[k] > done[-1] / n_runs),
    )
    # As if a run missed the average by the work between two cuts. Only a start.
    spare = (done[-1] / last) ** 2
    while (way := search.way_within(spare)) is None:
        spare *= 4
    return way


@dataclass(frozen=True, slots=True)
class _Search:
    done: Floats
    reach: Ints
    furthest: Ints
    """The largest `reach` of a cut and those before."""
    possible: tuple[tuple[int, int], ...]
    """Of each r, the first and the last index that the r-th cut can have."""
    heavy: tuple[tuple[float, int], ...]
    """The heaviest pieces, heaviest first, and the cut before each."""

    def way_within(self, spare: float) -> list[int] | None:
        """The best way, if its sum is above the bound by no more than `spare`; else None."""
        n, total = len(self.possible) - 1, float(self.done[-1])
        most = spare + float(self._at_least(np.array([0]), 0)[0])
        # Where q(x, r) = x^2 / r alone rules no cut out; and a single run, by its work.
        excess = max(most - total**2 / n, 0.0)
        odds = np.sqrt(excess * (n - 1) / n) + _ROUNDING * total
        low, sums = 0, np.zeros(1)
        tables: list[tuple[int, Ints]] = []
        for r in range(1, n + 1):
            around = np.sqrt(excess * r * (n - r) / n) + _ROUNDING * total
            start, stop = np.searchsorted(self.done, total * r / n + np.array([-around, around]))
            ends = np.arange(max(start, self.possible[r][0]), min(stop, self.possible[r][1] + 1))
            ends = _hull(ends, self._at_least(ends, r) <= most)
            best, firsts = self._extended(low, sums, ends, total / n - odds, total / n + odds)
            kept = _hull(np.arange(len(ends)), best + self._after(ends, r) <= most)
            if not kept.size:
                return None
            low, sums = int(ends[kept[0]]), best[kept]
            tables.append((low, firsts[kept]))
        way = [len(self.done) - 1]
        for low, firsts in reversed(tables):
            way.append(int(firsts[way[-1] - low]))
        return way[::-1]

    def _extended(
        self, low: int, sums: Floats, ends: Ints, lightest: float, heaviest: float
    ) -> tuple[Floats, Ints]:
        """The least sums of the ways to `ends`, and the cuts where their last runs begin.

        Args:
            low: The first cut where these may begin.
            sums: Of the ways to that one and those behind.
            ends: Consecutive cuts.
            lightest: What the last run may have of work.
            heaviest: The same.
        """
        best, firsts = np.full(len(ends), np.inf), np.zeros(len(ends), dtype=np.int64)
        begin = np.searchsorted(self.done, self.done[ends] - heaviest)
        begin = np.maximum(np.maximum(begin, np.searchsorted(self.furthest, ends)), low)
        stop = np.searchsorted(self.done, self.done[ends] - lightest, side="right")
        stop = np.minimum(np.minimum(stop, ends), low + len(sums))
        for rows in (slice(k, k + _ROWS) for k in range(0, len(ends), _ROWS)):
            row = ends[rows, None]
            column = np.arange(begin[rows][0], stop[rows][-1])
            if not column.size:
                continue
            squares = (self.done[row] - self.done[column]) ** 2
            cells = sums[column - low] + squares
            cells[(self.reach[column] < row) | (column >= row)] = np.inf
            at = cells.argmin(axis=1)
            best[rows] = cells[np.arange(len(at)), at]
            firsts[rows] = column[at]
        return best, firsts

    def _at_least(self, ends: Ints, r: int) -> Floats:
        """The sum of a way with its r-th cut there."""
        before = [(piece, k < ends) for piece, k in self.heavy]
        return _least_squares(self.done[ends], r, before) + self._after(ends, r)

    def _after(self, ends: Ints, r: int) -> Floats:
        """The sum of what follows the r-th cut."""
        rest = self.done[-1] - self.done[ends]
        behind = [(piece, k >= ends) for piece, k in self.heavy]
        return _least_squares(rest, len(self.possible) - 1 - r, behind)


def _least_squares(
    work: Floats, n_runs: int, pieces: Iterable[tuple[float, NDArray[np.bool_]]]
) -> Floats:
    """q(x, r) above, for many x.

    Args:
        work: x.
        n_runs: r. Without runs there is no work.
        pieces: Heavy ones, heaviest first, and of which x each is a part.
    """
    sums, runs = np.zeros_like(work), np.full(work.shape, n_runs)
    for piece, is_part in pieces:
        alone = is_part & (piece * runs > work * (1 + _ROUNDING))
        sums += np.where(alone, piece**2, 0.0)
        work = np.where(alone, work - piece, work)
        runs = runs - alone
    squares: Floats = sums + work**2 / np.maximum(runs, 1)
    return squares


def _hull(indices: Ints, wanted: NDArray[np.bool_]) -> Ints:
    """From the first wanted one to the last."""
    found = np.flatnonzero(wanted)
    return indices[found[0] : found[-1] + 1] if found.size else indices[:0]
