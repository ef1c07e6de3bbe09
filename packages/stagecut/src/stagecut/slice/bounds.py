"""Which stages can be in a slicing that is better than a known one: bounds by multipliers.

The cluster couples the stages: together they use D devices. Put a price of lambda seconds on each
device instead, and what is left is a plain shortest path (arcs.py), fast for any number of devices.
For every lambda, also below 0,

    L(lambda) = min over paths of sum (t + lambda size)  -  lambda D   <=   any slicing's sum of t

so the lambda that makes it largest gives a lower bound, and the shortest path forced through one
stage a lower bound for all slicings with this stage. Stages for which that is no better than a
known slicing are dropped.

Reference:
    Handler and Zang, "A dual algorithm for the constrained shortest path problem", Networks 10(4),
    1980: the multiplier by intersecting lines, as done here.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from stagecut.slice.arcs import Arcs, Floats
from stagecut.slice.pipeline_lengths import CountedLengths, Lengths

ROUNDING = 1e-9
"""Relative; sums of the same times in another order differ by less."""

_CLOSE = 1e-4
"""Relative; a multiplier whose L is this close to the best will do: any gives a true bound."""

_CANCELLED = 1e-12
"""Relative; more than what is lost when the price of all devices is taken off a sum with it."""

_LINES = 40
"""When to be content with any multiplier."""


@dataclass(slots=True, eq=False)
class ArcBounds:
    """What is known about the paths of some arcs."""

    sum_s: float
    """No path that uses the right number of devices has a smaller sum of times."""
    through_s: Floats
    """Nor any through this arc, for each."""
    multiplier: float
    """Seconds for a device."""
    rest_s: float
    """The largest `rest_s` on the relaxed path."""


def placeable(lengths: Lengths | CountedLengths, n_devices: int, use_all: bool) -> Arcs:
    """Without the arcs on no path that uses `n_devices`, or fewer if not all need be used."""
    arcs, size = lengths.arcs, lengths.arcs.size.astype(np.float64)
    fits = lengths.through(size, lengths.to_end(size)) <= n_devices
    if use_all:
        fits &= -lengths.through(-size, lengths.to_end(-size)) >= n_devices
    return arcs.take(fits)


def relax(
    lengths: Lengths | CountedLengths, n_devices: int, use_all: bool, start: float, enough_s: float
) -> ArcBounds | None:
    """Bounds with a good multiplier; None if there is no path.

    It is looked for from `start` on, until it is about the best or makes the sum `enough_s`.

    Each path is a line in the multiplier, its slope the devices it uses too many, and L the least
    of all lines. The best multiplier is where a line that falls meets one that rises.
    """
    arcs, multiplier = lengths.arcs, start
    if not arcs.row.size:
        return None
    over: tuple[float, int] | None = None  # seconds and devices of a path with too many
    under: tuple[float, int] | None = None
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
