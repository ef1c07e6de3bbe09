"""`slice_stages` against another exact search, where brute force is out of the question.

That search has no limit on the slowest stage: it keeps, for every suffix of the layers on every
number of devices, all pairs of sum and maximum that no other pair is better than, except if even
the best for the layers before, bounded separately, makes the step longer than what was found.
"""

import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stagecut import (
    InfeasibleStagesError,
    Places,
    Span,
    StageCost,
    slice_stages,
    submesh_shapes,
)
from stagecut.base.held_microbatches import SCHEDULES


@dataclass(frozen=True)
class Problem:
    """What `slice_stages` is asked. Times are multiples of 2^-10 s, so that sums are exact."""

    n_layers: int
    cluster_shape: tuple[int, int]
    n_microbatches: int
    costs: Mapping[Span, tuple[StageCost, ...]]
    memory_bytes: int | None = None
    boundaries_s: tuple[float, ...] = ()
    schedule: str = "1f1b"
    n_stages: int | None = None
    use_all: bool = True

    def found_s(self):
        """What `slice_stages` finds; inf if nothing."""
        try:
            return slice_stages(
                self.n_layers,
                Places.uniform(*self.cluster_shape, use_all=self.use_all),
                self.n_microbatches,
                lambda *span: self.costs[span],
                self.memory_bytes,
                boundary_s=self.boundaries_s.__getitem__ if self.boundaries_s else None,
                schedule=self.schedule,
                n_stages=self.n_stages,
                alternatives=False,
            ).time_s
        except InfeasibleStagesError:
            return math.inf

    def in_flight(self, stages_from_here):
        return SCHEDULES[self.schedule](stages_from_here, self.n_microbatches)

    def ways(self):
        """Every stage that could be, with r: what the step takes longer if no other is slower."""
        for (first, last, shape), options in self.costs.items():
            for cost in options:
                time_s = cost.time_s + (self.boundaries_s[first] if self.boundaries_s else 0.0)
                rest_s = (self.n_microbatches - 1) * time_s + cost.once_s
                yield first, last + 1, math.prod(shape), time_s, rest_s, cost


def of_prefixes(problem, n_devices, values, combine):
    """The least value of the first layers on so many devices, whatever memory they need."""
    least = np.full((problem.n_layers + 1, n_devices + 1), np.inf)
    least[0, 0] = 0.0
    for first, stop, size, value in sorted(values):
        if size <= n_devices:
            longer = combine(least[first, : n_devices + 1 - size], value)
            least[stop, size:] = np.minimum(least[stop, size:], longer)
    return least if problem.use_all else np.minimum.accumulate(least, axis=1)


def best_time_s(problem, at_most):
    """The shortest step; inf if none takes `at_most`, which makes it a lot faster."""
    n_layers, n_devices = problem.n_layers, math.prod(problem.cluster_shape)
    # How many stages follow is told apart as far as it matters to memory, or to those who ask.
    told_apart = n_layers
    if problem.n_stages is None:
        held = [problem.in_flight(n) for n in range(1, n_layers + 1)]
        told_apart = held.index(held[-1]) + 1 if problem.memory_bytes is not None else 1
    by_first = {first: [] for first in range(n_layers)}
    for way in problem.ways():
        by_first[way[0]].append(way)
    every = [way for ways in by_first.values() for way in ways]
    least_sum = of_prefixes(problem, n_devices, [(*way[:3], way[3]) for way in every], np.add)
    least_rest = of_prefixes(problem, n_devices, [(*way[:3], way[4]) for way in every], np.maximum)

    fronts = {n_layers: {(0, 0): (np.zeros(1), np.zeros(1))}}
    for first in reversed(range(n_layers)):
        longer = {}
        for _, stop, size, time_s, rest_s, cost in by_first[first]:
            for (n_after, others), (sums, rests) in fronts[stop].items():
                here = min(n_after + 1, told_apart)
                peak = cost.fixed_bytes + cost.temporary_bytes
                peak += problem.in_flight(n_after + 1) * cost.activation_bytes
                fits = problem.memory_bytes is None or peak <= problem.memory_bytes
                if fits and others + size <= n_devices:
                    pairs = sums + time_s, np.maximum(rests, rest_s)
                    longer.setdefault((here, others + size), []).append(pairs)
        fronts[first] = {}
        for (here, devices), pairs in longer.items():
            sums, rests = map(np.concatenate, zip(*pairs, strict=True))
            before = first, n_devices - devices
            good = least_sum[before] + sums + np.maximum(rests, least_rest[before]) <= at_most
            order = np.lexsort((rests[good], sums[good]))
            sums, rests = sums[good][order], rests[good][order]
            kept = rests < np.minimum.accumulate([np.inf, *rests])[:-1]
            if kept.any():
                fronts[first][here, devices] = sums[kept], rests[kept]
    times = [
        float((sums + rests).min())
        for (n_stages, devices), (sums, rests) in fronts[0].items()
        if (devices == n_devices or not problem.use_all) and problem.n_stages in (None, n_stages)
    ]
    return min(times, default=math.inf)


def spans(n_layers, cluster_shape):
    runs = itertools.combinations_with_replacement(range(n_layers), 2)
    return [(*run, shape) for run in runs for shape in submesh_shapes(*cluster_shape)]


def unrelated(seed, n_layers, cluster_shape, **rest):
    """Costs with nothing in common but that more layers tend to take longer; up to two options."""
    draw = random.Random(seed)

    def options(first, last, shape):
        return tuple(
            StageCost(
                draw.randrange(1, 1024) * (last - first + 1) / 2**10,
                fixed_bytes=draw.randrange(4) * (last - first + 1),
                activation_bytes=draw.randrange(4) * (last - first + 1),
                once_s=draw.randrange(1024) / 2**10,
                temporary_bytes=draw.randrange(4),
            )
            for _ in range(draw.randrange(1, 3))
        )

    costs = {span: options(*span) for span in spans(n_layers, cluster_shape)}
    boundaries_s = tuple(draw.randrange(512) / 2**10 if first else 0.0 for first in range(n_layers))
    return Problem(n_layers, cluster_shape, costs=costs, boundaries_s=boundaries_s, **rest)


def related(seed, n_layers, cluster_shape, **rest):
    """Layers of different work; every device more helps less than the one before it."""
    draw = random.Random(seed)
    work = [draw.randrange(8, 25) for _ in range(n_layers)]

    def cost(first, last, shape):
        n_devices, n_layers = math.prod(shape), last - first + 1
        units = sum(work[first : last + 1]) * (1 + 0.125 * (shape[1] - 1) + shape[0] - 1)
        return StageCost(
            int(units * 4 / n_devices) / 2**10,
            fixed_bytes=640 * n_layers // n_devices,
            activation_bytes=64 * n_layers // n_devices,
        )

    costs = {span: (cost(*span),) for span in spans(n_layers, cluster_shape)}
    return Problem(n_layers, cluster_shape, costs=costs, **rest)


LARGE = {
    "unrelated": unrelated(0, 48, (8, 8), n_microbatches=8),
    "unrelated, 16 stages": unrelated(1, 48, (8, 8), n_microbatches=64, n_stages=16),
    "unrelated within memory": unrelated(2, 48, (8, 8), n_microbatches=4, memory_bytes=24),
    "unrelated on some devices": unrelated(5, 48, (8, 8), n_microbatches=8, use_all=False),
    "related": related(3, 48, (8, 8), n_microbatches=8),
    "related within memory": related(4, 48, (8, 8), n_microbatches=3, memory_bytes=600),
}


@pytest.mark.parametrize("case", LARGE)
def test_no_slicing_of_48_layers_on_8_hosts_of_8_devices_is_faster(case):
    found_s = LARGE[case].found_s()
    assert found_s == best_time_s(LARGE[case], found_s) < math.inf


@given(
    kind=st.sampled_from((unrelated, related)),
    seed=st.integers(0, 2**32),
    n_layers=st.integers(8, 12),
    cluster_shape=st.sampled_from(((1, 8), (2, 4), (3, 4), (2, 6), (5, 2))),
    n_microbatches=st.integers(1, 8),
    memory_bytes=st.none() | st.integers(8, 40) | st.integers(600, 1200),
    schedule=st.sampled_from(sorted(SCHEDULES)),
    n_stages=st.none() | st.integers(1, 8),
    use_all=st.booleans(),
)
def test_no_slicing_of_more_layers_than_brute_force_can_do_is_faster(kind, seed, **sizes):
    problem = kind(seed, **sizes)
    found_s = problem.found_s()
    assert found_s == best_time_s(problem, found_s)
