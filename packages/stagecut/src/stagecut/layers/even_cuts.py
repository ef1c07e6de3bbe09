"""Cuts work into a given number of runs such that the sum of the squares of their work is smallest.

The input is the possible cuts, and how far a run that begins at each of them may go. We look for L
runs, whose mean work is m. If the first r runs have work x, and the other L - r runs have the rest,
then the sum of squares is at least

    q(x, r) + q(L m - x, L - r)        where q(x, r) = x^2 / r, or more if pieces are heavier

A piece is the work between two neighbouring cuts, which no run can split. If a piece p is heavier
than x / r, the bound is lowest if p is a run by itself and the other runs share the rest equally:
q(x, r) = p^2 + q(x - p, r - 1). (The k largest runs contain at least the k heaviest pieces. Of all
divisions for which this holds, the one with equal shares is majorized by every other, so its sum of
squares is the smallest.)

So if the smallest sum is only a little larger than q(L m, L), few cuts can be the r-th one. We
guess how much larger it is, keep only the cuts that are possible within the guess, and raise the
guess until there is a division; that division is the best one. The search is exact for any guess,
and it is faster the more equal the runs can be.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagecut.base.edges import Ints

Floats = NDArray[np.float64]

_ROUNDING = 1e-9
"""Relative tolerance for sums of floats that are added in different orders."""

_HEAVY = 8
"""How many heavy pieces the bound considers. Only speed depends on it: more pieces give a sharper
bound, which takes longer to compute."""

_ROWS = 64
"""How many cuts are compared in one call of numpy. Only speed depends on it: with fewer there are
more calls, with more there are more pairs that cannot be a run."""


def most_uniform(done: Floats, reach: Ints, n_runs: int) -> list[int]:
    """Find the division into `n_runs` runs with the smallest sum of squares of their work.

    Args:
        done: Work before each possible cut, the first and the last cut included, in units in which
            a run has work 1 on average.
        reach: For each cut the index of the furthest one at which a run from there may end; it may
            also end at every cut in between. The last cut can be reached from every other.
        n_runs: Number of runs; at least one division into as many runs exists.

    Returns:
        Indices of the `n_runs + 1` cuts. Ties go to the longest last runs.

    Examples:
        >>> most_uniform(np.array([0.0, 0.5, 1.5, 2.5, 3.0]), np.array([2, 3, 3, 4, 4]), 3)
        [0, 2, 3, 4]
    """
    last = len(done) - 1
    # The r-th cut is one that r runs reach from the start, and from which the other runs reach the
    # end.
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
    # The first guess: one run misses the average by the mean work between two cuts.
    spare = (done[-1] / last) ** 2
    while (way := search.way_within(spare)) is None:
        spare *= 4
    return way


@dataclass(frozen=True, slots=True)
class _Search:
    done: Floats
    reach: Ints
    furthest: Ints
    """The largest `reach` of a cut and those before it."""
    possible: tuple[tuple[int, int], ...]
    """For each r, the first and the last index that the r-th cut can have."""
    heavy: tuple[tuple[float, int], ...]
    """The heaviest pieces, heaviest first, and the cut before each."""

    def way_within(self, spare: float) -> list[int] | None:
        """The best division, if its sum is at most `spare` above the lower bound; else None."""
        n, total = len(self.possible) - 1, float(self.done[-1])
        most = spare + float(self._at_least(np.array([0]), 0)[0])
        # By q(x, r) = x^2 / r alone, the r-th cut is within `around` of its mean position, and the
        # work of a single run is within `odds` of the mean.
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
        """The smallest sums of squares up to each cut of `ends`, and where the last runs begin.

        Args:
            low: The first cut at which the last run may begin.
            sums: The smallest sums up to this cut and those after it, with one run less.
            ends: Consecutive cuts.
            lightest: The least work that the last run may have.
            heaviest: The most work that the last run may have.
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
        """A lower bound of the sum of all divisions that have their r-th cut at each of `ends`."""
        before = [(piece, k < ends) for piece, k in self.heavy]
        return _least_squares(self.done[ends], r, before) + self._after(ends, r)

    def _after(self, ends: Ints, r: int) -> Floats:
        """A lower bound of the sum of the runs after the r-th cut, for each of `ends`."""
        rest = self.done[-1] - self.done[ends]
        later = [(piece, k >= ends) for piece, k in self.heavy]
        return _least_squares(rest, len(self.possible) - 1 - r, later)


def _least_squares(
    work: Floats, n_runs: int, pieces: Iterable[tuple[float, NDArray[np.bool_]]]
) -> Floats:
    """q(x, r) above, for many x.

    Args:
        work: The values of x.
        n_runs: r. If it is 0, there is no work.
        pieces: Heavy pieces, heaviest first, each with a mask of the x that it is a part of.
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
    """The entries from the first wanted one to the last."""
    at = np.flatnonzero(wanted)
    return indices[at[0] : at[-1] + 1] if at.size else indices[:0]
