"""Plan a step on a cluster, with Alpa's two levels of search (Alpa Alg. 1).

stagecut slices layers and devices into stages. It asks for the prices of runs of layers on
submeshes, which are those of autoshard's shardings over the logical meshes of the submesh (see
`pricing`). The best slicings are simulated with the bytes that cross their cuts. The stages of the
best of these are sharded on their own, connected by transfers that crossmesh plans, ordered by each
pipesched schedule that can run, and simulated again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import autoshard
import pipesched
import stagecut
from costmodel import Cluster
from shardspec.amounts import bytes_text

from frontends.answer.plan import Plan
from frontends.errors import NoPlanError, PlanError
from frontends.layers.layers import LayeredStep
from frontends.plan.plan_fields import Alternative
from frontends.plan.schedule import PLAIN
from frontends.price.device_pool import DevicePool
from frontends.price.pins import pins_of
from frontends.price.pricing import Pricer
from frontends.search.candidates import BASELINES, Candidates
from frontends.search.plan_options import SEARCH, WAYS_ASKED, PlanOptions, Stages
from frontends.search.slicings import EQUAL_LAYERS, CostsOf

OTHERS = (
    ("interleaved-1f1b:2", "interleaved-1f1b:4", "interleaved-1f1b:8"),
    ("zb-h1",),
    ("zb-auto",),
    ("zb-v",),
    ("v-half",),
    ("v-min",),
)
"""Schedules that are tried once a pipeline with a plain schedule is there. In each row, one is
tried if the one before it has made the step faster."""


class Planner:
    """Searches stages, submeshes and shardings for a step; needs no devices, plans nothing twice.

    Baselines are priced, too, and one is the answer if it is faster (design, principle 2).

    Args:
        layered: The step in layers.
        cluster: The cluster to plan for.
        options: How to plan; `microbatches` is ignored, as the step is already cut into some.
        undivided: The same step in one microbatch. Without a pipeline, cutting the batch only costs
            time, so baselines are tried both ways.
        keep_microbatches: Whether plans of `undivided` are priced, but not chosen.
        unsharded: Kinds of operators without a rule, for the report.
        device_ids: The devices that plans may use; by default all of the cluster.

    Raises:
        NoPlanError: The state does not fit the memory of all devices.
        PlanError: No value has the name of a pin.
    """

    def __init__(
        self,
        layered: LayeredStep,
        cluster: Cluster,
        options: PlanOptions = PlanOptions(),  # noqa: B008 (it is frozen)
        *,
        undivided: LayeredStep | None = None,
        keep_microbatches: bool = False,
        unsharded: Sequence[str] = (),
        device_ids: Sequence[int] | None = None,
    ) -> None:
        self.pool = DevicePool(cluster, options.memory_bytes, device_ids)
        self.layered, self.cluster, self.options = layered, cluster, options
        self.keep_microbatches = keep_microbatches
        pin, strategy = options.pin or {}, options.strategy
        schedules = PLAIN if options.pipeline is None else (options.pipeline,)
        candidates: list[Candidates] = []
        self._unsharded = unsharded
        for step in (layered, undivided):
            if step is None:
                continue
            pins = pins_of(step, pin, self.pool.n_devices)
            pricer = Pricer(
                step,
                self.pool,
                level=options.level,
                memory_rule=options.memory_rule,
                pins=pins.specs,
                parallel=options.parallel,
            )
            candidates.append(self._candidates(pricer, schedules, pins.stages, options.stages))
        self._searched, self._pricers = candidates[0], [each.pricer for each in candidates]
        state_bytes = self._searched.pricer.bounds.state_bytes()
        excess_bytes = state_bytes - self.pool.all_bytes
        if excess_bytes > 0:
            raise NoPlanError(
                f"parameters, optimizer state and sums of gradients must fit the devices; they "
                f"take {bytes_text(state_bytes)}, {bytes_text(excess_bytes)} more than the "
                f"{self.pool.n_devices} devices of cluster {cluster.name!r} with "
                f"{self._memory_text()} each: raise the memory or take more devices"
            )
        tries = [(SEARCH, self._searched)]
        if not options.chooses_ways:  # of which baselines are others
            tries += [(name, each) for name in BASELINES for each in candidates]
            tries.append((EQUAL_LAYERS, self._searched))
        self._tries = {
            name if each is self._searched else f"{name}, 1 microbatch": (name, each)
            for name, each in tries
            if strategy in ("auto", name)
        }
        self._plans: dict[str, Plan | str] = {}
        """By label of a try, its plan, or the reason why it has none."""

        self._like: list[Plan] = []
        self._misfit = ""

    def _candidates(
        self,
        pricer: Pricer,
        schedules: Sequence[str],
        stage_of_layer: Mapping[int, int],
        stages: Stages | None,
    ) -> Candidates:
        tell = self.options.tell_plan
        return Candidates(pricer, schedules, self._unsharded, stage_of_layer, stages, tell)

    def best(self) -> Plan:
        """The fastest plan of the strategy, with the others as alternatives."""
        return self._of(list(self._tries))

    @property
    def pricer(self) -> Pricer:
        """The prices of the step's layers."""
        return self._searched.pricer

    @property
    def searches(self) -> bool:
        """Whether stages are searched, with no layer pinned to one."""
        return SEARCH in self._tries and not self._searched.stage_of_layer

    def held(self, schedule: str, n_stages: int) -> list[int] | None:
        """By stage, the most microbatches that it holds; None if there is no such schedule."""
        if pipesched.is_schedule(schedule):
            with suppress(autoshard.InfeasibleError):
                held, _ = self._searched.joiner.held_by(schedule, n_stages)
                return held
        return None

    def slicings(self, costs: CostsOf) -> list[Sequence[stagecut.Span]]:
        """The best slicings by other prices, the one that seems best first; empty if none fits."""
        with suppress(autoshard.AutoshardError, stagecut.InfeasibleStagesError):
            return self._searched.slicings.priced_by(costs).best(None)
        return []

    def in_stages(self, spans: Sequence[stagecut.Span]) -> Plan | None:
        """The fastest searched plan with some stages, if one fits."""
        return self._kept(lambda: self._searched.in_stages(spans))

    @property
    def is_short_of_memory(self) -> bool:
        """Whether something that was tried so far did not fit, so that less memory may help."""
        return any(pricer.shortage.is_met for pricer in self._pricers)

    def usual(self) -> Plan:
        """The fastest baseline; if only `search` was asked for, the equal-layers plan.

        If the user has chosen ways of parallelism, the plan in these.
        """
        if self.options.chooses_ways:
            return self.best()
        return self._of([label for label in self._tries if label != SEARCH] or [EQUAL_LAYERS])

    def like(self, other: Plan) -> Plan | None:
        """The plan with the stages of another one, if it fits; `best` may then return it.

        Args:
            other: A plan of the same function in another number of microbatches.
        """
        return self._kept(lambda: self._searched.with_stages_of(other))

    def in_one_stage(self) -> Plan | None:
        """The fastest searched plan of one stage, if one fits; `best` may then return it."""
        return None if self._is_pipeline else self._kept(self._searched.in_one_stage)

    def one_stage_bound_s(self) -> float:
        """Lower bound of the time of `in_one_stage`, quick; infinite without a search."""
        if self._is_pipeline or not self.searches:
            return math.inf
        return self._searched.one_stage_bound_s()

    def in_other_schedules(self, limit_s: float, *, search: bool) -> Plan | None:
        """The fastest pipeline in `OTHERS` that takes less than a time; `best` may then return it.

        None if none does, or if the user has chosen one stage, the schedule, or the stages of some
        layers. Where the user has chosen the layers of each stage, only schedules with one stage on
        each rank are tried.

        Args:
            limit_s: The time in seconds.
            search: Whether to search pipelines if `best` has not done it; without, none is found.
        """
        searched, found = self._searched, None
        if self.options.pipeline is not None or self.options.stages == 1:
            return None
        if not self.searches:
            return None
        if search and not searched.ranks:
            self._kept(lambda: searched.make(SEARCH, self.options.progress))
        if searched.slicings.busiest_s() >= limit_s:
            return None
        for names in OTHERS:
            for name in names:
                plan = self._faster_in(name, limit_s)
                if plan is None:
                    break
                found, limit_s = plan, plan.step_s
        if found is not None:
            self._like.append(found)
        return found

    def _faster_in(self, schedule: str, limit_s: float) -> Plan | None:
        """The fastest pipeline in a schedule, on as many ranks as one of those that were found."""
        searched, stages = self._searched, self.options.stages
        numbers: Iterable[Stages | None] = searched.ranks
        if pipesched.schedule_entry(schedule).stages_a_rank == 1:
            numbers = (stages,)
        elif isinstance(stages, tuple):
            return None
        plans: list[Plan] = []
        for number in numbers:
            try:
                each = self._candidates(searched.pricer, (schedule,), {}, number)
                plan = each.faster_than(limit_s, searched.slicings.pipelines, self.options.progress)
            except (autoshard.AutoshardError, pipesched.PipeschedError, PlanError) as error:
                self.options.tell_plan(searched.label(schedule), str(error))
            else:
                plans += [] if plan is None else [plan]
        return min(plans, key=lambda plan: plan.step_s, default=None)

    @property
    def _is_pipeline(self) -> bool:
        """Whether the user has chosen several stages."""
        return self.options.stages not in (None, 1) or self.options.chunks is not None

    def _kept(self, make: Callable[[], Plan | None]) -> Plan | None:
        """A plan, kept for `best`; None without a search, with pinned stages, or if none fits."""
        if self.searches:
            with suppress(autoshard.AutoshardError):
                plan = make()
                if plan is not None:
                    self._like.append(plan)
                return plan
        return None

    def _of(self, labels: Sequence[str]) -> Plan:
        """The fastest plan of some tries.

        Stages of equal layers are searched under the memory limit only if nothing else fits, and
        not to see what is usual, as this takes long.
        """
        for done, label in enumerate(labels):
            name, each = self._tries.get(label, (label, self._searched))
            if label not in self._plans:
                self._plans[label] = self._plan_or_reason(name, each)
            if name != SEARCH:
                self.options.tell("pricing others", done + 1, len(labels))
        plans = {label: self._plans[label] for label in labels}
        if SEARCH in plans:
            searched = [p for p in (plans[SEARCH], *self._like) if isinstance(p, Plan)]
            plans[SEARCH] = min(searched, key=lambda p: p.step_s, default=plans[SEARCH])
        chosen = self._chosen(plans)
        if chosen is None and {EQUAL_LAYERS} <= {*labels} == {*self._tries}:
            made = self._plan_or_reason(EQUAL_LAYERS, self._searched, try_hard=True)
            self._plans[EQUAL_LAYERS] = plans[EQUAL_LAYERS] = made
            chosen = self._chosen(plans)
        if chosen is None:
            raise self._nothing(plans)
        return chosen

    def _chosen(self, plans: Mapping[str, Plan | str]) -> Plan | None:
        """The fastest of some plans, with the others; None if there is none."""
        kept = self.layered.step.microbatches if self.keep_microbatches else None
        return _choose(plans, kept)

    def _plan_or_reason(
        self, name: str, each: Candidates, *, try_hard: bool | None = None
    ) -> Plan | str:
        """The plan of a strategy, or the reason why it has none."""
        hard = name != EQUAL_LAYERS if try_hard is None else try_hard
        try:
            return each.make(name, self.options.progress, try_hard=hard)
        except (autoshard.AutoshardError, stagecut.StagecutError) as error:
            if isinstance(error, autoshard.PinError):
                self._misfit = f"{error}; "
            self.options.tell_plan(each.label(name), str(error))
            return str(error)

    def _memory_text(self) -> str:
        """The memory of a device, or of those with least and most."""
        limits = sorted({self.pool.limit_of((device,)) for device in self.pool.device_ids})
        return " to ".join(dict.fromkeys(bytes_text(limits[at]) for at in (0, -1)))

    def _nothing(self, plans: Mapping[str, Plan | str]) -> NoPlanError:
        """The error if no try has a plan."""
        where, less = f"cluster {self.cluster.name!r}", ""
        if self.options.pin:
            where, less = f"{where} with pins of {', '.join(self.options.pin)}", ", or pin less"
        strategy, is_short = self.options.strategy, self.is_short_of_memory or not self._misfit
        if self.options.chooses_ways:
            asked = ", ".join(f"{n}={t}" for n, t in self.options.asked() if n in WAYS_ASKED)
            memory = ", raise the memory" * is_short
            return NoPlanError(
                f"no plan with {asked} runs on {where}: {plans[SEARCH]}: ask for less{memory}, "
                f"or cut the batch into another number of microbatches{less}"
            )
        if strategy != "auto":
            reason = next(str(why) for why in plans.values())
            return NoPlanError(f"no {strategy} plan runs on {where}: {reason}{less}")
        if not is_short:
            return NoPlanError(
                f"no plan runs on {where}: {self._misfit}cut the batch into other numbers of "
                "microbatches, or pin less"
            )
        return NoPlanError(
            f"no plan fits {self._memory_text()} a device of {where}: {self._misfit}"
            f"raise the memory, cut the batch into more microbatches, or take more devices{less}"
        )


def _choose(tries: Mapping[str, Plan | str], microbatches: int | None) -> Plan | None:
    """The fastest plan, with the others and the reasons why they were not chosen."""
    plans = {name: plan for name, plan in tries.items() if isinstance(plan, Plan)}
    allowed = {n: p for n, p in plans.items() if microbatches in (None, p.microbatches)}
    if not allowed:
        return None
    chosen = min(allowed, key=lambda name: allowed[name].step_s)
    best = allowed[chosen]
    alternatives = []
    for name, other in tries.items():
        if name == chosen:
            continue
        if not isinstance(other, Plan):
            alternatives.append(Alternative(name, None, None, other))
            continue
        ratio = other.step_s / best.step_s if best.step_s else math.inf
        if name not in allowed:
            reason = f"{microbatches} microbatches were asked for"
        else:
            reason = f"{ratio:.2f} times as long a step" if ratio > 1.005 else "no faster"
        alternatives.append(Alternative(name, other.step_s, other.memory_bytes, reason))
    return replace(best, strategy=chosen, alternatives=tuple(alternatives))
