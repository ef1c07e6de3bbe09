"""Plan a step that a framework traces: how many microbatches, and by which of its traces."""

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
from frontends.step.step import Step

_MICROBATCHES = 8
"""How many are tried first when the user does not say how many."""

_DOUBLINGS = 3
"""How often microbatches are halved where a longer batch does not fit in held layouts [chosen]."""


class Traced(Protocol):
    """A step as a framework traced it."""

    @property
    def step(self) -> Step:
        """The same without the framework."""

    def with_copies(self, original: Mapping[str, str]) -> Self:
        """The same where operators have copies: by their names those of the originals."""


TracedT = TypeVar("TracedT", bound=Traced)


@dataclass(frozen=True)
class Planned(Generic[TracedT]):
    """A traced step and its plan; with copies of layers where the plan's schedule has some."""

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
    hold: Plan | None = None,
) -> Planned[TracedT]:
    """Plan a step by its traces.

    Args:
        at: The step's trace in so many microbatches.
        shares_of_whole: By kind, the share of a trace's FLOP that run whole for lack of a rule.
        sizes: Examples in each leaf of the batch.
        cluster: What to plan for.
        options: How to plan.
        hold: A plan of a step that shares its state with this one: state stays where that keeps it,
            in as many microbatches as it has if the batch can be cut so, else in fewer. Strategy,
            schedule, microbatches and layers are the plan's then.

    Raises:
        HeldLayoutError: With `hold`, if state cannot stay where it is.
    """
    given, microbatches = options.plan, options.microbatches
    if given is None and hold is not None:
        held = partial(HeldPlanner, hold=hold, cluster=cluster, options=options)
        return _plan_held(at, shares_of_whole, sizes, hold, held)
    keep = microbatches is not None or given is not None
    if given is not None:
        microbatches = given.microbatches
    if microbatches is None:
        microbatches = math.gcd(_MICROBATCHES, *sizes) if sizes else 1

    steps: dict[int, tuple[TracedT, LayeredStep]] = {}
    shares: dict[int, Mapping[str, float]] = {}

    def traced(microbatches: int) -> tuple[TracedT, LayeredStep]:
        if microbatches not in steps:
            found = at(microbatches)
            if given is None or found.step.fingerprint != given.step:  # which is refused below
                layered = layer(found.step, options.n_layers)
            else:
                layered, _ = layers_of_held(found.step, given)
            steps[microbatches] = (found, layered)
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
            f"{plan.step}, and the function given is step {layered.step.fingerprint}: "
            "plan again, or give the arguments the shapes of then"
        )
    copied = copied_as(layered, plan)
    return Planned(trace.with_copies(copied.original), copied.layered, plan)


def _plan_held(
    at: Callable[[int], TracedT],
    shares_of_whole: Callable[[TracedT], Mapping[str, float]],
    sizes: Sequence[int],
    hold: Plan,
    held: Callable[..., HeldPlanner],
) -> Planned[TracedT]:
    """In the first number of microbatches in which the step runs and fits."""
    reason: HeldLayoutError | None = None
    for microbatches in _numbers(hold.microbatches, sizes):
        try:
            trace = at(microbatches)
        except AccumulationError:
            if microbatches == 1:
                raise
            continue
        if trace.step.fingerprint == hold.step:
            copied = copied_as(layers_of_held(trace.step, hold)[0], hold)
            return Planned(trace.with_copies(copied.original), copied.layered, hold)
        try:
            planner = held(trace.step, unsharded=tuple(shares_of_whole(trace)))
            return Planned(trace, planner.layered, planner.plan())
        except HeldLayoutError as error:
            reason = reason or error
    raise present(reason, "one microbatch is among the numbers that are tried")


def _numbers(wanted: int, sizes: Sequence[int]) -> list[int]:
    """The number that is wanted and all below it, then larger ones, that cut every leaf evenly."""
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
            "register_rule gives one to an operator",
            stacklevel=4,
        )
