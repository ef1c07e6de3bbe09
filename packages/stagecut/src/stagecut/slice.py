"""Cut layers into stages and the cluster into submeshes, together (Alpa 5.2).

Given are L layers, a cluster of N x M devices, B microbatches and the cost t of every run of layers
on every submesh. Wanted are the stages, each a run of layers on a submesh, in order, that

    minimise  sum of t_j + (B - 1) * max of t_j                         (Eq. 2)  -> pipeline_time_s
    where     the stages take every layer once, in order                         -> tabulate
              their submeshes take every device once                             -> tabulate
              fixed_j + in_flight(S - j) * activation_j <= memory_bytes (Eq. 5)  -> _times_below

with j from 0 to S - 1. For a limit on max t_j the least sum is a dynamic program (Eq. 3). Alpa
tries the limits from below, every price in turn. We come from above: a slicing with the least sum
under some limit, whose slowest stage takes m, is as good as any under that limit whose slowest
takes m or more, so the next limit is just below m. That visits only trade-offs between sum and
maximum, and is exact without Alpa's epsilon.

Prices are expensive (a search for the sharding of a stage each), so a caller may give a cheap bound
below each. Then stages enter the search at their bound, and only those are priced that occur in the
best slicing, until that has no bound left in it: what was never priced is proved to be no better.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stagecut.errors import InfeasibleStagesError, InvalidInputError
from stagecut.plan import (
    Alternative,
    BoundaryFunction,
    BoundFunction,
    CostFunction,
    Slicing,
    StageSlice,
    pipeline_time_s,
)
from stagecut.prices import Prices
from stagecut.schedule import InFlightFunction, one_f_one_b
from stagecut.table import Cut, Floats, tabulate, trace


def slice_stages(
    n_layers: int,
    cluster_shape: tuple[int, int],
    n_microbatches: int,
    cost: CostFunction,
    memory_bytes: int | None = None,
    *,
    bound_s: BoundFunction | None = None,
    boundary_s: BoundaryFunction | None = None,
    in_flight: InFlightFunction = one_f_one_b,
    gap: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
) -> Slicing:
    """Find the stages and submeshes with the shortest step (Alpa Eq. 2 to 5).

    Args:
        n_layers: Layers of the model; stages are runs of them.
        cluster_shape: Hosts, and devices per host.
        n_microbatches: Of a step.
        cost: Of first layer, last layer and submesh: what that stage costs, None if it cannot run.
            Asked at most once for each, and only for stages that some slicing of the whole has.
        memory_bytes: Of one device; None for no limit.
        bound_s: Of the same, a time that `cost` never falls below, such as FLOPs over peak FLOP/s;
            inf if the stage cannot run. The closer it is, the fewer stages are priced. Without it,
            all usable ones are.
        boundary_s: Of a layer, the time to bring one microbatch's values (and back, its gradients)
            into a stage that begins there; not called for layer 0. It counts as part of that
            stage's time, as if nothing overlapped it. Alpa leaves it out.
        in_flight: Of the number of stages from this one to the last, and of `n_microbatches`: how
            many microbatches the stage holds at most. The default is 1F1B's; Alpa's Eq. 5 is the
            same, but does not stop at the number of microbatches.
        gap: Stop when a priced slicing takes at most `1 + gap` times the lower bound.
        progress: Called after each price with the number of prices so far and the number there can
            be; with `bound_s` the search mostly ends long before that.

    Returns:
        The best slicing, with the best for every other number of stages. Equal input gives equal
        output: ties go to fewer stages, then to the smaller submesh and fewer layers in front.

    Raises:
        InvalidInputError: A size is below 1, or `gap` or a boundary's time is negative.
        InfeasibleStagesError: No slicing fits, or none has a price.
        InvalidBoundError: A bound is negative, or a stage took less than its bound.
    """
    if min(n_layers, n_microbatches, *cluster_shape) < 1 or not gap >= 0:
        raise InvalidInputError(
            "layers, microbatches, hosts and devices per host are at least 1, and gap at least 0; "
            f"got n_layers={n_layers}, n_microbatches={n_microbatches}, "
            f"cluster_shape={tuple(cluster_shape)}, gap={gap}"
        )
    prices = Prices(n_layers, cluster_shape, cost, bound_s, boundary_s, progress)
    search = _Search(prices, n_microbatches, memory_bytes, in_flight)
    if bound_s is None:
        prices.learn(prices.usable)
    chosen: _Found | None = None
    while True:
        found = search.best_slicings()
        if not found:
            raise search.infeasible()
        best = min(found, key=_rank)
        prices.learn(best.cuts)
        priced = search.evaluate(best.cuts)
        chosen = min(chosen or priced, priced, key=_rank)
        if chosen.time_s <= (1 + gap) * best.time_s:
            return _slicing(prices, chosen, best.time_s, search.best_slicings(of_each_count=True))


@dataclass(frozen=True, slots=True)
class _Found:
    """The best slicing with some number of stages, as far as prices are known."""

    cuts: tuple[Cut, ...]
    time_s: float


def _rank(found: _Found) -> tuple[float, int]:
    return found.time_s, len(found.cuts)


@dataclass(frozen=True, slots=True)
class _Search:
    """One problem, with what is known of its prices."""

    prices: Prices
    n_microbatches: int
    memory_bytes: int | None
    in_flight: InFlightFunction

    def best_slicings(self, *, of_each_count: bool = False) -> list[_Found]:
        """Slicings of different numbers of stages, fewest first; the best of all is among them.

        With `of_each_count` every number of stages that is possible is there with its best.
        """
        prices, n_devices = self.prices, self.prices.n_devices
        counts = list(range(1, min(prices.n_layers, n_devices) + 1))
        times = self._times_below(math.inf)
        smallest = tabulate(times, prices.sizes, n_devices, counts[-1], np.maximum)
        best: dict[int, _Found] = {}
        slowest: dict[int, float] = {}
        limit = math.inf
        while counts:
            table = tabulate(times, prices.sizes, n_devices, counts[-1], np.add)
            for count in counts:
                total = float(table[count][0, n_devices])
                # Lower limits only raise the total, and no maximum is below the mean.
                longest = max(total / count, float(smallest[count][0, n_devices]))
                at_least = total + (self.n_microbatches - 1) * longest
                rivals = [best[n] for n in best if n == count or not of_each_count]
                if total == math.inf or any(at_least >= rival.time_s for rival in rivals):
                    slowest[count] = 0.0
                elif slowest.get(count, math.inf) >= limit:
                    cuts = trace(table, times, prices.sizes, count, np.add)
                    found = self.evaluate(cuts)
                    best[count] = min(best.get(count, found), found, key=_rank)
                    slowest[count] = max(float(prices.time_s[h, i, j]) for i, j, h in cuts)
            counts = [count for count in counts if slowest[count]]
            limit = max((slowest[count] for count in counts), default=0.0)
            times = self._times_below(limit)
        return [best[count] for count in sorted(best)]

    def evaluate(self, cuts: tuple[Cut, ...]) -> _Found:
        """The time of one slicing at the prices known now; inf if it does not fit."""
        stage_values = self._times_below(math.inf)
        times = [
            float(stage_values(len(cuts) - stage)[h, first, last])
            for stage, (first, last, h) in enumerate(cuts)
        ]
        possible = max(times) < math.inf
        return _Found(cuts, pipeline_time_s(times, self.n_microbatches) if possible else math.inf)

    def infeasible(self) -> InfeasibleStagesError:
        """Why there is no slicing: the one that needs least memory, and what it needs."""
        prices = self.prices
        stage_values = self._peaks
        max_stages = min(prices.n_layers, prices.n_devices)
        table = tabulate(stage_values, prices.sizes, prices.n_devices, max_stages, np.maximum)
        peaks = [float(each[0, prices.n_devices]) for each in table]
        n_stages = int(np.argmin(peaks))
        if self.memory_bytes is None or peaks[n_stages] == math.inf:
            return InfeasibleStagesError(
                "every slicing of the layers over the cluster has a stage whose cost is None; "
                f"got n_layers={prices.n_layers}, shapes={prices.shapes}"
            )
        cuts = trace(table, stage_values, prices.sizes, n_stages, np.maximum)
        each = [
            float(stage_values(n_stages - stage)[h, first, last])
            for stage, (first, last, h) in enumerate(cuts)
        ]
        stage = int(np.argmax(each))
        first, last, _ = cuts[stage]
        peak = int(each[stage])
        at_least = "" if prices.are_known(prices.usable) else "at least "
        return InfeasibleStagesError(
            f"no slicing fits in {_gib(self.memory_bytes)} a device; the smallest peak is "
            f"{at_least}{_gib(peak)} (stage {stage} of {n_stages}, layers {first}-{last}); "
            "raise memory_bytes, take more devices, or make microbatches smaller",
            peak_bytes=peak,
            stage=stage,
            layers=(first, last),
        )

    def _times_below(self, limit: float) -> Callable[[int], Floats]:
        """Of s, the time of each stage that has s - 1 after it; inf if too long or too large."""
        times = np.where(self.prices.time_s < limit, self.prices.time_s, np.inf)

        def stage_values(s: int) -> Floats:
            if self.memory_bytes is None:
                return times
            return np.where(self._peaks(s) <= self.memory_bytes, times, np.inf)

        return stage_values

    def _peaks(self, s: int) -> Floats:
        """The memory of each stage that has s - 1 after it; inf if it has no price."""
        peaks = self.prices.peak_bytes(self.in_flight(s, self.n_microbatches))
        return np.where(np.isfinite(self.prices.time_s), peaks, np.inf)


def _slicing(
    prices: Prices, chosen: _Found, lower_bound_s: float, alternatives: list[_Found]
) -> Slicing:
    stages = []
    for cut in chosen.cuts:
        cost = prices.costs[cut]
        assert cost is not None  # a stage without a cost takes for ever, and is in no slicing
        stages.append(StageSlice(*prices.span(cut), cost))
    return Slicing(
        stages=tuple(stages),
        time_s=chosen.time_s,
        lower_bound_s=lower_bound_s,
        n_priced=len(prices.costs),
        alternatives=tuple(
            Alternative(tuple(map(prices.span, a.cuts)), a.time_s, prices.are_known(a.cuts))
            for a in alternatives
        ),
    )


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.3g} GiB ({n_bytes} bytes)"
