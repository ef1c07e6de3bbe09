"""Plan a step from its traces: choose the number of microbatches and the plan."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Generic, Protocol, Self, TypeVar

from costmodel import Cluster

from frontends.answer.plan import Plan
from frontends.base.present import present
from frontends.errors import AccumulationError, HeldLayoutError, PlanError
from frontends.layers.layers import LayeredStep, layer
from frontends.layers.replicas import copied_as
from frontends.search.held import HeldPlanner
from frontends.search.held_layers import layers_of_held
from frontends.search.microbatches import with_microbatches
from frontends.search.plan_options import PlanOptions
from frontends.search.planner import Planner
from frontends.step.kernels import KernelMaker, with_kernels
from frontends.step.step import TrainingStep

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


def plan_traces(
    at: Callable[[int], TracedT],
    shares_of_whole: Callable[[TracedT], Mapping[str, float]],
    sizes: Sequence[int],
    cluster: Cluster,
    options: PlanOptions,
    *,
    engine: KernelMaker,
    hold: Plan | None = None,
) -> Planned[TracedT]:
    """Plan a step from its traces.

    Args:
        at: Returns the trace of the step in a number of microbatches.
        shares_of_whole: Returns the share of a trace's FLOPs, by kind of operator, that every
            device computes whole as the kind has no rule.
        sizes: Number of examples in each leaf of the batch.
        cluster: The cluster to plan for.
        options: How to plan.
        engine: What runs the step: the kernels that it makes of the operators are priced.
        hold: A plan of a step that shares its state with this one. The state stays in the layouts
            of that plan. Strategy, schedule, microbatches and layers are those of that plan, too;
            if the batch cannot be cut into as many microbatches, it is cut into fewer.

    Raises:
        HeldLayoutError: With `hold`, if state cannot stay where it is.
    """
    given, microbatches = options.plan, options.microbatches
    if given is None and hold is not None:
        held = partial(HeldPlanner, hold=hold, cluster=cluster, options=options)
        return _plan_held(at, shares_of_whole, sizes, hold, held, engine)
    keep = microbatches is not None or given is not None
    if given is not None:
        microbatches = given.microbatches
    if microbatches is None:
        microbatches = math.gcd(_MICROBATCHES, *sizes) if sizes else 1

    steps: dict[int, tuple[TracedT, LayeredStep]] = {}
    shares: dict[int, Mapping[str, float]] = {}

    def traced(microbatches: int) -> tuple[TracedT, LayeredStep]:
        if microbatches not in steps:
            trace = at(microbatches)
            step = _run_by(engine, trace.step)
            if given is None or step.fingerprint != given.step:  # refused below
                layered = layer(step, options.n_layers)
            else:
                layered, _ = layers_of_held(step, given)
            steps[microbatches] = (trace, layered)
        return steps[microbatches]

    def whole(microbatches: int) -> Mapping[str, float]:
        if microbatches not in shares:
            shares[microbatches] = shares_of_whole(traced(microbatches)[0])
        return shares[microbatches]

    @cache
    def planner(microbatches: int) -> Planner:
        both_ways = not keep and microbatches == fewest > 1
        return Planner(
            traced(microbatches)[1],
            cluster,
            options,
            undivided=traced(1)[1] if both_ways else None,
            unsharded=tuple(whole(microbatches)),
        )

    try:
        traced(microbatches)
    except AccumulationError as error:
        if keep:
            raise
        warnings.warn(f"planned without microbatches: {error}", stacklevel=3)
        microbatches, keep = 1, True
    fewest = microbatches
    plan = given
    if plan is None:
        plan = planner(fewest).best() if keep else with_microbatches(planner, fewest, sizes)
        plan = replace(plan, options=options.asked())
    trace, layered = traced(plan.microbatches)
    _warn_of_whole(whole(plan.microbatches))
    if plan.step != layered.step.fingerprint:
        raise PlanError(
            "a plan runs the step that it was made for; this one is for step "
            f"{plan.step}, and the function is step {layered.step.fingerprint}: plan again, or "
            "call it with arguments of the shapes that it was planned for"
        )
    copied = copied_as(layered, plan)
    return Planned(trace.with_copies(copied.original), copied.layered, plan)


def _plan_held(
    at: Callable[[int], TracedT],
    shares_of_whole: Callable[[TracedT], Mapping[str, float]],
    sizes: Sequence[int],
    hold: Plan,
    held: Callable[..., HeldPlanner],
    engine: KernelMaker,
) -> Planned[TracedT]:
    """Plan in held layouts, in the first number of microbatches in which the step runs and fits."""
    reason: HeldLayoutError | None = None
    for microbatches in _numbers(hold.microbatches, sizes):
        try:
            trace = at(microbatches)
        except AccumulationError:
            if microbatches == 1:
                raise
            continue
        step = _run_by(engine, trace.step)
        if step.fingerprint == hold.step:
            copied = copied_as(layers_of_held(step, hold)[0], hold)
            return Planned(trace.with_copies(copied.original), copied.layered, hold)
        try:
            planner = held(step, unsharded=tuple(shares_of_whole(trace)))
            return Planned(trace, planner.layered, planner.plan())
        except HeldLayoutError as error:
            reason = reason or error
    raise present(reason, "one microbatch is among the numbers that are tried")


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
