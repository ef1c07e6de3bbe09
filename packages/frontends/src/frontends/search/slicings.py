"""Find the slicings of a step, with which stages of layers and devices may be planned.

stagecut slices layers and devices into stages, at the prices of `pricing`; what it finds is put in
the order of the times that the steps seem to take, by short simulations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace

import autoshard
import pipesched
import stagecut
from shardspec.amounts import bytes_text

from frontends.price.pricing import Pricer
from frontends.search.assemble import Joiner
from frontends.search.chosen_stages import check_ranks, spans_of
from frontends.search.plan_options import Progress, Stages

EQUAL_LAYERS = "equal_layers"
"""The baseline with one stage a host and equally many layers in each (stagecut)."""

_ALL_COUNTS = 8
"""All numbers of stages up to this one are tried; above it, powers of two [chosen]."""


CostsOf = Callable[[int, int, stagecut.Submesh, int], tuple[stagecut.StageCost, ...] | None]
"""The costs of a stage from its first and last layer, its submesh, and the most microbatches that
it may hold; None if none fits."""


class Slicings:
    """Slicings of the layers and the devices of a step into stages.

    Args:
        joiner: Knows the schedules of the step.
        pricer: Prices runs of layers.
        schedule: The schedule for which stages are sliced: of those that are tried, the one that
            holds the fewest microbatches.
        stage_of_layer: By layer that is pinned, the number of its stage.
        stages: The stages that the user chose, see `PlanOptions`.

    Raises:
        PlanError: No pipeline has the stages that the user chose.
    """

    def __init__(
        self,
        joiner: Joiner,
        pricer: Pricer,
        schedule: str,
        stage_of_layer: Mapping[int, int],
        stages: Stages | None,
    ) -> None:
        self._joiner, self._pricer, self._schedule = joiner, pricer, schedule
        self._layered, self._pool = pricer.layered, pricer.pool
        self._stage_of_layer = stage_of_layer
        entry = pipesched.schedule_entry(schedule)
        self._per_rank = entry.stages_a_rank
        self.shares = self._per_rank * entry.copies_of_stages
        """The number of stages that share a device, replicas included."""

        self.of_stage = pricer
        """Prices stages, with the memory that one of them may take."""

        self._costs_of: CostsOf | None = None
        self._n_ranks = stages if isinstance(stages, int) else None
        self._spans: list[stagecut.Span] | None = None
        if isinstance(stages, tuple):
            self._spans = spans_of(stages, self._layered.n_layers, self._pool, schedule)
        elif self._n_ranks == self._per_rank == 1:
            self._spans = [self.whole]
        n_layers, ways = self._layered.n_layers, pricer.parallel
        check_ranks(self._n_ranks, self._per_rank, n_layers, self._pool, ways)
        self._costs: dict[stagecut.Span, tuple[stagecut.StageCost, ...] | None] = {}
        self._busiest_s: list[float] = []
        self.pipelines: list[Sequence[stagecut.Span]] = []
        """The slicings into several stages that the last search has found."""

    def sharing(self, share: float) -> Slicings:
        """The slicings into stages that may take this share of a device's memory."""
        other = copy(self)
        other.of_stage = self._pricer.sharing(share)
        other._costs, other._busiest_s = {}, []
        return other

    def priced_by(self, costs: CostsOf) -> Slicings:
        """The slicings into stages with other prices, which are quick to ask for."""
        other = copy(self)
        other._costs_of = costs
        other._costs, other._busiest_s = {}, []
        return other

    def best(
        self, progress: Progress | None, *, limited: bool = False
    ) -> list[Sequence[stagecut.Span]]:
        """The best slicings, the one that seems best first.

        stagecut counts transfers in full or, as Alpa does, not at all. The truth is in between, as
        transfers overlap with the compute of other microbatches if the schedule allows. So the best
        slicings of both kinds with each number of stages (see `_ALL_COUNTS`) are simulated to
        compare them.

        Args:
            progress: Told of the search.
            limited: Whether every stage is priced by a search under the memory limit.

        Raises:
            InfeasibleStagesError: No slicing fits.
            InfeasibleError: The schedule runs on no slicing.
            PinError: No slicing has the pinned layers in their stages.
        """
        cost: stagecut.CostFunction = self._limited_cost if limited else self._cost
        if self._spans is not None:
            return self._best_first([self._spans], cost)
        if self.shares > 1:
            return self._search_ranks(cost)
        # Prices of O2 are quick: asking for all is faster than bounding them first.
        is_slow = self._costs_of is None and (self._pricer.level == "O3" or limited)
        bound_s = self._bound_s if is_slow else None
        most = min(self._layered.n_layers, self._pool.n_devices)
        counts = [n for n in range(1, most + 1) if n <= _ALL_COUNTS or n & (n - 1) == 0]
        if self._n_ranks is not None:
            counts = [n for n in (self._n_ranks,) if n <= most]
        counts = [n for n in counts if self._is_there(n)]
        report = None if progress is None else lambda n, of: progress("pricing stages", n, of)
        slicings: dict[tuple[stagecut.Span, ...], None] = {}
        if not self._pool.is_equal and self._n_ranks in (None, 1):
            slicings[self.whole,] = None  # no stage of other slicings mixes unlike hosts
        try:
            slicings.update(dict.fromkeys(self._sliced(cost, bound_s, counts, report)))
        except (stagecut.StagecutError, autoshard.InfeasibleError):  # or too many states to search
            if not slicings:
                raise
        return self._best_first(slicings, cost)

    def _sliced(
        self,
        cost: stagecut.CostFunction,
        bound_s: stagecut.BoundFunction | None,
        counts: Sequence[int],
        report: Callable[[int, int], None] | None,
    ) -> Iterator[tuple[stagecut.Span, ...]]:
        """The slicings that stagecut finds, with transfers and without."""
        for boundary_s in (self._pricer.bounds.boundary_s, None):
            slicing = stagecut.slice_stages(
                self._layered.n_layers,
                self._pool.places,
                self._pricer.microbatches,
                cost,
                self._pricer.pool.limit,
                bound_s=bound_s,
                boundary_s=boundary_s,
                in_flight=self._in_flight,
                alternatives=counts,
                progress=report,
            )
            if report is not None:  # the search may end early, and is complete then
                report(slicing.n_priced, slicing.n_priced)
            if self._n_ranks in (None, len(slicing.stages)) and self._is_there(len(slicing.stages)):
                yield tuple((s.first, s.last, s.submesh) for s in slicing.stages)
            yield from (o.spans for o in slicing.alternatives if o.is_priced)

    def equal_layers(self) -> list[stagecut.Span]:
        """The slicing of `EQUAL_LAYERS`: one rank a host, but at least two."""
        self._check_equal(EQUAL_LAYERS)
        n_ranks = max(2, self._pool.n_hosts)
        shape, in_flight = self._pool.whole, self._in_flight
        cost: stagecut.CostFunction = (
            self._limited_cost if self._pricer.level == "O3" else self._cost
        )
        submesh = None
        if self.shares > 1:
            whole = self._pool.n_devices
            fitting = (s for s in self._pool.places.shapes if math.prod(s) * n_ranks == whole)
            submesh = next(fitting, None)
            if submesh is None:
                raise autoshard.InfeasibleError(
                    f"{self._schedule} needs equal ranks, and {whole} devices cannot be cut "
                    f"into {n_ranks} submeshes: take other devices, or a schedule of one stage a "
                    "rank"
                )
            row = self._row(submesh, n_ranks, cost)
            shape, in_flight, cost = row.shape, row.in_flight, row.cost
        try:
            slicing = stagecut.equal_layers(
                self._layered.n_layers,
                shape,
                self._pricer.microbatches,
                cost,
                self.of_stage.pool.least_limit,
                n_stages=n_ranks * self._per_rank,
                boundary_s=self._pricer.bounds.boundary_s,
                in_flight=in_flight,
            )
        except stagecut.InfeasibleStagesError as error:
            if error.layers is None or self._stage_of_layer:
                raise
            first, last = error.layers
            raise self.too_large(f"layers {first}-{last} in one stage") from error
        return [(s.first, s.last, submesh or s.submesh) for s in slicing.stages]

    def _check_equal(self, what: str) -> None:
        """Raise `InfeasibleError` unless all ranks can have equal submeshes."""
        if not self._pool.is_equal:
            raise autoshard.InfeasibleError(
                f"{what} runs on ranks with equal devices, and the hosts of cluster "
                f"{self._pool.cluster.name!r} differ; it is tried on those that are equal"
            )

    def too_large(self, what: str) -> autoshard.InfeasibleError:
        """The error if some stages fit in no way."""
        return autoshard.InfeasibleError(
            f"{what} do not fit {bytes_text(self.of_stage.pool.least_limit)} a device, however "
            "they are sharded: raise the memory, cut the batch into more microbatches, or take "
            "more devices"
        )

    def about_s(self, spans: Sequence[stagecut.Span]) -> float:
        """Estimate of a step's time in some stages; infinite if the schedule has no such number."""
        with suppress(autoshard.InfeasibleError):
            return self._roughly_s(spans, self._cost)
        return math.inf

    def busiest_s(self) -> float:
        """The least work of the busiest stage of a pipeline in a step, of slicings that were found.

        No schedule makes a step of these stages shorter.
        """
        return min(self._busiest_s, default=math.inf)

    @property
    def whole(self) -> stagecut.Span:
        """All layers on all devices."""
        return 0, self._layered.n_layers - 1, self._pool.whole

    def _best_first(
        self, slicings: Iterable[Sequence[stagecut.Span]], cost: stagecut.CostFunction
    ) -> list[Sequence[stagecut.Span]]:
        """The slicings with pinned layers in their stages, the one that seems best first."""
        allowed = self._with_pinned_stages(slicings)
        self.pipelines = [spans for spans in allowed if len(spans) > 1]
        return sorted(allowed, key=lambda spans: self._roughly_s(spans, cost))

    def _search_ranks(self, cost: stagecut.CostFunction) -> list[Sequence[stagecut.Span]]:
        """The best slicing for each number of ranks, if each rank runs several stages.

        All ranks have equal submeshes, so only layers are sliced: over a row of places, one for
        each stage, with its share of a device's memory. A replica of a stage takes another share.
        """
        slicings: list[Sequence[stagecut.Span]] = []
        reasons: list[Exception] = []
        self._check_equal(self._schedule)
        for submesh in self._pool.places.shapes:
            n_ranks, rest = divmod(self._pool.n_devices, math.prod(submesh))
            if rest or n_ranks == 1 or n_ranks * self._per_rank > self._layered.n_layers:
                continue
            if self._n_ranks not in (None, n_ranks):
                continue
            try:
                row = self._row(submesh, n_ranks, cost)
                slicing = stagecut.slice_stages(
                    self._layered.n_layers,
                    row.shape,
                    self._pricer.microbatches,
                    row.cost,
                    self.of_stage.pool.least_limit,
                    boundary_s=self._pricer.bounds.boundary_s,
                    in_flight=row.in_flight,
                )
            except (autoshard.InfeasibleError, stagecut.InfeasibleStagesError) as error:
                reasons.append(error)
                continue
            slicings.append([(s.first, s.last, submesh) for s in slicing.stages])
        if not slicings:
            reason = "".join(f" ({reason})" for reason in reasons[:1])
            raise autoshard.InfeasibleError(
                f"{self._schedule} runs {self.shares} stages on each of two ranks or more, "
                f"with a layer each and {bytes_text(self.of_stage.pool.least_limit)} of a device's "
                f"memory; {self._layered.n_layers} layers on {self._pool.n_devices} devices "
                f"cannot be cut like this{reason}: take another schedule, other devices or more "
                "microbatches"
            )
        return self._with_pinned_stages(slicings)

    def _row(self, submesh: stagecut.Submesh, n_ranks: int, cost: stagecut.CostFunction) -> _Row:
        n_stages = n_ranks * self._per_rank
        held, _ = self._joiner.held_by(self._schedule, n_stages)
        return _Row(submesh, [max(held[stage::n_stages]) for stage in range(n_stages)], cost)

    def _roughly_s(self, spans: Sequence[stagecut.Span], cost: stagecut.CostFunction) -> float:
        """Estimate of a step's time: simulated, with transfers that take the link's time.

        Infinite if a stage has no price.
        """
        times: list[float] = []
        once_s = 0.0
        for index, span in enumerate(spans):
            held = self._in_flight(len(spans) - index, self._pricer.microbatches)
            costs = cost(*span)
            each = [costs] if isinstance(costs, stagecut.StageCost) else list(costs or ())
            limit = self._pricer.pool.limit(span[2])
            each = [c for c in each if c.peak_bytes(held) <= limit] or each
            if not each:
                return math.inf
            best = min(each, key=lambda c: self._pricer.microbatches * c.time_s + c.once_s)
            times.append(best.time_s)
            once_s = max(once_s, best.once_s)
        if len(spans) > 1:
            self._busiest_s.append(max(times) * self._pricer.microbatches + once_s)
        orders = self._joiner.short_orders(self._schedule, len(spans))
        edges: dict[pipesched.Edge, float] = {}
        for index, (first, _, _) in enumerate(spans[1:], 1):
            half_s = self._pricer.bounds.boundary_s(first) / 2
            kinds = (pipesched.Kind.FORWARD, pipesched.Kind.BACKWARD)
            edges[pipesched.Edge((kinds[0], index - 1), (kinds[0], index))] = half_s
            edges[pipesched.Edge((kinds[1], index), (kinds[1], index - 1))] = half_s
        costs_s = pipesched.Costs(
            [t / 3 for t in times], [2 * t / 3 for t in times], transfer_s=edges
        )
        ends = [
            pipesched.simulate(replace(order, edges=tuple(edges)), costs_s).makespan_s
            for order in orders
        ]
        return self._joiner.longer(orders, ends) + once_s

    def _with_pinned_stages(
        self, slicings: Iterable[Sequence[stagecut.Span]]
    ) -> list[Sequence[stagecut.Span]]:
        slicings = list(slicings)
        if not slicings:
            return []
        allowed = [spans for spans in slicings if self._has_pinned_stages(spans)]
        if not allowed:
            raise autoshard.PinError(
                "no slicing that was searched has the pinned layers in their stages: pin fewer, or "
                "to other stages"
            )
        return allowed

    def _has_pinned_stages(self, spans: Sequence[stagecut.Span]) -> bool:
        stage_of = {k: i for i, (a, b, _) in enumerate(spans) for k in range(a, b + 1)}
        return all(stage_of[layer] == stage for layer, stage in self._stage_of_layer.items())

    def _bound_s(self, first: int, last: int, submesh: stagecut.Submesh) -> float:
        """Lower bound of the time of a stage; infinite if pins forbid it."""
        if not any(True for _ in self._pricer.options(submesh)):
            return math.inf
        stages = {s for layer, s in self._stage_of_layer.items() if first <= layer <= last}
        if len(stages) > 1 or any(first < stage for stage in stages):
            return math.inf
        return self._pricer.bounds.bound_s(first, last, submesh)

    def _cost(
        self, first: int, last: int, submesh: stagecut.Submesh
    ) -> tuple[stagecut.StageCost, ...] | None:
        span = (first, last, submesh)
        if span not in self._costs:  # both searches and every estimate of a slicing ask
            forbidden = self._bound_s(*span) == math.inf  # by pins
            of = self._costs_of or self.of_stage.costs
            costs = None if forbidden else of(*span, self._most_held(last))
            self._costs[span] = costs
        return self._costs[span]

    def _limited_cost(
        self, first: int, last: int, submesh: stagecut.Submesh
    ) -> stagecut.StageCost | None:
        """The cost with room for all microbatches that the stage may hold, or else for one."""
        for held in dict.fromkeys((self._most_held(last), 1)):
            priced = self.of_stage.price(first, last, submesh, held)
            if priced is not None:
                return priced.cost
        return None

    def _most_held(self, last: int) -> int:
        """The most microbatches that a stage which ends with layer `last` holds."""
        if self.shares > 1:
            return self._pricer.microbatches
        stages = min(self._pool.n_devices, self._layered.n_layers - last)
        return self._in_flight(stages, self._pricer.microbatches)

    def _in_flight(self, stages_from_here: int, n_microbatches: int) -> int:
        """Microbatches that the `stages_from_here`-th stage from the end holds.

        They are those in the shortest pipeline that has as many stages or more; most schedules
        exist for all numbers.
        """
        for n_stages in range(stages_from_here, self._pool.n_devices + 1):
            if self._is_there(n_stages):
                held, _ = self._joiner.held_by(self._schedule, n_stages)
                return held[n_stages - stages_from_here]
        return n_microbatches

    def _is_there(self, n_stages: int) -> bool:
        """Whether the schedule exists for this number of stages."""
        try:
            self._joiner.held_by(self._schedule, n_stages)
        except autoshard.InfeasibleError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Row:
    """Ranks with equal submeshes and several stages each, as a cluster that stagecut slices.

    It has one host, with a device for each stage.
    """

    submesh: stagecut.Submesh
    held: Sequence[int]
    """By stage, the most microbatches that it holds."""

    cost_on: stagecut.CostFunction

    @property
    def shape(self) -> tuple[int, int]:
        return 1, len(self.held)

    def cost(
        self, first: int, last: int, places: stagecut.Submesh
    ) -> stagecut.StageCost | Sequence[stagecut.StageCost] | None:
        return self.cost_on(first, last, self.submesh) if places == (1, 1) else None

    def in_flight(self, stages_from_here: int, n_microbatches: int) -> int:
        return self.held[len(self.held) - stages_from_here]
