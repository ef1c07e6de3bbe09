"""Turn slicings into whole plans.

The slicings that seem best (`slicings`) are assembled to plans (`assemble`), one for each schedule
that can run, and simulated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import cast

import autoshard
import stagecut

from frontends.answer.plan import Plan
from frontends.price.device_pool import DevicePool
from frontends.price.pricing import Level, Priced, Pricer, stage_cost
from frontends.search.assemble import Joiner
from frontends.search.plan_options import SEARCH, OnPlan, Progress, Stages
from frontends.search.slicings import EQUAL_LAYERS, Slicings

BASELINES: tuple[autoshard.Baseline, ...] = ("data_parallel", "zero2", "zero", "megatron")
"""Baselines on one mesh over all devices (autoshard)."""

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
        self.layered = pricer.layered
        self.joiner = Joiner(pricer, unsharded)
        self.slicings = Slicings(self.joiner, pricer, schedules[0], stage_of_layer, stages)
        self.stage_of_layer = stage_of_layer
        self._plans: dict[tuple[tuple[stagecut.Span, ...], str, bool], Plan | None] = {}
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
        if self.slicings.shares == 1 or name not in (SEARCH, EQUAL_LAYERS):
            return self._make(name, progress, try_hard=try_hard)
        equal = self._sharing(1 / self.slicings.shares)
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
        if self.slicings.shares == 1:
            about = [(self.slicings.about_s(spans), spans) for spans in slicings]
            likely = sorted(each for each in about if each[0] < _ROUGHLY * limit_s)
            plans = self._planned([spans for _, spans in likely])
        else:
            plans = self._planned_of_shares(limit_s, progress)
        return min(
            (plan for plan in plans if plan.step_s < limit_s),
            key=lambda plan: plan.step_s,
            default=None,
        )

    @property
    def _shares(self) -> tuple[float, ...]:
        """Shares of a device's memory that one of its stages may take."""
        equal = 1 / self.slicings.shares
        return (1.0,) if self.slicings.shares == 1 else (1.0, (1.0 + equal) / 2, equal)

    def _planned_of_shares(self, limit_s: float, progress: Progress | None) -> list[Plan]:
        """Plans of the slicings that seem best over all shares of memory."""
        found: list[tuple[float, Candidates, Sequence[stagecut.Span]]] = []
        for share in self._shares:
            each = self._sharing(share)
            with suppress(autoshard.InfeasibleError, stagecut.InfeasibleStagesError):
                slicings = each.slicings.best(progress)
                found += [(each.slicings.about_s(spans), each, spans) for spans in slicings]
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
        other.slicings = self.slicings.sharing(share)
        other._plans, other.ranks = {}, {}
        return other

    def _make(self, name: str, progress: Progress | None, *, try_hard: bool) -> Plan:
        if name != SEARCH:
            if self.stage_of_layer:
                raise autoshard.PinError("stages are pinned, and only `search` keeps such pins")
            return self._baseline(name, try_hard)
        slicings: list[Sequence[stagecut.Span]] = []
        with suppress(stagecut.InfeasibleStagesError):
            slicings = self.slicings.best(progress)
        plans = self._planned(slicings)
        if not plans and try_hard:
            plans = self._planned(slicings[:_TRIED_HARD], try_hard=True)
        if not plans and try_hard and self.layered.n_layers <= _FEW_LAYERS:
            # Last resort: every stage is priced by a search under the memory limit.
            with suppress(stagecut.InfeasibleStagesError):
                slicings = self.slicings.best(progress, limited=True)
                plans = self._planned(slicings, try_hard=True)
        if not plans:
            misfit, ways = self.pricer.shardings.misfit, self.pricer.parallel
            evenly = ", with microbatches that its data parallel ways divide evenly"
            if misfit and not self.pricer.shortage.is_met:
                raise autoshard.PinError(misfit + evenly * ways.has_ways)
            raise autoshard.InfeasibleError(
                "no slicing that was searched fits the memory" + evenly * ways.has_ways
            )
        return min(plans, key=lambda plan: plan.step_s)

    def with_stages_of(self, plan: Plan) -> Plan | None:
        """The fastest plan with the stages of a plan in another number of microbatches.

        None if it does not fit, has other layers, or has several stages on the same devices in a
        schedule that is not tried here.
        """
        spans: list[stagecut.Span] = []
        meshes: set[tuple[int, ...]] = set()
        for stage, span in zip(plan.stages, spans_of_plan(plan, self.pricer.pool), strict=True):
            spans.append(span)
            meshes.add(tuple(stage.mesh.device_ids))
            if stage.last_layer == self.layered.n_layers - 1:  # the stages after it are replicas
                if len(meshes) < len(spans) and plan.schedule_name not in self.schedules:
                    return None
                return self.in_stages(spans)
        return None  # the plan has other layers

    def in_stages(self, spans: Sequence[stagecut.Span]) -> Plan | None:
        """The fastest plan with some stages; None if it does not fit."""
        return next(iter(self._planned([spans])), None)

    def in_one_stage(self) -> Plan | None:
        """The fastest plan of one stage; None if none fits."""
        return self.in_stages([self.slicings.whole])

    def one_stage_bound_s(self) -> float:
        """Lower bound of the time of a step in one stage, without a memory limit."""
        costs = self.pricer.fastest(*self.slicings.whole)
        return min((self.pricer.microbatches * c.time_s + c.once_s for c in costs), default=0.0)

    def _planned(
        self, slicings: Sequence[Sequence[stagecut.Span]], *, try_hard: bool = False
    ) -> list[Plan]:
        """The best slicings that fit, as plans; see `_SIMULATED` for their number.

        Args:
            slicings: The slicings, the one that seems best first.
            try_hard: Whether to search stages under the memory limit if they do not fit without.
        """
        plans: list[Plan] = []
        most = _SIMULATED[self.pricer.level] if self.slicings.shares == 1 else len(slicings)
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

    def _baseline(self, name: str, try_hard: bool) -> Plan:
        """The plan of a baseline."""
        last = self.layered.n_layers - 1
        if name == EQUAL_LAYERS:
            spans = self.slicings.equal_layers()
            plans = self._planned([spans], try_hard=try_hard)
            if not plans:
                raise self.slicings.too_large("stages of equally many layers")
            return plans[0]
        mesh, sharding = self.pricer.baseline(cast("autoshard.Baseline", name))
        priced = Priced(sharding.graph, sharding, stage_cost(sharding.graph, sharding))
        plan = self.joiner.join([(0, last, mesh, priced)], self.schedules[0])
        plan = replace(plan, strategy=name)
        self.on_plan(self.label(name), plan)
        return plan

    def _plan(self, spans: Sequence[stagecut.Span], schedule: str, try_hard: bool) -> Plan | None:
        """The plan of a slicing, with each stage sharded on its own; None if it does not fit."""
        # Only for the schedule that holds the fewest microbatches, a search under the limit pays.
        try_hard = try_hard and schedule == self.schedules[0]
        key = (tuple(spans), schedule, try_hard)
        if key not in self._plans:
            plan = self.joiner.plan(spans, schedule, self.slicings.of_stage, try_hard=try_hard)
            self._plans[key] = plan
            if len(spans) > 1 or schedule == self.schedules[0]:  # one stage has no schedule
                what = _slicing_text(spans) + f", {schedule}" * (len(spans) > 1)
                self.on_plan(self.label(what), plan or "a stage does not fit the memory")
        return self._plans[key]


def spans_of_plan(plan: Plan, pool: DevicePool) -> list[stagecut.Span]:
    """The layers and the submesh of each stage of a plan, replicas included."""
    return [
        (stage.first_layer, stage.last_layer, pool.submesh_of(stage.mesh.device_ids))
        for stage in plan.stages
    ]


def _slicing_text(spans: Sequence[stagecut.Span]) -> str:
    """A slicing in words: `2 stages of 4+2 layers`."""
    if len(spans) == 1:
        return "1 stage"
    layers = "+".join(str(last - first + 1) for first, last, _ in spans)
    return f"{len(spans)} stages" + f" of {layers} layers" * (len(spans) <= _SPELT_OUT)
