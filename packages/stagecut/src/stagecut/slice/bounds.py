"""Lower bounds by Lagrange multipliers: they tell which stages a better slicing can contain.

The cluster couples the stages: together they use D devices. If we instead charge lambda seconds for
each device, what remains is an ordinary shortest path (arcs.py), which is fast for any number of
devices. For every lambda, also a negative one,

    L(lambda) = min over paths of sum (t + lambda size)  -  lambda D   <=   any slicing's sum of t

So the lambda with the largest L gives the best lower bound, and the shortest path that is forced
through one stage gives a lower bound for all slicings with this stage. Stages whose bound is not
below the time of a known slicing are dropped.

Reference:
    Handler and Zang, "A dual algorithm for the constrained shortest path problem", Networks 10(4),
    1980. As there, we find the multiplier by intersecting lines.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from stagecut.slice.arcs import Arcs, Floats
from stagecut.slice.pipeline_lengths import CountedLengths, Lengths

ROUNDING = 1e-9
"""Relative tolerance: sums of the same times in another order differ by less."""

_CLOSE = 1e-4
"""Relative tolerance: the search for a multiplier stops when its L is this close to the best. Every
multiplier gives a true bound."""

_CANCELLED = 1e-12
"""Relative margin, larger than the rounding error of subtracting the price of all devices."""

_LINES = 40
"""The most multipliers that are tried."""


@dataclass(slots=True, eq=False)
class ArcBounds:
    """Lower bounds of the sums of times of paths that use the right number of devices."""

    sum_s: float
    """A lower bound for all such paths."""
    through_s: Floats
    """For each arc, a lower bound for such paths through this arc."""
    multiplier: float
    """Seconds charged for a device."""
    rest_s: float
    """The largest `rest_s` on the relaxed path."""


def placeable(lengths: Lengths | CountedLengths, n_devices: int, use_all: bool) -> Arcs:
    """The arcs that may be on a path with `n_devices`, or with fewer if not all must be used.

    An arc is dropped if even the paths through it with the fewest devices use too many, or if
    those with the most devices use too few.
    """
    arcs, size = lengths.arcs, lengths.arcs.size.astype(np.float64)
    fits = lengths.through(size, lengths.to_end(size)) <= n_devices
    if use_all:
        fits &= -lengths.through(-size, lengths.to_end(-size)) >= n_devices
    return arcs.take(fits)


def relax(
    lengths: Lengths | CountedLengths, n_devices: int, use_all: bool, start: float, enough_s: float
) -> ArcBounds | None:
    """Lower bounds with a good multiplier; None if there is no path.

    The search for the multiplier begins at `start`. It ends when L is close to its maximum, or when
    the bound reaches `enough_s`.

    As a function of the multiplier each path is a line, whose slope is the number of devices that
    it uses beyond `n_devices`. L is the minimum of all lines, and has its maximum where a line that
    falls meets one that rises.
    """
    arcs, multiplier = lengths.arcs, start
    if not arcs.row.size:
        return None
    over: tuple[float, int] | None = None  # seconds and devices of a path with too many devices
    under: tuple[float, int] | None = None  # and of one that does not use too many
    expected = np.inf
    for step in itertools.count():
        weight = arcs.time_s + multiplier * arcs.size
        to_end = lengths.to_end(weight)
        total, path = lengths.shortest(weight, to_end)
        if total == np.inf:
            return None
        sum_s, used = total - multiplier * n_devices, int(arcs.size[path].sum())
        if (
            used == n_devices
            or (used < n_devices and multiplier == 0 and not use_all)
            or sum_s >= min(enough_s, expected - _CLOSE * abs(expected))
            or step == _LINES
        ):
            break
        line = total - multiplier * used, used
        over, under = (line, under) if used > n_devices else (over, line)
        if over is not None and under is not None:
            multiplier = (under[0] - over[0]) / (over[1] - under[1])
            expected = over[0] + multiplier * (over[1] - n_devices)
        else:
            share = (abs(total) or 1.0) / n_devices
            multiplier = (
                max(2 * multiplier, share) if used > n_devices else min(2 * multiplier, -share)
            )
        if not use_all:
            multiplier = max(multiplier, 0.0)
    paid_s = multiplier * n_devices
    paid_s += abs(paid_s) * _CANCELLED
    return ArcBounds(
        sum_s=sum_s,
        through_s=lengths.through(weight, to_end) - paid_s,
        multiplier=multiplier,
        rest_s=float(arcs.rest_s[path].max()),
    )
