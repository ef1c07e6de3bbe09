"""Finds the slicing with the shortest step among given stages (arcs.py).

    minimise  sum of t_j + max of r_j,     r_j = (B - 1) t_j + work of stage j done once a step

Under a limit on r, the smallest sum of t is a shortest path (best_paths.py). Alpa tries the limits
from below, every possible price in turn. We come from above: let m be the largest r on the path
with the smallest sum under some limit. Then no path under that limit whose largest r is m or more
is better, so the next limit is just below m. And if the best step known takes U, and the sum is at
least T under the present limit, then r must be less than U - T. This visits few limits, and is
exact without Alpa's epsilon.

A known U also rules out most stages before the table is computed (bounds.py). So the search begins
with a guess of U, a little above a lower bound. It looks for a slicing that is better than the
guess. This either finds the best of all slicings, or proves that none is better than the guess;
then the guess is raised.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from stagecut.placement.offers import Places
from stagecut.slice.arcs import Arcs, Floats, Ints
from stagecut.slice.best_paths import Table, Values, best_path, tabulate
from stagecut.slice.bounds import ROUNDING, placeable, relax
from stagecut.slice.dp_states import StateTable, tabulate_states
from stagecut.slice.pipeline_lengths import CountedLengths, Lengths

_TARGETS = 2.0 ** (np.arange(1, 34, 2) / 32)
"""The guesses of the best step, as multiples of its estimate; after the last one there is no limit.

With finer steps, fewer stages are left when the best step is found, but more bounds are computed.
"""

_FLOOR_STEPS = 12
"""Bisection steps for a lower bound of the largest r. Any number of them gives a true bound."""

_ESTIMATES = 2.0 ** (np.arange(13) / 8)
"""Limits on r for which the best step is estimated, as multiples of the lower bound of the largest
r."""

_WORTHWHILE = 0.9
"""Bounds are computed again if the last ones left less than this share of the arcs."""

_FEW = 2**18
"""A table with at most this many sums takes less time than bounds would: about a millisecond."""


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """The cluster and the memory that the stages of a slicing must fit."""

    places: Places
    memory_bytes: Floats
    """By shape of submesh, the memory of a device; inf for no limit."""
    in_flight: Floats
    """Microbatches held by a stage that is the last, the last but one, ...; one entry for each
    stage that there can be."""
    steps: Ints | None
    """`Places.after` of all shapes; None if a state is the number of devices taken."""

    @classmethod
    def of(
        cls, places: Places, memory_bytes: Sequence[float], in_flight: Sequence[int]
    ) -> "Limits":
        """Make the limits, with `steps` if counting devices is not enough on this cluster."""
        steps = np.array([places.after(h) for h in range(len(places.shapes))])
        taken = np.arange(places.n_states) + np.array(places.sizes)[:, None]
        counts = np.array_equal(steps, np.where(taken < places.n_states, taken, -1))
        held = np.array(in_flight, dtype=np.float64)
        limits = np.array(memory_bytes, dtype=np.float64)
        return cls(places, limits, held, None if counts else steps)

    def room_bytes(self, arcs: Arcs) -> Floats:
        """The memory beside `Arcs.base_bytes`, one entry for each arc."""
        return self.memory_bytes[arcs.shape] - arcs.base_bytes

    @property
    def has_memory(self) -> bool:
        """Whether memory is limited at all."""
        return bool((self.memory_bytes < math.inf).any())

    def tabulate(
        self, arcs: Arcs, values: Values, combine: np.ufunc, n_stages: int
    ) -> Table | StateTable:
        """Run the dynamic program: over numbers of devices if that is enough, else over states."""
        if self.steps is None:
            return tabulate(arcs, values, combine, *self.devices, n_stages)
        complete = self.places.complete
        return tabulate_states(arcs, values, combine, self.steps, complete, n_stages)

    @property
    def devices(self) -> tuple[int, bool]:
        """The number of devices, and whether all must be used."""
        return self.places.n_devices, self.places.use_all


@dataclass(frozen=True, slots=True)
class FoundSlicing:
    """A slicing that the search found."""

    rows: tuple[int, ...]
    """`Arcs.row` of its stages, in order."""
    time_s: float
    """Time of a step."""


def shortest_step(
    arcs: Arcs,
    limits: Limits,
    counts: Sequence[int] | None = None,
    gap: float = 0.0,
) -> FoundSlicing | None:
    """The slicing with the shortest step; None if no slicing keeps to the limits.

    Args:
        arcs: The stages to choose from.
        limits: The cluster and the memory that the stages must fit.
        counts: Numbers of stages that the slicing may have, ascending; None for any.
        gap: The slicing may take up to `1 + gap` times as long as the shortest.

    Returns:
        Ties go to fewer stages if these are counted, then to the stages that are first in `arcs`.
    """
    kept = limits.in_flight.min() * arcs.activation_bytes
    arcs = arcs.take(kept <= limits.room_bytes(arcs))
    arcs = placeable(Lengths(arcs), *limits.devices)
    if not arcs.row.size:
        return None
    if _is_little(arcs, limits):
        return _Problem(limits, counts, gap, 0.0).better_than(arcs, math.inf, 0.0)
    problem = _Problem(limits, counts, gap, _floor(arcs, limits))
    estimate, limit_s = problem.estimate(arcs)
    for target in _TARGETS:
        slicing = problem.better_than(arcs, float(estimate * target), limit_s)
        if slicing is not None:
            return slicing
    return problem.better_than(arcs, math.inf, limit_s)


def promising(arcs: Arcs, limits: Limits, counts: Sequence[int] | None, time_s: float) -> Arcs:
    """The arcs without many of those that no slicing below `time_s` contains."""
    arcs = placeable(Lengths(arcs), *limits.devices)
    return _Problem(limits, counts, 0.0, 0.0).drop(arcs, 0.0, time_s)


@dataclass(frozen=True, slots=True)
class _Problem:
    limits: Limits
    counts: Sequence[int] | None
    gap: float
    floor_s: float
    """Every slicing has a stage whose r is at least as large."""

    def estimate(self, arcs: Arcs) -> tuple[float, float]:
        """An estimate of the best step, and the limit on r with which it was made.

        The estimate is a lower bound of the sum of t under this limit, plus a value for r.
        """
        limits_s = [*(self.floor_s * _ESTIMATES), math.inf] if self.floor_s else [math.inf]
        best, multiplier = (math.inf, math.inf), 0.0
        for limit_s in limits_s:
            lengths = Lengths(arcs.take(arcs.rest_s <= limit_s))
            bounds = relax(lengths, *self.limits.devices, multiplier, math.inf)
            if bounds is not None:
                multiplier = bounds.multiplier
                if bounds.sum_s + self.floor_s >= best[0]:
                    break
                best = min(best, (bounds.sum_s + min(limit_s, bounds.rest_s), limit_s))
        return best

    def better_than(self, arcs: Arcs, time_s: float, first_limit_s: float) -> FoundSlicing | None:
        """The best slicing that takes less than `time_s`; None if there is none.

        Args:
            arcs: The stages to choose from.
            time_s: The slicing must take less time.
            first_limit_s: A limit on r. We first search below it, as a good slicing is likely to be
                there, and its time rules out many stages of the rest.
        """
        best: FoundSlicing | None = None
        for floor_s, limit_s in ((self.floor_s, first_limit_s), (first_limit_s, math.inf)):
            some = arcs
            while limit_s > floor_s:
                some = self._under(some, limit_s, floor_s, time_s)
                shortest = self._shortest(some)
                if shortest is None:
                    break
                sum_s, path = shortest
                rest_s = float(some.rest_s[path].max())
                if sum_s + rest_s < time_s:
                    time_s = sum_s + rest_s
                    best = FoundSlicing(tuple(some.row[path].tolist()), time_s)
                limit_s = min(rest_s, time_s / (1 + self.gap) - sum_s)
        return best

    def _under(self, arcs: Arcs, limit_s: float, floor_s: float, time_s: float) -> Arcs:
        """The arcs whose r is below a limit, without many that no slicing below `time_s` has."""
        alone_s = arcs.time_s + np.maximum(floor_s, arcs.rest_s)
        arcs = arcs.take((arcs.rest_s < limit_s) & (alone_s < time_s * (1 + ROUNDING)))
        if _is_little(arcs, self.limits):
            return arcs
        arcs = placeable(Lengths(arcs), *self.limits.devices)
        return self.drop(arcs, floor_s, time_s / (1 + self.gap))

    def drop(self, arcs: Arcs, floor_s: float, time_s: float) -> Arcs:
        """The arcs without many of those that no slicing below `time_s` contains.

        The largest r of a slicing is taken to be at least `floor_s`. Bounds that do not count
        stages come first, as they are much faster.
        """
        devices = self.limits.devices
        for lengths_of in (Lengths, self._lengths):
            multiplier, before = 0.0, math.inf
            while 0 < arcs.row.size < before * _WORTHWHILE:
                before = arcs.row.size
                arcs = placeable(lengths_of(arcs), *devices)
                bounds = relax(lengths_of(arcs), *devices, multiplier, time_s - floor_s)
                if bounds is None:
                    return arcs.take(np.zeros(arcs.row.size, dtype=np.bool_))
                multiplier = bounds.multiplier
                at_least_s = bounds.through_s + np.maximum(floor_s, arcs.rest_s)
                arcs = arcs.take(at_least_s < time_s * (1 + ROUNDING))
        return placeable(Lengths(arcs), *devices)

    def _lengths(self, arcs: Arcs) -> Lengths | CountedLengths:
        return lengths_within(arcs, self.limits, self.counts)

    def _shortest(self, arcs: Arcs) -> tuple[float, Ints] | None:
        """The smallest sum of times, and a path that has it; None if there is no path."""
        lengths = self._lengths(arcs)
        if not lengths.counts:
            return None
        values = partial(lengths.stages, weight=arcs.time_s)
        table = self.limits.tabulate(arcs, values, np.add, lengths.n_stages)
        best, count = min((table.best(n), n) for n in lengths.counts)
        return None if best == math.inf else (best, best_path(table, count))


def lengths_within(
    arcs: Arcs, limits: Limits, counts: Sequence[int] | None
) -> Lengths | CountedLengths:
    """The paths that keep to the limits.

    Stages are counted only if `counts` or the memory depends on their number.
    """
    held = limits.in_flight
    if not _is_little(arcs, limits):
        held = held[: Lengths(arcs).most_stages()]
    room_bytes = limits.room_bytes(arcs)
    if counts is None and (held.max(initial=0) * arcs.activation_bytes <= room_bytes).all():
        return Lengths(arcs)
    possible = [count for count in counts or range(1, held.size + 1) if count <= held.size]
    lengths = CountedLengths(arcs, possible, room_bytes, held[: max(possible, default=0)])
    if not _is_little(arcs, limits):
        fewest = lengths.to_end(arcs.size.astype(np.float64))[0]
        possible = [count for count in possible if fewest[count] <= limits.places.n_devices]
        lengths = replace(lengths, counts=possible, in_flight=held[: max(possible, default=0)])
    return lengths


def _is_little(arcs: Arcs, limits: Limits) -> bool:
    """Whether the table of the arcs is so small that bounds would not save time."""
    return arcs.row.size * limits.places.n_states * limits.in_flight.size <= _FEW


def _floor(arcs: Arcs, limits: Limits) -> float:
    """A lower bound of the largest r: stages with less do not suffice for any slicing."""
    low, high = 0.0, float(arcs.rest_s.max())
    for _ in range(_FLOOR_STEPS):
        middle = (low + high) / 2
        some = arcs.take(arcs.rest_s <= middle)
        lengths, size = Lengths(some), some.size.astype(np.float64)
        if lengths.to_end(size)[0] <= limits.places.n_devices:
            arcs, high = some, middle
        else:
            low = middle
    return low
