"""Whole plans out of slicings.

stagecut slices layers and devices into stages, at the prices of `pricing`. The slicings that look
best are made into plans (`assemble`), in each order of work that runs, and simulated.
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

from frontends.answer.plan import Plan
from frontends.price.pricing import Level, Priced, Pricer, stage_cost
from frontends.search.assemble import Joiner
from frontends.search.plan_options import Progress

BASELINES: tuple[autoshard.Baseline, ...] = ("data_parallel", "zero2", "zero", "megatron")
"""What everyone would try first, on one mesh over all devices (autoshard)."""

EQUAL_LAYERS = "equal_layers"
"""A stage a host, with equally many layers each (stagecut)."""

SEARCH = "search"
"""Stages, submeshes and shardings, all searched."""

_ALL_COUNTS = 8
"""Numbers of stages that are all looked at; beyond, powers of two [chosen]."""

_TRIED_HARD = 2
"""Slicings of which stages are searched under the memory limit, where none fits quickly [chosen:
such a search takes seconds a stage]."""

_FEW_LAYERS = 12
"""Up to so many, every stage is searched so if even that finds nothing [chosen]."""

_SIMULATED: dict[Level, int] = {"O2": 2, "O3": 1 << 30}
"""How many of the slicings that look best are planned in full [chosen: the two of a slicing with
transfers and one without]."""


class Candidates:
    """Makes whole plans out of slicings.

    Args:
        pricer: Prices runs of layers.
        schedules: Orders of work to choose among, all with as many stages a rank; the one that
            holds the fewest microbatches first.
        unsharded: Kinds of operators without a rule.
        stage_of_layer: Layers that must be in a stage of that number.
    """

    def __init__(
        self,
        pricer: Pricer,
        schedules: Sequence[str],
        unsharded: Sequence[str],
        stage_of_layer: Mapping[int, int],
    ) -> None:
        self.pricer, self.schedules = pricer, schedules
        entry = pipesched.schedule_entry(schedules[0])
        self.per_rank = entry.stages_a_rank
        self.shares = self.per_rank * entry.copies_of_stages
        """Stages that share a device, copies counted."""

        self.of_stage = pricer
        self.layered, self.cluster = pricer.layered, pricer.cluster
        self.shape = (self.cluster.n_hosts, self.cluster.devices_per_host)
        self.joiner = Joiner(pricer, unsharded)
        self.stage_of_layer = stage_of_layer
        self._costs: dict[stagecut.Span, tuple[stagecut.StageCost, ...] | None] = {}
        self._plans: dict[tuple[tuple[stagecut.Span, ...], str, bool], Plan | None] = {}

    def make(self, name: str, progress: Progress | None) -> Plan:
        """The plan of one of the strategies.

        Where stages share a device, each may take all of its memory, if what all take fits, or
        less, down to an equal share. Under that alone stages are searched that no quick way fits.
        """
        if self.shares == 1 or name not in (SEARCH, EQUAL_LAYERS):
            return self._make(name, progress)
        equal = 1 / self.shares
        plans: list[Plan] = []
        for share in (1.0, (1.0 + equal) / 2, equal):
            with suppress(autoshard.InfeasibleError, stagecut.InfeasibleStagesError):
                plans.append(self._sharing(share)._make(name, progress, try_hard=False))
        if plans:
            return min(plans, key=lambda plan: plan.step_s)
        return self._sharing(equal)._make(name, progress)

    def _sharing(self, share: float) -> Candidates:
        """The same where a stage may take so much of a device's memory."""
        other = copy(self)
        other.of_stage = self.pricer.sharing(share)
        other._costs, other._plans = {}, {}
        return other

    def _make(self, name: str, progress: Progress | None, *, try_hard: bool = True) -> Plan:
        if name != SEARCH:
            if self.stage_of_layer:
                raise autoshard.PinError("stages are pinned, and only a search cuts stages so")
            return self._baseline(name, try_hard)
        found: list[Sequence[stagecut.Span]] = []
        with suppress(stagecut.InfeasibleStagesError):
            found = self._search(self._cost, progress)
        plans = self._planned(found)
        if not plans and try_hard:
            plans = self._planned(found[:_TRIED_HARD], try_hard=True)
        if not plans and try_hard and self.layered.n_layers <= _FEW_LAYERS:
            # then with a search under the memory limit for every stage
            plans = self._planned(self._search(self._limited_cost, progress), try_hard=True)
        if not plans:
            raise autoshard.InfeasibleError("no slicing that was found fits the memory")
        return min(plans, key=lambda plan: plan.step_s)

    def with_stages_of(self, plan: Plan) -> Plan | None:
        """The fastest with the stages of a plan in other microbatches; None if none fits."""
        per_host, last = self.cluster.devices_per_host, self.layered.n_layers - 1
        spans: list[stagecut.Span] = []
        for stage in plan.stages:
            hosts, rest = divmod(len(stage.mesh.device_ids), per_host)
            submesh = (1, rest) if rest else (hosts, per_host)
            spans.append((stage.first_layer, stage.last_layer, submesh))
            if stage.last_layer == last:  # copies come after it
                return next(iter(self._planned([spans])), None)
        return None  # layers differ

    def in_one_stage(self) -> Plan | None:
        """The fastest without a pipeline; None if none fits."""
        return next(iter(self._planned([[self._whole]])), None)

    def one_stage_bound_s(self) -> float:
        """A step's time that no plan without a pipeline beats, whatever fits."""
        costs = self.pricer.fastest(*self._whole)
        return min((self.pricer.microbatches * c.time_s + c.once_s for c in costs), default=0.0)

    @property
    def _whole(self) -> stagecut.Span:
        return 0, self.layered.n_layers - 1, self.shape

    def _search(
        self, cost: stagecut.CostFunction, progress: Progress | None
    ) -> list[Sequence[stagecut.Span]]:
        """The best slicings, the one that looks best first.

        stagecut counts transfers in full or, as Alpa does, not at all. The truth is between: they
        overlap with other microbatches as the schedule allows. So the best slicings of both kinds,
        with each number of stages (of many, powers of two), are simulated before one is taken.
        """
        if self.shares > 1:
            return self._search_ranks(cost)
        # where prices are quick (O2), it is quicker to ask for all than to find out which matter
        bound_s = self._bound_s if self.pricer.level == "O3" or cost != self._cost else None
        most = min(self.layered.n_layers, self.cluster.n_devices)
        counts = [n for n in range(1, most + 1) if n <= _ALL_COUNTS or n & (n - 1) == 0]
        counts = [n for n in counts if self._is_there(n)]
        report = None if progress is None else lambda n, of: progress("pricing stages", n, of)
        found: dict[tuple[stagecut.Span, ...], None] = {}
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
            if report is not None:  # the search ends when no other stage can be better
                report(slicing.n_priced, slicing.n_priced)
            if self._is_there(len(slicing.stages)):
                found[tuple((s.first, s.last, s.submesh) for s in slicing.stages)] = None
            found.update((other.spans, None) for other in slicing.alternatives if other.is_priced)
        allowed = self._with_pinned_stages(found)
        return sorted(allowed, key=lambda spans: self._roughly_s(spans, cost))

    def _search_ranks(self, cost: stagecut.CostFunction) -> list[Sequence[stagecut.Span]]:
        """The best slicing for each number of ranks, where each rank runs several stages.

        All ranks have equal submeshes, so that only layers are sliced: over a row of places, one a
        stage, each with its share of a device's memory. A copy of a stage takes another share.
        """
        found: list[Sequence[stagecut.Span]] = []
        reasons: list[Exception] = []
        for submesh in stagecut.submesh_shapes(*self.shape):
            n_ranks, rest = divmod(self.cluster.n_devices, math.prod(submesh))
            if rest or n_ranks == 1 or n_ranks * self.per_rank > self.layered.n_layers:
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
            found.append([(s.first, s.last, submesh) for s in slicing.stages])
        if not found:
            raise autoshard.InfeasibleError(
                f"{self.schedules[0]} runs {self.shares} stages on each of two ranks or more, "
                f"with a layer each and {self.of_stage.memory_bytes} bytes of a device's memory; "
                f"{self.layered.n_layers} layers on {self.cluster.n_devices} devices cannot be cut "
                f"so{''.join(f' ({reason})' for reason in reasons[:1])}: take another schedule, "
                "other devices or more microbatches"
            )
        return self._with_pinned_stages(found)

    def _row(self, submesh: stagecut.Submesh, n_ranks: int, cost: stagecut.CostFunction) -> _Row:
        n_stages = n_ranks * self.per_rank
        held, _ = self.joiner.held_by(self.schedules[0], n_stages)
        return _Row(submesh, [max(held[stage::n_stages]) for stage in range(n_stages)], cost)

    def _planned(
        self, slicings: Sequence[Sequence[stagecut.Span]], *, try_hard: bool = False
    ) -> list[Plan]:
        """Of the slicings that look best those that fit, as plans.

        Args:
            slicings: The one that looks best first.
            try_hard: Search under the memory limit for stages that no quick way fits.
        """
        plans: list[Plan] = []
        most = _SIMULATED[self.pricer.level] if self.shares == 1 else len(slicings)
        for spans in slicings:
            if len(plans) == most:
                break
            found = [self._plan(spans, schedule, try_hard) for schedule in self.schedules]
            fitting = [plan for plan in found if plan is not None]
            if fitting:
                plans.append(min(fitting, key=lambda plan: plan.step_s))
        return plans

    def _roughly_s(self, spans: Sequence[stagecut.Span], cost: stagecut.CostFunction) -> float:
        """A step's time, if transfers overlap and take what the link takes for their bytes."""
        times: list[float] = []
        once_s = 0.0
        for index, span in enumerate(spans):
            held = self._in_flight(len(spans) - index, self.pricer.microbatches)
            costs = cost(*span)
            each = [costs] if isinstance(costs, stagecut.StageCost) else list(costs or ())
            each = [c for c in each if c.peak_bytes(held) <= self.pricer.memory_bytes] or each
            best = min(each, key=lambda c: self.pricer.microbatches * c.time_s + c.once_s)
            times.append(best.time_s)
            once_s = max(once_s, best.once_s)
        schedule = self.joiner.order(self.schedules[0], len(spans))
        edges: dict[pipesched.Edge, float] = {}
        for index, (first, _, _) in enumerate(spans[1:], 1):
            half_s = self.pricer.bounds.boundary_s(first) / 2
            kinds = (pipesched.Kind.FORWARD, pipesched.Kind.BACKWARD)
            edges[pipesched.Edge((kinds[0], index - 1), (kinds[0], index))] = half_s
            edges[pipesched.Edge((kinds[1], index), (kinds[1], index - 1))] = half_s
        costs_s = pipesched.Costs(
            [t / 3 for t in times], [2 * t / 3 for t in times], transfer_s=edges
        )
        timeline = pipesched.simulate(replace(schedule, edges=tuple(edges)), costs_s)
        return timeline.makespan_s + once_s

    def _with_pinned_stages(
        self, slicings: Iterable[Sequence[stagecut.Span]]
    ) -> list[Sequence[stagecut.Span]]:
        allowed = [spans for spans in slicings if self._has_pinned_stages(spans)]
        if not allowed:
            raise autoshard.PinError(
                "no slicing that was found has the pinned stages where they should be: pin fewer, "
                "or to other stages"
            )
        return allowed

    def _has_pinned_stages(self, spans: Sequence[stagecut.Span]) -> bool:
        stage_of = {k: i for i, (a, b, _) in enumerate(spans) for k in range(a, b + 1)}
        return all(stage_of[layer] == stage for layer, stage in self.stage_of_layer.items())

    def _baseline(self, name: str, try_hard: bool) -> Plan:
        """A plan that anyone would try."""
        last = self.layered.n_layers - 1
        if name == EQUAL_LAYERS:
            spans = self._equal_layers()
            plans = self._planned([spans], try_hard=try_hard)
            if not plans:
                raise self._too_large("stages of equally many layers")
            return plans[0]
        mesh, sharding = self.pricer.baseline(cast("autoshard.Baseline", name))
        priced = Priced(sharding.graph, sharding, stage_cost(sharding.graph, sharding))
        return self.joiner.join([(0, last, mesh, priced)], self.schedules[0])

    def _equal_layers(self) -> list[stagecut.Span]:
        """Of a rank a host, or of two."""
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
            f"{what} do not fit {self.of_stage.memory_bytes} bytes a device, however they are "
            "sharded: raise the memory, cut the batch into more microbatches, or take more devices"
        )

    def _bound_s(self, first: int, last: int, submesh: stagecut.Submesh) -> float:
        """Infinite where pinned stages forbid the run."""
        stages = {s for layer, s in self.stage_of_layer.items() if first <= layer <= last}
        if len(stages) > 1 or any(first < stage for stage in stages):
            return math.inf
        return self.pricer.bounds.bound_s(first, last, submesh)

    def _cost(
        self, first: int, last: int, submesh: stagecut.Submesh
    ) -> tuple[stagecut.StageCost, ...] | None:
        span = (first, last, submesh)
        if span not in self._costs:  # both searches ask, and every look at a slicing
            forbidden = self._bound_s(*span) == math.inf  # by pins
            costs = None if forbidden else self.of_stage.costs(*span, self._most_held(last))
            self._costs[span] = costs
        return self._costs[span]

    def _limited_cost(
        self, first: int, last: int, submesh: stagecut.Submesh
    ) -> stagecut.StageCost | None:
        """With room for all microbatches that the stage may hold, or for one."""
        for held in dict.fromkeys((self._most_held(last), 1)):
            priced = self.of_stage.price(first, last, submesh, held)
            if priced is not None:
                return priced.cost
        return None

    def _most_held(self, last: int) -> int:
        """Microbatches that a stage which ends with layer `last` holds at most."""
        if self.shares > 1:
            return self.pricer.microbatches
        stages = min(self.cluster.n_devices, self.layered.n_layers - last)
        return self._in_flight(stages, self.pricer.microbatches)

    def _in_flight(self, stages_from_here: int, n_microbatches: int) -> int:
        """By the shortest pipeline of as many stages that there is: most have all numbers."""
        for n_stages in range(stages_from_here, self.cluster.n_devices + 1):
            if self._is_there(n_stages):
                held, _ = self.joiner.held_by(self.schedules[0], n_stages)
                return held[n_stages - stages_from_here]
        return n_microbatches

    def _is_there(self, n_stages: int) -> bool:
        """Whether there is a schedule of so many stages."""
        try:
            self.joiner.held_by(self.schedules[0], n_stages)
        except autoshard.InfeasibleError:
            return False
        return True

    def _plan(self, spans: Sequence[stagecut.Span], schedule: str, try_hard: bool) -> Plan | None:
        """The stages sharded on their own; None if one does not fit."""
        # one that holds more microbatches than need be is not worth a search under the limit
        try_hard = try_hard and schedule == self.schedules[0]
        key = (tuple(spans), schedule, try_hard)
        if key not in self._plans:
            self._plans[key] = self.joiner.plan(spans, schedule, self.of_stage, try_hard=try_hard)
        return self._plans[key]


@dataclass(frozen=True, slots=True)
class _Row:
    """Ranks with equal submeshes and several stages each, as a row of places, one a stage."""

    submesh: stagecut.Submesh
    held: Sequence[int]
    """Microbatches that each stage holds at most."""

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
