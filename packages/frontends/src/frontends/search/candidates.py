"""Turn slicings into whole plans.

stagecut slices layers and devices into stages, at the prices of `pricing`. The slicings that seem
best are assembled to plans (`assemble`), one for each schedule that can run, and simulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import cast

import autoshard
import pipesched
import stagecut
from shardspec.amounts import bytes_text

from frontends.answer.plan import Plan
from frontends.price.parallel_options import submesh_of
from frontends.price.pricing import Level, Priced, Pricer, stage_cost
from frontends.search.assemble import Joiner
from frontends.search.chosen_stages import check_ranks, spans_of
from frontends.search.plan_options import SEARCH, OnPlan, Progress, Stages

BASELINES: tuple[autoshard.Baseline, ...] = ("data_parallel", "zero2", "zero", "megatron")
"""Baselines on one mesh over all devices (autoshard)."""

EQUAL_LAYERS = "equal_layers"
"""The baseline with one stage a host and equally many layers in each (stagecut)."""

_ALL_COUNTS = 8
"""All numbers of stages up to this one are tried; above it, powers of two [chosen]."""

_TRIED_HARD = 2
"""The number of slicings whose stages are searched under the memory limit if none fits without
[chosen: such a search takes seconds a stage]."""

_FEW_LAYERS = 12
"""With at most this many layers, search every stage under the memory limit if nothing else fits
[chosen]."""

_SIMULATED: dict[Level, int] = {"O2": 2, "O3": 1 << 30}
"""How many of the slicings that seem best are planned in full [chosen: one from slicing with
transfers, and one without]."""


_SIMULATED_SHARING = 4
"""The same, if stages share devices, over all shares of memory [chosen]."""

_ROUGHLY = 1.05
"""A slicing that seems to take less than this times a limit may take less than the limit [chosen:
what seems and what is planned differ by some percent]."""

_SPELT_OUT = 8
"""The layers of at most this many stages are spelt out where a search is watched."""


class Candidates:
    """Makes the candidates for a plan of a step.

    Args:
        pricer: Prices runs of layers.
        schedules: Schedules to choose from, all with the same number of stages a rank; the one that
            holds the fewest microbatches comes first.
        unsharded: Kinds of operators without a rule.
        stage_of_layer: By layer that is pinned, the number of its stage.
        stages: The stages that the user chose, see `PlanOptions`.
        on_plan: Called with what was tried, and the plan or why there is none.
    """

    def __init__(
        self,
        pricer: Pricer,
        schedules: Sequence[str],
        unsharded: Sequence[str],
        stage_of_layer: Mapping[int, int],
        stages: Stages | None = None,
        on_plan: OnPlan = lambda what, plan: None,
    ) -> None:
        self.pricer, self.schedules, self.on_plan = pricer, schedules, on_plan
        entry = pipesched.schedule_entry(schedules[0])
        self.per_rank = entry.stages_a_rank
        self.shares = self.per_rank * entry.copies_of_stages
        """The number of stages that share a device, replicas included."""

        self.of_stage = pricer
        self.layered, self.cluster = pricer.layered, pricer.cluster
        self.shape = (self.cluster.n_hosts, self.cluster.devices_per_host)
        self.joiner = Joiner(pricer, unsharded)
        self.stage_of_layer = stage_of_layer
        self.n_ranks = stages if isinstance(stages, int) else None
        self.spans: list[stagecut.Span] | None = None
        if isinstance(stages, tuple):
            self.spans = spans_of(stages, self.layered.n_layers, self.cluster, schedules[0])
        elif self.n_ranks == self.per_rank == 1:
            self.spans = [self._whole]
        check_ranks(
            self.n_ranks, self.per_rank, self.layered.n_layers, self.cluster, pricer.parallel
        )
        self._costs: dict[stagecut.Span, tuple[stagecut.StageCost, ...] | None] = {}
        self._plans: dict[tuple[tuple[stagecut.Span, ...], str, bool], Plan | None] = {}
        self._busiest_s: list[float] = []
        self.pipelines: list[Sequence[stagecut.Span]] = []
        """The slicings into several stages that the last search has found."""

        self.ranks: dict[int, None] = {}
        """The numbers of stages of pipelines that were planned and fit, in this order."""

    def label(self, what: str) -> str:
        """What a try is called where a search is watched."""
        number = self.pricer.microbatches
        return f"{what}, {number} microbatch{'es' * (number != 1)}"

    def make(self, name: str, progress: Progress | None, *, try_hard: bool = True) -> Plan:
        """The plan of one of the strategies.

        If stages share a device, they are planned with several limits: each stage may take all of
        the device's memory, or less, down to an equal share; the stages of a device have to fit
        together in any case. Searches under the memory limit use the equal share only.

        Args:
            name: The strategy.
            progress: Told of the search.
            try_hard: Whether to search stages under the memory limit if they do not fit without.
        """
        if self.shares == 1 or name not in (SEARCH, EQUAL_LAYERS):
            return self._make(name, progress, try_hard=try_hard)
        equal = self._sharing(1 / self.shares)
        if name == SEARCH:
            plans = self._planned_of_shares(math.inf, progress)
        else:
            plans = []
            for share in self._shares:
                with suppress(autoshard.InfeasibleError, stagecut.InfeasibleStagesError):
                    plans.append(self._sharing(share)._make(name, progress, try_hard=False))
        if plans:
            return min(plans, key=lambda plan: plan.step_s)
        return equal._make(name, progress, try_hard=try_hard)

    def faster_than(
        self, limit_s: float, slicings: Sequence[Sequence[stagecut.Span]], progress: Progress | None
    ) -> Plan | None:
        """The fastest pipeline that takes less than a time; None if none is found.

        Slicings that seem to take longer are not assembled, and none is searched under the memory
        limit.

        Args:
            limit_s: The time in seconds.
            slicings: Slicings into one stage a rank, for schedules that have one.
            progress: Told of the search for other ones.
        """
        if self.shares == 1:
            about = [(self._about_s(spans), spans) for spans in slicings]
            likely = sorted(each for each in about if each[0] < _ROUGHLY * limit_s)
            plans = self._planned([spans for _, spans in likely])
        else:
            plans = self._planned_of_shares(limit_s, progress)
        return min(
            (plan for plan in plans if plan.step_s < limit_s),
            key=lambda plan: plan.step_s,
            default=None,
        )

    def _about_s(self, spans: Sequence[stagecut.Span]) -> float:
        """What `_roughly_s` says; infinite if the schedule does not exist for these stages."""
        with suppress(autoshard.InfeasibleError):
            return self._roughly_s(spans, self._cost)
        return math.inf

    def busiest_s(self) -> float:
        """The least work of the busiest stage of a pipeline in a step, of slicings that were found.

        No schedule makes a step of these stages shorter.
        """
        return min(self._busiest_s, default=math.inf)

    @property
    def _shares(self) -> tuple[float, ...]:
        """Shares of a device's memory that one of its stages may take."""
        equal = 1 / self.shares
        return (1.0,) if self.shares == 1 else (1.0, (1.0 + equal) / 2, equal)

    def _planned_of_shares(self, limit_s: float, progress: Progress | None) -> list[Plan]:
        """Plans of the slicings that seem best over all shares of memory."""
        found: list[tuple[float, Candidates, Sequence[stagecut.Span]]] = []
        for share in self._shares:
            each = self._sharing(share)
            with suppress(autoshard.InfeasibleError, stagecut.InfeasibleStagesError):
                slicings = each._search(each._cost, progress)
                found += [(each._roughly_s(s, each._cost), each, s) for s in slicings]
        most = _SIMULATED_SHARING if self.pricer.level == "O2" else len(found)
        plans: list[Plan] = []
        planned: set[tuple[stagecut.Span, ...]] = set()  # with the largest share that fits
        for roughly_s, each, spans in sorted(found, key=lambda item: item[0]):
            wanted = len(plans) < most and roughly_s < _ROUGHLY * limit_s
            if wanted and tuple(spans) not in planned and (more := each._planned([spans])):
                planned.add(tuple(spans))
                plans += more
        return plans

    def _sharing(self, share: float) -> Candidates:
        """The candidates with stages that may take this share of a device's memory."""
        other = copy(self)
        other.of_stage = self.pricer.sharing(share)
        other._costs, other._plans, other._busiest_s, other.ranks = {}, {}, [], {}
        return other

    def _make(self, name: str, progress: Progress | None, *, try_hard: bool) -> Plan:
        if name != SEARCH:
            if self.stage_of_layer:
                raise autoshard.PinError("stages are pinned, and only `search` keeps such pins")
            return self._baseline(name, try_hard)
        slicings: list[Sequence[stagecut.Span]] = []
        with suppress(stagecut.InfeasibleStagesError):
            slicings = self._search(self._cost, progress)
        plans = self._planned(slicings)
        if not plans and try_hard:
            plans = self._planned(slicings[:_TRIED_HARD], try_hard=True)
        if not plans and try_hard and self.layered.n_layers <= _FEW_LAYERS:
            # Last resort: every stage is priced by a search under the memory limit.
            with suppress(stagecut.InfeasibleStagesError):
                plans = self._planned(self._search(self._limited_cost, progress), try_hard=True)
        if not plans:
            raise autoshard.InfeasibleError(
                "no slicing that was searched fits the memory"
                + ", with microbatches that its data parallel ways divide evenly"
                * self.pricer.parallel.has_ways
            )
        return min(plans, key=lambda plan: plan.step_s)

    def with_stages_of(self, plan: Plan) -> Plan | None:
        """The fastest plan with the stages of a plan in another number of microbatches.

        None if it does not fit, has other layers, or has several stages on the same devices in a
        schedule that is not tried here.
        """
        spans: list[stagecut.Span] = []
        meshes: set[tuple[int, ...]] = set()
        for stage in plan.stages:
            submesh = submesh_of(len(stage.mesh.device_ids), self.cluster)
            spans.append((stage.first_layer, stage.last_layer, submesh))
            meshes.add(tuple(stage.mesh.device_ids))
            if stage.last_layer == self.layered.n_layers - 1:  # the stages after it are replicas
                if len(meshes) < len(spans) and plan.schedule_name not in self.schedules:
                    return None
                return next(iter(self._planned([spans])), None)
        return None  # the plan has other layers

    def in_one_stage(self) -> Plan | None:
        """The fastest plan of one stage; None if none fits."""
        return next(iter(self._planned([[self._whole]])), None)

    def one_stage_bound_s(self) -> float:
        """Lower bound of the time of a step in one stage, without a memory limit."""
        costs = self.pricer.fastest(*self._whole)
        return min((self.pricer.microbatches * c.time_s + c.once_s for c in costs), default=0.0)

    @property
    def _whole(self) -> stagecut.Span:
        return 0, self.layered.n_layers - 1, self.shape

    def _search(
        self, cost: stagecut.CostFunction, progress: Progress | None
    ) -> list[Sequence[stagecut.Span]]:
        """The best slicings, the one that seems best first.

        stagecut counts transfers in full or, as Alpa does, not at all. The truth is in between, as
        transfers overlap with the compute of other microbatches if the schedule allows. So the best
        slicings of both kinds with each number of stages (see `_ALL_COUNTS`) are simulated to
        compare them.
        """
        if self.spans is not None:
            return self._best_first([self.spans], cost)
        if self.shares > 1:
            return self._search_ranks(cost)
        # Prices of O2 are quick: asking for all is faster than bounding them first.
        bound_s = self._bound_s if self.pricer.level == "O3" or cost != self._cost else None
        most = min(self.layered.n_layers, self.cluster.n_devices)
        counts = [n for n in range(1, most + 1) if n <= _ALL_COUNTS or n & (n - 1) == 0]
        if self.n_ranks is not None:
            counts = [n for n in (self.n_ranks,) if n <= most]
        counts = [n for n in counts if self._is_there(n)]
        report = None if progress is None else lambda n, of: progress("pricing stages", n, of)
        slicings: dict[tuple[stagecut.Span, ...], None] = {}
        for boundary_s in (self.pricer.bounds.boundary_s, None):
            slicing = stagecut.slice_stages(
                self.layered.n_layers,
                self.shape,
                self.pricer.microbatches,
                cost,
                self.pricer.memory_bytes,
                bound_s=bound_s,
                boundary_s=boundary_s,
                in_flight=self._in_flight,
                alternatives=counts,
                progress=report,
            )
            if report is not None:  # the search may end early, and is complete then
                report(slicing.n_priced, slicing.n_priced)
            if self.n_ranks in (None, len(slicing.stages)) and self._is_there(len(slicing.stages)):
                slicings[tuple((s.first, s.last, s.submesh) for s in slicing.stages)] = None
            slicings.update((o.spans, None) for o in slicing.alternatives if o.is_priced)
        return self._best_first(slicings, cost)

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
        for submesh in stagecut.submesh_shapes(*self.shape):
            n_ranks, rest = divmod(self.cluster.n_devices, math.prod(submesh))
            if rest or n_ranks == 1 or n_ranks * self.per_rank > self.layered.n_layers:
                continue
            if self.n_ranks not in (None, n_ranks):
                continue
            try:
                row = self._row(submesh, n_ranks, cost)
                slicing = stagecut.slice_stages(
                    self.layered.n_layers,
                    row.shape,
                    self.pricer.microbatches,
                    row.cost,
                    self.of_stage.memory_bytes,
                    boundary_s=self.pricer.bounds.boundary_s,
                    in_flight=row.in_flight,
                )
            except (autoshard.InfeasibleError, stagecut.InfeasibleStagesError) as error:
                reasons.append(error)
                continue
            slicings.append([(s.first, s.last, submesh) for s in slicing.stages])
        if not slicings:
            reason = "".join(f" ({reason})" for reason in reasons[:1])
            raise autoshard.InfeasibleError(
                f"{self.schedules[0]} runs {self.shares} stages on each of two ranks or more, "
                f"with a layer each and {bytes_text(self.of_stage.memory_bytes)} of a device's "
                f"memory; {self.layered.n_layers} layers on {self.cluster.n_devices} devices "
                f"cannot be cut like this{reason}: take another schedule, other devices or more "
                "microbatches"
            )
        return self._with_pinned_stages(slicings)

    def _row(self, submesh: stagecut.Submesh, n_ranks: int, cost: stagecut.CostFunction) -> _Row:
        n_stages = n_ranks * self.per_rank
        held, _ = self.joiner.held_by(self.schedules[0], n_stages)
        return _Row(submesh, [max(held[stage::n_stages]) for stage in range(n_stages)], cost)

    def _planned(
        self, slicings: Sequence[Sequence[stagecut.Span]], *, try_hard: bool = False
    ) -> list[Plan]:
        """The best slicings that fit, as plans; see `_SIMULATED` for their number.

        Args:
            slicings: The slicings, the one that seems best first.
            try_hard: Whether to search stages under the memory limit if they do not fit without.
        """
        plans: list[Plan] = []
        most = _SIMULATED[self.pricer.level] if self.shares == 1 else len(slicings)
        for spans in slicings:
            if len(plans) == most:
                break
            tried = [self._plan(spans, schedule, try_hard) for schedule in self.schedules]
            fitting = [plan for plan in tried if plan is not None]
            if fitting and len(spans) > 1:
                self.ranks[len(spans)] = None
            if fitting:
                plans.append(min(fitting, key=lambda plan: plan.step_s))
        return plans

    def _roughly_s(self, spans: Sequence[stagecut.Span], cost: stagecut.CostFunction) -> float:
        """Estimate of a step's time: simulated, with transfers that take the link's time.

        Infinite if a stage has no price.
        """
        times: list[float] = []
        once_s = 0.0
        for index, span in enumerate(spans):
            held = self._in_flight(len(spans) - index, self.pricer.microbatches)
            costs = cost(*span)
            each = [costs] if isinstance(costs, stagecut.StageCost) else list(costs or ())
            each = [c for c in each if c.peak_bytes(held) <= self.pricer.memory_bytes] or each
            if not each:
                return math.inf
            best = min(each, key=lambda c: self.pricer.microbatches * c.time_s + c.once_s)
            times.append(best.time_s)
            once_s = max(once_s, best.once_s)
        if len(spans) > 1:
            self._busiest_s.append(max(times) * self.pricer.microbatches + once_s)
        orders = self.joiner.short_orders(self.schedules[0], len(spans))
        edges: dict[pipesched.Edge, float] = {}
        for index, (first, _, _) in enumerate(spans[1:], 1):
            half_s = self.pricer.bounds.boundary_s(first) / 2
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
        return self.joiner.longer(orders, ends) + once_s

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
        return all(stage_of[layer] == stage for layer, stage in self.stage_of_layer.items())

    def _baseline(self, name: str, try_hard: bool) -> Plan:
        """The plan of a baseline."""
        last = self.layered.n_layers - 1
        if name == EQUAL_LAYERS:
            spans = self._equal_layers()
            plans = self._planned([spans], try_hard=try_hard)
            if not plans:
                raise self._too_large("stages of equally many layers")
            return plans[0]
        mesh, sharding = self.pricer.baseline(cast("autoshard.Baseline", name))
        priced = Priced(sharding.graph, sharding, stage_cost(sharding.graph, sharding))
        plan = self.joiner.join([(0, last, mesh, priced)], self.schedules[0])
        plan = replace(plan, strategy=name)
        self.on_plan(self.label(name), plan)
        return plan

    def _equal_layers(self) -> list[stagecut.Span]:
        """The slicing of `EQUAL_LAYERS`: one rank a host, but at least two."""
        n_ranks = max(2, self.cluster.n_hosts)
        shape, in_flight = self.shape, self._in_flight
        cost: stagecut.CostFunction = (
            self._limited_cost if self.pricer.level == "O3" else self._cost
        )
        submesh = None
        if self.shares > 1:
            whole = self.cluster.n_devices
            fitting = (
                s for s in stagecut.submesh_shapes(*shape) if math.prod(s) * n_ranks == whole
            )
            submesh = next(fitting, None)
            if submesh is None:
                raise autoshard.InfeasibleError(
                    f"{self.schedules[0]} needs equal ranks, and {whole} devices cannot be cut "
                    f"into {n_ranks} submeshes: take other devices, or a schedule of one stage a "
                    "rank"
                )
            row = self._row(submesh, n_ranks, cost)
            shape, in_flight, cost = row.shape, row.in_flight, row.cost
        try:
            slicing = stagecut.equal_layers(
                self.layered.n_layers,
                shape,
                self.pricer.microbatches,
                cost,
                self.of_stage.memory_bytes,
                n_stages=n_ranks * self.per_rank,
                boundary_s=self.pricer.bounds.boundary_s,
                in_flight=in_flight,
            )
        except stagecut.InfeasibleStagesError as error:
            if error.layers is None or self.stage_of_layer:
                raise
            first, last = error.layers
            raise self._too_large(f"layers {first}-{last} in one stage") from error
        return [(s.first, s.last, submesh or s.submesh) for s in slicing.stages]

    def _too_large(self, what: str) -> autoshard.InfeasibleError:
        return autoshard.InfeasibleError(
            f"{what} do not fit {bytes_text(self.of_stage.memory_bytes)} a device, however they "
            "are sharded: raise the memory, cut the batch into more microbatches, or take more "
            "devices"
        )

    def _bound_s(self, first: int, last: int, submesh: stagecut.Submesh) -> float:
        """Lower bound of the time of a stage; infinite if pins forbid it."""
        if not any(True for _ in self.pricer.options(submesh)):
            return math.inf
        stages = {s for layer, s in self.stage_of_layer.items() if first <= layer <= last}
        if len(stages) > 1 or any(first < stage for stage in stages):
            return math.inf
        return self.pricer.bounds.bound_s(first, last, submesh)

    def _cost(
        self, first: int, last: int, submesh: stagecut.Submesh
    ) -> tuple[stagecut.StageCost, ...] | None:
        span = (first, last, submesh)
        if span not in self._costs:  # both searches and every estimate of a slicing ask
            forbidden = self._bound_s(*span) == math.inf  # by pins
            costs = None if forbidden else self.of_stage.costs(*span, self._most_held(last))
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
            return self.pricer.microbatches
        stages = min(self.cluster.n_devices, self.layered.n_layers - last)
        return self._in_flight(stages, self.pricer.microbatches)

    def _in_flight(self, stages_from_here: int, n_microbatches: int) -> int:
        """Microbatches that the `stages_from_here`-th stage from the end holds.

        They are those in the shortest pipeline that has as many stages or more; most schedules
        exist for all numbers.
        """
        for n_stages in range(stages_from_here, self.cluster.n_devices + 1):
            if self._is_there(n_stages):
                held, _ = self.joiner.held_by(self.schedules[0], n_stages)
                return held[n_stages - stages_from_here]
        return n_microbatches

    def _is_there(self, n_stages: int) -> bool:
        """Whether the schedule exists for this number of stages."""
        try:
            self.joiner.held_by(self.schedules[0], n_stages)
        except autoshard.InfeasibleError:
            return False
        return True

    def _plan(self, spans: Sequence[stagecut.Span], schedule: str, try_hard: bool) -> Plan | None:
        """The plan of a slicing, with each stage sharded on its own; None if it does not fit."""
        # Only for the schedule that holds the fewest microbatches, a search under the limit pays.
        try_hard = try_hard and schedule == self.schedules[0]
        key = (tuple(spans), schedule, try_hard)
        if key not in self._plans:
            plan = self.joiner.plan(spans, schedule, self.of_stage, try_hard=try_hard)
            self._plans[key] = plan
            if len(spans) > 1 or schedule == self.schedules[0]:  # one stage has no schedule
                what = _slicing_text(spans) + f", {schedule}" * (len(spans) > 1)
                self.on_plan(self.label(what), plan or "a stage does not fit the memory")
        return self._plans[key]


def _slicing_text(spans: Sequence[stagecut.Span]) -> str:
    """A slicing in words: `2 stages of 4+2 layers`."""
    if len(spans) == 1:
        return "1 stage"
    layers = "+".join(str(last - first + 1) for first, last, _ in spans)
    return f"{len(spans)} stages" + f" of {layers} layers" * (len(spans) <= _SPELT_OUT)


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
