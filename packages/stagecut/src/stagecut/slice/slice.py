"""Cuts layers into stages and the cluster into submeshes, together (Alpa 5.2).

The input is L layers, a cluster, B microbatches, and the cost of every run of layers on every
submesh: time t for each microbatch, and time once for each step. A stage is a run of layers on a
submesh with one of its options there. The result is the stages, in order, that

    minimise  sum of t_j + max of ((B - 1) t_j + once_j)                (Eq. 2)  -> shortest_step
    where     the stages take every layer once, in order                         -> StageNetwork
              their submeshes take every device once                             -> Places
              fixed_j + in_flight(S - j) * activation_j <= memory_bytes (Eq. 5)  -> CountedLengths

with j from 0 to S - 1. Eq. 2 has no once. The time in which a stage receives what it reads is part
of its t.

Prices are expensive (each may be a search for the sharding of a stage), so a caller may give a
cheap lower bound of each. Then the search begins with the bounds, prices the stages of the best
slicing, and searches again, until all stages of the best slicing are priced. This proves that a
slicing with stages that were never priced is no better.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from shardspec.amounts import seconds_text

from stagecut.base.checks import check_memory, is_amount, is_count
from stagecut.base.edges import Boundary
from stagecut.base.held_microbatches import InFlightFunction, held_by, in_flight_of
from stagecut.base.named_cost import NamedCost
from stagecut.base.progress import Progress, reporting
from stagecut.base.types import (
    Alternative,
    BoundaryFunction,
    BoundFunction,
    CostFunction,
    MemoryLimit,
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
"""Limit for layers x submeshes x (layers or states, whichever are more): 2.5 times that of 200
layers on 4,096 devices."""


def slice_stages(
    n_layers: int,
    cluster_shape: tuple[int, int] | Places,
    n_microbatches: int | Sequence[int],
    cost: CostFunction,
    memory_bytes: MemoryLimit = None,
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
        cluster_shape: Hosts, and devices per host; or `Places` for any other cluster.
        n_microbatches: Microbatches of a step, or several numbers to choose from. With several,
            `cost`, `bound_s`, `boundary_s` and `transfer_s` get the number as an additional last
            argument, because microbatches are smaller the more there are.
        cost: The cost of a stage, from its first layer, last layer (included) and submesh; None if
            it cannot run. A sequence of costs if there are several options, such as faster ones and
            ones that need less memory. It is called at most once for each stage, and only for
            stages that occur in some slicing of all layers.
        memory_bytes: Memory of one device; where devices differ, a function of the submesh; None
            for no limit.
        bound_s: A lower bound of the times that `cost` returns for the same arguments, such as
            FLOPs over peak FLOP/s; inf if the stage cannot run. The closer the bound, the fewer
            stages are priced. Without it, all stages that can occur are priced.
        boundary_s: The time to bring the values of one microbatch into a stage that begins with a
            layer (and the gradients back); not called for layer 0. It counts as part of the time of
            that stage, as if nothing overlapped it. Alpa leaves it out.
        edges: Values between layers, in place of `boundary_s`. A stage receives each value that it
            reads and did not produce, once, from the stage that produced it. This takes the time
            that `transfer_s` returns, which counts in the same way as that of `boundary_s`.
        transfer_s: Seconds to send a value from one stage to another, and its gradient back. Its
            arguments are the bytes, the submesh that produced the value, and the one that reads it.
        schedule: A name in `SCHEDULES`. It decides how many microbatches a stage holds at most.
            Alpa's Eq. 5 is that of 1F1B, but does not stop at the number of microbatches.
        in_flight: In place of `schedule`, a function for this number, of the number of stages from
            this one to the last, and of `n_microbatches`.
        n_stages: The number of stages, or several numbers to choose from; None for any.
        structure: For each layer, a value that is equal for equal layers. Runs of equal layers are
            assumed to cost the same, and `cost` and `bound_s` are called for only one of them.
        gap: Stop when a slicing takes at most `1 + gap` times the lower bound.
        alternatives: Whether to find the best slicing for every other number of stages, too, with a
            search for each; or a sequence of the numbers for which to do so.
        processes: How many processes call `cost`. With more than one, `cost` must be a function of
            a module. It is sent to each process once, and can keep data there between calls.
        cache: Keeps costs from one run to the next.
        progress: True for a progress bar on standard error. A function is called after each price,
            with the number of prices so far and the number that there can be; with `bound_s` the
            search usually ends long before all stages are priced.

    Returns:
        The best slicing. Equal input gives equal output; with `alternatives`, ties go to fewer
        stages.

    Raises:
        InvalidInputError: A size is below 1; `gap`, memory or a time is negative; there are values
            between layers but no `transfer_s`, or a value is not read after it is produced; `cost`
            does not return a `StageCost`; or there is no schedule of this name.
        InfeasibleStagesError: No slicing fits, or none has a price.
        InvalidBoundError: A bound is negative, or a stage took less time than its bound.
        UnfinishedSearchError: The search ended early, before it found a slicing that has memory for
            the values that skip stages.
    """
    several = isinstance(n_microbatches, Iterable)
    microbatches = (
        tuple(n_microbatches) if isinstance(n_microbatches, Iterable) else (n_microbatches,)
    )
    counts: tuple[int, ...] | None = None
    if n_stages is not None:
        counts = tuple(n_stages) if isinstance(n_stages, Iterable) else (n_stages,)
    shape = () if isinstance(cluster_shape, Places) else tuple(cluster_shape)
    others: tuple[object, ...] = ()  # None, which is no size, if this is neither bool nor sequence
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
    if structure is not None and len(structure) != n_layers:
        raise InvalidInputError(
            f"structure has an entry for each layer; got {len(structure)} and n_layers={n_layers}"
        )
    places = cluster_shape if isinstance(cluster_shape, Places) else Places.uniform(*cluster_shape)
    room_bytes = _by_shape(memory_bytes, places)
    if n_layers * len(places.shapes) * max(n_layers, places.n_states) > _MOST_STAGES:
        raise InvalidInputError(
            "a search considers every run of layers on every submesh, in every state of the "
            f"cluster; got n_layers={n_layers}, {len(places.shapes):,} submeshes and "
            f"{places.n_states:,} states of the cluster, which are too many: join layers "
            "(cluster_operators), or plan for hosts or racks as if they were devices"
        )
    held = in_flight or in_flight_of(schedule)
    slicings: list[Slicing] = []
    rejected: list[Rejection] = []
    errors: list[InfeasibleStagesError] = []
    with (
        reporting(progress, "stages priced") as report,
        workers(NamedCost(cost), processes) as call,
    ):
        asker = Asker(call, cache)
        for n in microbatches:
            extra = (n,) if several else ()
            boundaries_s = [0.0] + [
                boundary_s(first, *extra) if boundary_s else 0.0 for first in range(1, n_layers)
            ]
            send_s = _with(transfer_s, extra)
            network = StageNetwork(n_layers, n, places.shapes, boundaries_s, edges, send_s)
            most_stages = min(n_layers, places.n_devices)
            limits = Limits.of(
                places,
                room_bytes,
                tuple(held_by(held, s, n) for s in range(1, most_stages + 1)),
            )
            bounds_s = _with(bound_s, extra)
            prices = Prices(n_layers, places, asker, bounds_s, structure, report, extra)
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


def _with(
    function: Callable[..., float] | None, extra: tuple[int, ...]
) -> Callable[..., float] | None:
    """The function, called with additional last arguments such as the number of microbatches."""
    if function is None or not extra:
        return function
    return lambda *arguments: function(*arguments, *extra)


@dataclass(frozen=True, slots=True)
class _Known:
    """A slicing, with the costs that are known: its stages, and the option of each."""

    stages: tuple[int, ...]
    options: tuple[int, ...]
    time_s: float
    bound_s: float
    """A lower bound of the time of every slicing that the same search considered."""


def _by_shape(memory_bytes: MemoryLimit, places: Places) -> list[float]:
    """The memory of one device of each shape of submesh; inf for no limit.

    Raises:
        InvalidInputError: One of them is no amount of bytes.
    """
    by_shape: list[float] = []
    for shape in places.shapes:
        each = memory_bytes(shape) if callable(memory_bytes) else memory_bytes
        check_memory(each)
        by_shape.append(math.inf if each is None else each)
    return by_shape


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for one number of microbatches, with the prices that are known so far."""

    prices: Prices
    network: StageNetwork
    limits: Limits
    counts: Sequence[int] | None

    def run(self, gap: float, alternatives: bool | Sequence[int]) -> Slicing:
        """The best slicing.

        Raises:
            InfeasibleStagesError: There is none.
        """
        # As long as a stage has only a bound, a slicing is no result yet, so it gets no gap.
        allowed_gap = gap if self.prices.are_all_known() else 0.0
        chosen: _Known | None = None
        while True:
            view = self._view()
            best = view.best(self.counts, allowed_gap)
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
        """The problem with the prices that are known now, for some stages or all."""
        candidates = self.prices.candidates()
        arcs = self.network.arcs(self.prices.stages, candidates)
        if stages is not None:
            arcs = arcs.take(np.isin(candidates.stage[arcs.row], stages))
        return _View(self, candidates, arcs)


@dataclass(frozen=True, slots=True)
class _View:
    """The problem with the prices that are known at one time."""

    search: _Search
    candidates: PricedStages
    arcs: Arcs

    def best(self, counts: Sequence[int] | None, gap: float = 0.0) -> _Known | None:
        """The best slicing with one of these numbers of stages; None if there is none."""
        limits, network = self.search.limits, self.search.network
        if network.has_skips:
            slicing, bound_s = shortest_with_skips(self.arcs, limits, network, counts, gap)
        else:
            slicing = shortest_step(self.arcs, limits, counts, gap)
            bound_s = math.inf
        if slicing is None:
            return None
        rows = list(slicing.rows)
        return _Known(
            tuple(self.candidates.stage[rows].tolist()),
            tuple(self.candidates.option[rows].tolist()),
            slicing.time_s,
            min(bound_s, slicing.time_s / (1 + gap)),
        )

    def reasons(self) -> Reasons:
        """The reasons why there is no slicing."""
        prices = self.search.prices
        return Reasons(
            self.arcs,
            self.search.limits,
            lambda row: prices.span(int(self.candidates.stage[row])),
            are_priced=prices.are_all_known() and not self.search.network.has_skips,
        )


def _rank(known: _Known) -> tuple[float, int]:
    return known.time_s, len(known.stages)
