"""Plan a step from its traces: choose the number of microbatches and the plan."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Generic, Protocol, Self, TypeVar

from costmodel import Cluster

from frontends.answer.plan import Plan
from frontends.base.present import present
from frontends.errors import AccumulationError, HeldLayoutError, NoPlanError, PlanError
from frontends.layers.layers import LayeredStep, layer
from frontends.layers.recompute import recomputed
from frontends.layers.replicas import copied_as
from frontends.plan.plan_fields import REMATS, Remat, Remats
from frontends.price.bounds import Bounds
from frontends.price.device_pool import DevicePool
from frontends.search.deadline import Deadline
from frontends.search.equal_parts import fastest_of, parts_of
from frontends.search.held import HeldPlanner
from frontends.search.held_layers import layers_of_held
from frontends.search.microbatches import (
    alike,
    usual_plans,
    with_microbatches,
    with_other_schedules,
)
from frontends.search.padding import PaddedSizes, SizesOf, unpadded, with_padding
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import Planner
from frontends.search.remat import with_remat
from frontends.search.remat_by_layer import faster_by_layer
from frontends.search.room import Room
from frontends.search.ways_out import Change, unchanged, with_ways_out
from frontends.step.kernels import KernelMaker, with_kernels
from frontends.step.step import BACKWARD, TrainingStep

_MICROBATCHES = 8
"""The number of microbatches to try first if the user does not choose one."""

_DOUBLINGS = 3
"""How often the number of microbatches is doubled if a longer batch does not fit in held layouts
[chosen]."""


class TracedStep(Protocol):
    """The trace of a step by a framework."""

    @property
    def step(self) -> TrainingStep:
        """The step, independent of the framework."""

    def with_copies(self, original: Mapping[str, str]) -> Self:
        """The trace with copies of operators; `original` has the operator of each copy, by name."""


TracedT = TypeVar("TracedT", bound=TracedStep)


@dataclass(frozen=True)
class Planned(Generic[TracedT]):
    """A traced step and its plan, with replicas of layers if the plan's schedule has some."""

    trace: TracedT
    layered: LayeredStep
    plan: Plan
    first_pass: Planned[TracedT] | None = None
    """What computes the features of all microbatches before, if the loss compares examples."""


def plan_traces(
    at: Callable[[int, int], TracedT],
    shares_of_whole: Callable[[TracedT], Mapping[str, float]],
    sizes: Sequence[int],
    cluster: Cluster,
    options: PlanOptions,
    *,
    engine: KernelMaker,
    hold: Plan | None = None,
    sends_state: bool = False,
) -> Planned[TracedT]:
    """Plan a step from its traces.

    Args:
        at: Returns the trace of the step in a number of microbatches, which are padded to a number
            of examples; 0 for no padding.
        shares_of_whole: Returns the share of a trace's FLOPs, by kind of operator, that every
            device computes whole as the kind has no rule.
        sizes: Number of examples in each leaf of the batch.
        cluster: The cluster to plan for.
        options: How to plan.
        engine: What runs the step: the kernels that it makes of the operators are priced.
        hold: A plan of a step that shares its state with this one. The state stays in the layouts
            of that plan. Strategy, schedule, microbatches and layers are those of that plan, too;
            if the batch cannot be cut into as many microbatches, it is cut into fewer.
        sends_state: See `layers_of_held`.

    Raises:
        HeldLayoutError: With `hold`, if state cannot stay where it is.
    """
    given = options.plan
    at = cache(at)
    if given is None and hold is not None:
        held = partial(
            HeldPlanner, hold=hold, cluster=cluster, options=options, sends_state=sends_state
        )
        padded = PaddedSizes(tuple(sizes), hold.n_devices)
        return _plan_held(at, shares_of_whole, sizes, padded, hold, held, engine)
    if given is not None:
        trace = at(given.microbatches, given.padded_to)
        _warn_of_whole(shares_of_whole(trace))
        return _planned(trace, _layered_as(trace.step, given, engine), given)

    def plans_on(
        where: DevicePool, how: PlanOptions, change: Change, sizes_of: SizesOf = unpadded
    ) -> _Plans[TracedT]:
        traces = _traces(at, sizes_of)
        first = _first(traces, how, sizes)
        return _Plans(traces, shares_of_whole, sizes, where, how, engine, first, change, sizes_of)

    first = _first(_traces(at, unpadded), options, sizes)
    if first.reason is not None:
        warnings.warn(f"planned without microbatches: {first.reason}", stacklevel=3)
    deadline = Deadline(options)

    @cache
    def ways_on(pool: DevicePool) -> dict[bool, _Plans[TracedT]]:
        """The plans on some devices without padding, and with it if there is any."""
        ways = {False: plans_on(pool, deadline.options, unchanged)}
        padded = PaddedSizes(tuple(sizes), pool.n_devices)
        if padded.differ(first.number, first.is_only) and ways[False].has_inputs(options.pin or ()):
            ways[True] = plans_on(pool, deadline.options, unchanged, padded)
        return ways

    def bound_s(pool: DevicePool) -> float:
        return min(each.bound_s(options.remat or "none") for each in ways_on(pool).values())

    parts = parts_of(cluster, options.memory_bytes, at(first.number, 0).step.graph)
    try:
        plan = deadline.search(
            lambda: fastest_of(
                parts, lambda pool: with_padding(ways_on(pool), options.remat), bound_s
            )
        )
    except NoPlanError as error:
        if not options.advise:
            raise

        def search(where: Cluster, how: PlanOptions, change: Change) -> Plan:
            return with_remat(plans_on(DevicePool(where, how.memory_bytes), how, change), how.remat)

        raise with_ways_out(error, search, cluster, options) from None
    plans = ways_on(parts.pools[0])[False]
    if plan.padded_to:
        plans = next(ways_on(pool)[True] for pool in parts.pools if _pads(ways_on(pool), plan))
    if deadline.is_over:  # what was not tried may have fewer microbatches, or recompute less
        plan = replace(plan, lower_bound_s=min(map(bound_s, parts.pools)))
    plan = replace(plan, options=options.asked())
    _warn_of_whole(plans.whole(plan.microbatches))
    return _planned(plans.traced(plan.microbatches), plans.layered_of(plan), plan)


def _traces(at: Callable[[int, int], TracedT], sizes_of: SizesOf) -> Callable[[int], TracedT]:
    """Returns the traces in numbers of microbatches with some padding."""
    return lambda microbatches: at(microbatches, sizes_of(microbatches))


@dataclass(frozen=True, slots=True)
class _First:
    """The number of microbatches to begin a search with."""

    number: int
    is_only: bool
    """Whether it is the only one."""

    reason: AccumulationError | None = None
    """Why there is no other, if the user has not chosen it."""


def _first(at: Callable[[int], TracedStep], options: PlanOptions, sizes: Sequence[int]) -> _First:
    """The number of microbatches to begin with: data parallel ways that are asked for divide each.

    Raises:
        AccumulationError: The step cannot run in as many as are wanted.
    """
    number, ways = options.microbatches, options.dp or 1
    if number is None:
        of_way = [size if size % ways else size // ways for size in sizes]
        number = math.gcd(_MICROBATCHES, *of_way) if sizes else 1
    try:
        at(number)
    except AccumulationError as error:
        if options.microbatches is not None:
            raise
        return _First(1, is_only=True, reason=error)
    return _First(number, is_only=options.microbatches is not None)


def _pads(ways: Mapping[bool, _Plans[TracedT]], plan: Plan) -> bool:
    """Whether plans with padding pad as much as a plan."""
    return True in ways and ways[True].padded_to(plan.microbatches) == plan.padded_to


class _Plans(Generic[TracedT]):
    """Plans of a step by what backward computes again; `PlansOfRemat` for `with_remat`.

    Args:
        at, shares_of_whole, sizes, options, engine: See `plan_traces`.
        pool: The devices to plan for.
        first: The number of microbatches to begin with.
        change: What the step is before it is planned.
        sizes_of: To how many examples the microbatches of `at` are padded.
    """

    def __init__(
        self,
        at: Callable[[int], TracedT],
        shares_of_whole: Callable[[TracedT], Mapping[str, float]],
        sizes: Sequence[int],
        pool: DevicePool,
        options: PlanOptions,
        engine: KernelMaker,
        first: _First,
        change: Change,
        sizes_of: SizesOf,
    ) -> None:
        self._sizes, self._pool, self._options, self._engine = sizes, pool, options, engine
        self._fewest, self._keep, self._change = first.number, first.is_only, change
        self.padded_to = sizes_of
        self.traced = at
        self.whole = cache(lambda microbatches: shares_of_whole(at(microbatches)))
        self._layered, self._bounds = cache(self._in_layers), cache(self._make_bounds)
        self._planners: dict[tuple[Remats, int], Planner] = {}

    def fastest(self, remat: Remat, promising: Plan | None = None) -> Plan:
        """The fastest plan; raises `NoPlanError` if none fits."""
        of = partial(self._planner, remat)
        fewest = self._fewest
        if self._keep:
            plan = of(fewest).best()
        else:
            plan = with_microbatches(of, fewest, self._sizes, self._room(remat), promising)
        return self._named(plan, remat)

    def usual(self, remat: Remat) -> Plan | None:
        """The fastest baseline; None if none fits."""
        of = partial(self._planner, remat)
        if self._keep:
            with suppress(NoPlanError):
                return of(self._fewest).usual()
            return None
        plans = usual_plans(of, self._fewest, self._sizes, self._room(remat)).values()
        return min(plans, key=lambda plan: plan.step_s, default=None)

    def alike(self, remat: Remat, plan: Plan, usual: Plan) -> Plan:
        """The fastest plan that needs no search: a baseline, or with the stages of a plan."""
        of = partial(self._planner, remat)
        if self._keep:
            planner = of(self._fewest)
            others = filter(None, (planner.like(plan), planner.in_one_stage()))
            found = min((usual, *others), key=lambda each: each.step_s)
        else:
            found = alike(of, plan, usual, self._fewest, self._sizes, self._room(remat))
        return self._named(found, remat)

    def has_inputs(self, names: Iterable[str]) -> bool:
        """Whether these values are arguments, which have the same names with padding."""
        made = self.traced(self._fewest).step.graph.producers
        return made.keys().isdisjoint(names)

    def saved_bytes(self, remat: Remat) -> int:
        """What backward reads of forward's results, without sharding."""
        layered = self._layered(self._fewest, remat)
        graph = layered.stage(0, layered.n_layers - 1)
        saved = (name for name in graph.saved if name in graph.producers)
        return sum(graph.value(name).n_bytes for name in saved)

    def was_short(self, remat: Remat) -> bool:
        """Whether anything did not fit the memory when the fastest plan was searched."""
        planners = self._planners.items()
        is_short = any(each.is_short_of_memory for (of, _), each in planners if of == remat)
        return is_short or not self._room(remat).fits(1)

    def bound_s(self, remat: Remat) -> float:
        """Lower bound of the time of a step; cutting the batch only adds to it."""
        return self._bounds(self._fewest if self._keep else 1, remat).step_bound_s()

    def in_other_schedules(self, plan: Plan) -> Plan:
        """A plan, or a faster one in another schedule, and in as many microbatches or more."""
        of = partial(self._planner, plan.remat)
        sizes = () if self._keep else self._sizes
        return self._named(with_other_schedules(of, plan, self._fewest, sizes), plan.remat)

    def by_layer(self, plan: Plan) -> Plan | None:
        """A faster plan in which some layers compute less again, if any."""
        number = plan.microbatches
        found = faster_by_layer(plan, lambda r: self._planner(r, number), self._pool)
        return None if found is None else self._named(*found)

    def layered_of(self, plan: Plan) -> LayeredStep:
        """The step that one of the plans is for."""
        return self._layered(plan.microbatches, plan.remats)

    def _room(self, remat: Remat) -> Room:
        """Which numbers of microbatches leave room for a plan."""
        whole, few = self._bounds(1, remat), self._bounds(self._fewest, remat)
        return Room(whole, few, self._examples, self._options.has_baselines)

    def _examples(self, microbatches: int) -> int:
        """How many examples a microbatch has; 0 without a batch."""
        whole = math.gcd(*self._sizes) if self._sizes else 0
        return self.padded_to(microbatches) or whole // microbatches

    def _make_bounds(self, microbatches: int, remat: Remat) -> Bounds:
        return Bounds(self._layered(microbatches, remat), self._pool)

    def _in_layers(self, microbatches: int, remat: Remats) -> LayeredStep:
        step = self._change(self.traced(microbatches).step)
        if remat != "none":
            step = recomputed(step, self._layered(microbatches, "none").layer_of, remat)
        return layer(_run_by(self._engine, step), self._options.n_layers)

    def _tell(self, remat: Remats, what: str, plan: Plan | str) -> None:
        """Report what was tried, with what it computes again."""
        made = plan if isinstance(plan, str) else self._named(plan, remat)
        what += f", remat={remat if isinstance(remat, str) else 'by layer'}" * (remat != "none")
        self._options.tell_plan(what + ", padded" * (self.padded_to is not unpadded), made)

    def _named(self, plan: Plan, remat: Remats) -> Plan:
        """A plan that says what it computes again, and how its microbatches are padded."""
        return replace(_computing(plan, remat), padded_to=self.padded_to(plan.microbatches))

    def _planner(self, remat: Remats, microbatches: int) -> Planner:
        if (remat, microbatches) not in self._planners:
            both_ways = isinstance(remat, str) and not self._keep
            both_ways = both_ways and microbatches == self._fewest > 1
            self._planners[remat, microbatches] = Planner(
                self._layered(microbatches, remat),
                self._pool.cluster,
                replace(self._options, on_plan=partial(self._tell, remat)),
                undivided=self._layered(1, remat) if both_ways else None,
                unsharded=tuple(self.whole(microbatches)),
                device_ids=self._pool.device_ids,
            )
        return self._planners[remat, microbatches]


def _planned(trace: TracedT, layered: LayeredStep, plan: Plan) -> Planned[TracedT]:
    """A plan with its step, in which all is there that the plan runs.

    Raises:
        PlanError: The plan is for another step.
    """
    if plan.step != layered.step.fingerprint:
        raise PlanError(
            "a plan runs the step that it was made for; this one is for step "
            f"{plan.step}, and the function is step {layered.step.fingerprint}: plan again, or "
            "call it with arguments of the shapes that it was planned for"
        )
    copied = copied_as(layered, plan)
    return Planned(trace.with_copies(copied.traced), copied.layered, plan)


def _layered_as(step: TrainingStep, plan: Plan, engine: KernelMaker) -> LayeredStep:
    """The layers of a step, as a plan of it or of another shape of its batch has them.

    Raises:
        HeldLayoutError: See `layers_of_held`.
    """
    if step.fingerprint != plan.step:
        return layer(_run_by(engine, step))
    return layers_of_held(_recomputing(step, plan, engine), plan)[0]


def _recomputing(step: TrainingStep, plan: Plan, engine: KernelMaker) -> TrainingStep:
    """A step that computes again in backward what a plan says, in the kernels of what runs it."""
    if plan.remat != "none" and any(op.phase == BACKWARD for op in step.graph.operators):
        layered = layers_of_held(step, plan)[0]
        step = recomputed(step, layered.layer_of, _remats_in(layered.n_layers, plan))
    return _run_by(engine, step)


def _plan_held(
    at: Callable[[int, int], TracedT],
    shares_of_whole: Callable[[TracedT], Mapping[str, float]],
    sizes: Sequence[int],
    padded: SizesOf,
    hold: Plan,
    held: Callable[..., HeldPlanner],
    engine: KernelMaker,
) -> Planned[TracedT]:
    """Plan in held layouts, in the first number of microbatches in which the step runs and fits.

    In that number, with padding if this is faster.
    """
    reason: HeldLayoutError | None = None
    for microbatches in _numbers(hold.microbatches, sizes):
        made: list[Planned[TracedT]] = []
        for padded_to in sorted({0, padded(microbatches)}):
            try:
                trace = at(microbatches, padded_to)
            except AccumulationError:
                if microbatches == 1:
                    raise
                break
            try:
                step = _recomputing(trace.step, hold, engine)
                if step.fingerprint == hold.step:
                    return _planned(trace, layers_of_held(step, hold)[0], hold)
                planner = held(step, unsharded=tuple(shares_of_whole(trace)))
                remats = _remats_in(planner.layered.n_layers, hold)
                plan = replace(_computing(planner.plan(), remats), padded_to=padded_to)
            except HeldLayoutError as error:
                reason = reason or error
            else:
                made.append(_planned(trace, planner.layered, plan))
        if made:
            return min(made, key=lambda each: each.plan.step_s)
    raise present(reason, "one microbatch is among the numbers that are tried")


def _remats_in(n_layers: int, plan: Plan) -> Remats:
    """What a plan's layers compute again; the most of all, if the step has another number."""
    return plan.remats if len(plan.remat_of_layers) == n_layers else plan.remat


def _computing(plan: Plan, remat: Remats) -> Plan:
    """A plan that says what it computes again."""
    if isinstance(remat, str):
        return replace(plan, remat=remat, remat_of_layers=())
    return replace(plan, remat=max(remat, key=REMATS.index), remat_of_layers=remat)


def _run_by(engine: KernelMaker, step: TrainingStep) -> TrainingStep:
    """The step with the kernels of what runs it; its fingerprint, which plans have, stays."""
    return replace(step, graph=with_kernels(step.graph, engine, step.summed))


def _numbers(wanted: int, sizes: Sequence[int]) -> list[int]:
    """Numbers of microbatches to try, in order; each cuts every leaf of the batch evenly.

    The wanted one, then larger ones, then smaller ones; if the wanted one does not cut the batch
    evenly, smaller ones, then larger ones.
    """
    if not sizes:
        return [1]
    most = math.gcd(*sizes)
    fewer = [n for n in range(min(wanted, most), 0, -1) if most % n == 0]
    larger = [n for n in (wanted << k for k in range(1, _DOUBLINGS + 1)) if most % n == 0]
    return [*fewer[:1], *larger, *fewer[1:]] if fewer[0] == wanted else [*fewer, *larger]


def _warn_of_whole(shares: Mapping[str, float]) -> None:
    if shares:
        names = ", ".join(f"{name} ({share:.1%})" for name, share in shares.items())
        warnings.warn(
            f"no sharding rule for {names} of the step's FLOP; every device runs these whole: "
            "register_rule adds one",
            stacklevel=4,
        )
