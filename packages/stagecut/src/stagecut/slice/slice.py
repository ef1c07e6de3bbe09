"""Cut layers into stages and the cluster into submeshes, together (Alpa 5.2).

Given are L layers, a cluster, B microbatches and what every run of layers costs on every submesh:
time t for each microbatch, once for each step. Wanted are the stages, each a run of layers on a
submesh and one of the ways to run it there, in order, that

    minimise  sum of t_j + max of ((B - 1) t_j + once_j)                (Eq. 2)  -> shortest_step
    where     the stages take every layer once, in order                         -> StageNetwork
              their submeshes take every device once                             -> Places
              fixed_j + in_flight(S - j) * activation_j <= memory_bytes (Eq. 5)  -> CountedLengths

with j from 0 to S - 1. Eq. 2 has no once. Receiving what a stage reads is part of its t.

Prices are expensive (a search for the sharding of a stage each), so a caller may give a cheap bound
below each. Then stages enter the search at their bound, and only those are priced that occur in the
best slicing, until that has no bound left in it: what was never priced is proved to be no better.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from shardspec.amounts import seconds_text

from stagecut.base.checks import check_memory, is_amount, is_count
from stagecut.base.edges import Boundary
from stagecut.base.held_microbatches import InFlightFunction, held_by, in_flight_of
from stagecut.base.progress import Progress, reporting
from stagecut.base.types import (
    Alternative,
    BoundaryFunction,
    BoundFunction,
    CostFunction,
    Rejection,
    Slicing,
    StageSlice,
)
from stagecut.base.workers import workers
from stagecut.errors import InfeasibleStagesError, InvalidInputError
from stagecut.placement.offers import Places
from stagecut.slice.arcs import Arcs
from stagecut.slice.infeasible import Reasons
from stagecut.slice.price_requests import Asker, PriceCache
from stagecut.slice.prices import PricedStages, Prices
from stagecut.slice.search import Limits, shortest_step
from stagecut.slice.skip_edges import shortest_with_skips
from stagecut.slice.transfers import StageNetwork, TransferFunction

_MOST_STAGES = 1 << 30
"""Layers times submeshes times layers or states: 2.5 times those of 200 layers on 4,096 devices."""


def slice_stages(
    n_layers: int,
    cluster_shape: tuple[int, int] | Places,
    n_microbatches: int | Sequence[int],
    cost: CostFunction,
    memory_bytes: int | None = None,
    *,
    bound_s: BoundFunction | None = None,
    boundary_s: BoundaryFunction | None = None,
    edges: Sequence[Boundary] = (),
    transfer_s: TransferFunction | None = None,
    schedule: str = "1f1b",
    in_flight: InFlightFunction | None = None,
    n_stages: int | Sequence[int] | None = None,
    structure: Sequence[Hashable] | None = None,
    gap: float = 0.0,
    alternatives: bool | Sequence[int] = False,
    processes: int = 1,
    cache: PriceCache | None = None,
    progress: Progress | bool | None = None,
) -> Slicing:
    """Find the stages and submeshes with the shortest step (Alpa Eq. 2 to 5).

    Args:
        n_layers: Layers of the model; stages are runs of them.
        cluster_shape: Hosts, and devices per host; or what else the cluster offers.
        n_microbatches: Of a step. If there are several to choose from, `cost`, `bound_s`,
            `boundary_s` and `transfer_s` are told the number as one more argument, as microbatches
            are the smaller the more there are.
        cost: Of first layer, last layer and submesh: what that stage costs, None if it cannot run.
            There may be several ways to run it, such as faster and leaner ones. Asked at most once
            for each, and only for stages that some slicing of the whole has.
        memory_bytes: Of one device; None for no limit.
        bound_s: Of the same, a time that `cost` never falls below, such as FLOPs over peak FLOP/s;
            inf if the stage cannot run. The closer it is, the fewer stages are priced. Without it,
            all usable ones are.
        boundary_s: Of a layer, the time to bring one microbatch's values (and back, its gradients)
            into a stage that begins there; not called for layer 0. It counts as part of that
            stage's time, as if nothing overlapped it. Alpa leaves it out.
        edges: Or else, values between layers. A stage receives each that it reads and did not make,
            once, from the stage that made it. This takes as long as `transfer_s` says, counted as
            `boundary_s` is.
        transfer_s: Of a value's bytes, the submesh that made it and the one that reads it: seconds
            to bring it there, and back its gradient.
        schedule: A name in `SCHEDULES`: how many microbatches a stage holds at most. Alpa's Eq. 5
            is that of 1F1B, but does not stop at the number of microbatches.
        in_flight: The same as a function, of the number of stages from this one to the last, and of
            `n_microbatches`. It takes the place of `schedule`.
        n_stages: How many stages there must be, or the numbers to choose from; None for any.
        structure: Of each layer, what it is like. Runs of equal ones are taken to cost the same,
            and `cost` and `bound_s` are asked for one of them.
        gap: Stop when a slicing takes at most `1 + gap` times the lower bound.
        alternatives: Whether to find the best for every other number of stages too, a search for
            each of them; or for which numbers.
        processes: How many processes ask for costs. With more than one, `cost` must be a function
            of a module; each is sent it once, and keeps what it remembers.
        cache: Where costs are kept from one run to the next.
        progress: True for a progress bar on standard error. Or what is called after each price with
            the number of prices so far and the number there can be; with `bound_s` the search
            mostly ends long before that.

    Returns:
        The best slicing. Equal input gives equal output; with `alternatives`, ties go to fewer
        stages.

    Raises:
        InvalidInputError: A size is below 1; `gap`, memory or a time is negative; a value between
            layers has no time or is not read after it is made; a cost is no `StageCost`; there is
            no such schedule.
        InfeasibleStagesError: No slicing fits, or none has a price.
        InvalidBoundError: A bound is negative, or a stage took less than its bound.
        UnfinishedSearchError: No slicing was found that has memory for the values that skip stages,
            and the search did not come to its end.
    """
    several = isinstance(n_microbatches, Iterable)
    microbatches = (
        tuple(n_microbatches) if isinstance(n_microbatches, Iterable) else (n_microbatches,)
    )
    counts: tuple[int, ...] | None = None
    if n_stages is not None:
        counts = tuple(n_stages) if isinstance(n_stages, Iterable) else (n_stages,)
    shape = () if isinstance(cluster_shape, Places) else tuple(cluster_shape)
    others: tuple[object, ...] = ()  # what is no sequence of numbers is no number either
    if not isinstance(alternatives, bool):
        others = tuple(alternatives) if isinstance(alternatives, Sequence) else (None,)
    sizes = n_layers, *shape, *microbatches, *(counts or ()), *others
    are_sizes = all(map(is_count, sizes)) and len(shape) in (0, 2)
    if not (are_sizes and microbatches and counts != () and is_amount(gap)):
        raise InvalidInputError(
            "layers, stages, microbatches, hosts and devices per host are at least 1, gap at least "
            "0, and alternatives True, False or numbers of stages; "
            f"got n_layers={n_layers!r}, n_microbatches={n_microbatches!r}, "
            f"cluster_shape={cluster_shape}, gap={gap!r}, n_stages={n_stages!r}, "
            f"alternatives={alternatives!r}"
        )
    check_memory(memory_bytes)
    if structure is not None and len(structure) != n_layers:
        raise InvalidInputError(
            f"structure has an entry for each layer; got {len(structure)} and n_layers={n_layers}"
        )
    places = cluster_shape if isinstance(cluster_shape, Places) else Places.uniform(*cluster_shape)
    if n_layers * len(places.shapes) * max(n_layers, places.n_states) > _MOST_STAGES:
        raise InvalidInputError(
            "a search looks at every run of layers on every submesh, and at all that can be left "
            f"of the cluster after it; got n_layers={n_layers}, {len(places.shapes):,} submeshes "
            f"and {places.n_states:,} states of the cluster, which is too many: join layers "
            "(cluster_operators), or plan for hosts or racks as if they were devices"
        )
    held = in_flight or in_flight_of(schedule)
    slicings: list[Slicing] = []
    rejected: list[Rejection] = []
    errors: list[InfeasibleStagesError] = []
    with reporting(progress, "stages priced") as report, workers(cost, processes) as call:
        asker = Asker(call, cache)
        for n in microbatches:
            told = (n,) if several else ()
            boundaries_s = [0.0] + [
                boundary_s(first, *told) if boundary_s else 0.0 for first in range(1, n_layers)
            ]
            send_s = _also(transfer_s, told)
            network = StageNetwork(n_layers, n, places.shapes, boundaries_s, edges, send_s)
            most_stages = min(n_layers, places.n_devices)
            limits = Limits.of(
                places,
                math.inf if memory_bytes is None else memory_bytes,
                tuple(held_by(held, s, n) for s in range(1, most_stages + 1)),
            )
            bounds_s = _also(bound_s, told)
            prices = Prices(n_layers, places, asker, bounds_s, structure, report, told)
            if bound_s is None:
                prices.learn_all()
            search = _Search(prices, network, limits, counts and sorted(counts))
            try:
                slicings.append(search.run(gap, alternatives))
            except InfeasibleStagesError as error:
                errors.append(error)
                rejected.append(Rejection(_count(n, "microbatch"), str(error)))
    if not slicings:
        raise min(errors, key=lambda error: error.peak_bytes or math.inf)
    best = min(slicings, key=lambda slicing: slicing.time_s)
    rejected += [
        Rejection(_count(other.n_microbatches, "microbatch"), seconds_text(other.time_s))
        for other in slicings
        if other is not best
    ]
    return replace(
        best,
        n_priced=sum(each.n_priced for each in slicings),
        rejected=(*best.rejected, *rejected),
    )


def _count(n: int | None, noun: str) -> str:
    if n == 1:
        return f"1 {noun}"
    return f"{n} {noun}{'es' if noun.endswith('ch') else 's'}"


def _also(
    function: Callable[..., float] | None, told: tuple[int, ...]
) -> Callable[..., float] | None:
    """The function, told the number of microbatches too."""
    if function is None or not told:
        return function
    return lambda *arguments: function(*arguments, *told)


@dataclass(frozen=True, slots=True)
class _Known:
    """A slicing, as far as its costs are known: stages and which of their options."""

    stages: tuple[int, ...]
    options: tuple[int, ...]
    time_s: float
    bound_s: float
    """What none takes less than that the same search could find."""


@dataclass(frozen=True, slots=True)
class _Search:
    """One problem, with what is known of its prices."""

    prices: Prices
    network: StageNetwork
    limits: Limits
    counts: Sequence[int] | None

    def run(self, gap: float, alternatives: bool | Sequence[int]) -> Slicing:
        """The best slicing.

        Raises:
            InfeasibleStagesError: There is none.
        """
        # Between bounds there is no gap: a slicing with bounds in it is no result yet.
        own_gap = gap if self.prices.are_all_known() else 0.0
        chosen: _Known | None = None
        while True:
            view = self._view()
            best = view.best(self.counts, own_gap)
            if best is None:
                raise view.reasons().infeasible(self.counts)
            self.prices.learn(best.stages)
            priced = self._view(best.stages).best((len(best.stages),))
            chosen = min(filter(None, (chosen, priced)), key=_rank, default=None)
            if chosen is not None and chosen.time_s <= (1 + gap) * best.time_s:
                break
        others: list[_Known] = []
        missing: list[int] = []
        rejected: list[Rejection] = []
        if alternatives:
            view = self._view()
            allowed = self.counts or range(1, len(self.limits.in_flight) + 1)
            if not isinstance(alternatives, bool):
                allowed = [count for count in allowed if count in alternatives]
            for count in allowed:
                other = view.best((count,))
                if other is None:
                    missing.append(count)
                    continue
                others.append(other)
                if self.prices.are_known(other.stages):
                    chosen = min(chosen, other, key=_rank)
            if missing:
                reasons = view.reasons().of_each(missing)
                rejected += [
                    Rejection(_count(count, "stage"), reason)
                    for count, reason in zip(missing, reasons, strict=True)
                ]
        return Slicing(
            stages=tuple(
                StageSlice(*self.prices.span(stage), self.prices.option(stage, option))
                for stage, option in zip(chosen.stages, chosen.options, strict=True)
            ),
            time_s=chosen.time_s,
            lower_bound_s=min(best.bound_s, chosen.time_s),
            n_priced=self.prices.n_asked,
            alternatives=tuple(
                Alternative(
                    tuple(map(self.prices.span, other.stages)),
                    other.time_s,
                    self.prices.are_known(other.stages),
                )
                for other in others
            ),
            rejected=tuple(rejected),
            n_microbatches=self.network.n_microbatches,
        )

    def _view(self, stages: Sequence[int] | None = None) -> "_View":
        """The problem at the prices known now, of some stages or all."""
        candidates = self.prices.candidates()
        arcs = self.network.arcs(self.prices.stages, candidates)
        if stages is not None:
            arcs = arcs.take(np.isin(candidates.stage[arcs.row], stages))
        return _View(self, candidates, arcs)


@dataclass(frozen=True, slots=True)
class _View:
    """A problem at the prices known at some time."""

    search: _Search
    candidates: PricedStages
    arcs: Arcs

    def best(self, counts: Sequence[int] | None, gap: float = 0.0) -> _Known | None:
        """The best slicing into one of those numbers of stages."""
        limits, network = self.search.limits, self.search.network
        if network.has_skips:
            found, bound_s = shortest_with_skips(self.arcs, limits, network, counts, gap)
        else:
            found = shortest_step(self.arcs, limits, counts, gap)
            bound_s = math.inf
        if found is None:
            return None
        rows = list(found.rows)
        return _Known(
            tuple(self.candidates.stage[rows].tolist()),
            tuple(self.candidates.option[rows].tolist()),
            found.time_s,
            min(bound_s, found.time_s / (1 + gap)),
        )

    def reasons(self) -> Reasons:
        """Why there is none."""
        prices = self.search.prices
        return Reasons(
            self.arcs,
            self.search.limits,
            lambda row: prices.span(int(self.candidates.stage[row])),
            are_priced=prices.are_all_known() and not self.search.network.has_skips,
        )


def _rank(known: _Known) -> tuple[float, int]:
    return known.time_s, len(known.stages)
