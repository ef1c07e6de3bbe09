"""Plan a step that a framework traces: how many microbatches, and by which of its traces."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, Self, TypeVar

from autoshard import MemoryRule
from costmodel import Cluster

from frontends.candidates import EQUAL_LAYERS
from frontends.copies import copied_as
from frontends.errors import AccumulationError, NoPlanError, PlanError
from frontends.layers import LayeredStep, layer, layer_as
from frontends.pins import Pin
from frontends.plan import Alternative, Plan
from frontends.planner import make_plan
from frontends.pricing import Level
from frontends.step import Step

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many of it are done, and of how many."""

_MICROBATCHES = 8
"""How many are tried first when the user does not say how many."""

_GAIN = 0.99
"""Of a step's time, below which twice as many microbatches are worth a search more [chosen]."""


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
    *,
    microbatches: int | None,
    strategy: str,
    schedule: str | None,
    memory_bytes: int | None,
    level: Level,
    memory_rule: MemoryRule,
    pin: Mapping[str, Pin] | None,
    n_layers: int | None,
    plan: Plan | None,
    progress: Progress | None,
) -> Planned[TracedT]:
    """Plan a step by its traces.

    Args:
        at: The step's trace in so many microbatches.
        shares_of_whole: By kind, the share of a trace's FLOP that run whole for lack of a rule.
        sizes: Examples in each leaf of the batch.
        cluster: What to plan for.
        microbatches: Parts that the batch is cut into; by default the fastest number.
        strategy: As in `frontends.planner.make_plan`, like those that follow.
        schedule: As there.
        memory_bytes: As there.
        level: As there.
        memory_rule: As there.
        pin: As there.
        n_layers: How finely the model may be cut into stages; by default at its repeated blocks.
        plan: Use this plan, with its microbatches and layers, instead of searching one.
        progress: Told what is being done.
    """
    keep = microbatches is not None or plan is not None
    if plan is not None:
        microbatches = plan.microbatches
    if microbatches is None:
        microbatches = math.gcd(_MICROBATCHES, *sizes) if sizes else 1

    given = plan
    steps: dict[int, tuple[TracedT, LayeredStep]] = {}
    shares: dict[int, Mapping[str, float]] = {}

    def traced(microbatches: int) -> tuple[TracedT, LayeredStep]:
        if microbatches not in steps:
            found = at(microbatches)
            layered = layer(found.step, n_layers) if given is None else layer_as(found.step, given)
            steps[microbatches] = (found, layered)
        return steps[microbatches]

    def whole(microbatches: int) -> Mapping[str, float]:
        if microbatches not in shares:
            shares[microbatches] = shares_of_whole(traced(microbatches)[0])
        return shares[microbatches]

    def planned(microbatches: int, undivided: bool) -> Plan:
        return make_plan(
            traced(microbatches)[1],
            cluster,
            undivided=traced(1)[1] if undivided and microbatches > 1 else None,
            strategy=strategy,
            schedule=schedule,
            memory_bytes=memory_bytes,
            level=level,
            memory_rule=memory_rule,
            pin=pin,
            unsharded=tuple(whole(microbatches)),
            progress=progress,
        )

    try:
        traced(microbatches)
    except AccumulationError as error:
        if keep:
            raise
        warnings.warn(f"planned without microbatches: {error}", stacklevel=3)
        microbatches, keep = 1, True
    if plan is None:
        if keep:
            plan = planned(microbatches, False)
        else:
            plan = with_microbatches(planned, microbatches, sizes)
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


def _warn_of_whole(shares: Mapping[str, float]) -> None:
    if shares:
        names = ", ".join(f"{name} ({share:.1%})" for name, share in shares.items())
        warnings.warn(
            f"no sharding rule for {names} of the step's FLOP; every device runs these whole",
            stacklevel=4,
        )


def _has_no_room_for_pipelines(plan: Plan) -> bool:
    """Whether equal layers do not fit the memory: smaller microbatches may then do."""
    return any(a.name == EQUAL_LAYERS and a.step_s is None for a in plan.alternatives)


def with_microbatches(
    planned: Callable[[int, bool], Plan], fewest: int, sizes: Sequence[int]
) -> Plan:
    """The fastest plan over numbers of microbatches, with the others as alternatives.

    More of them make a pipeline's bubble smaller and need less memory; they never help a plan
    without a pipeline, where pipelines fit and are slower.
    """
    found: list[Plan] = []
    n = fewest
    while True:
        more_are_there = bool(sizes) and n > 0 and math.gcd(2 * n, *sizes) == 2 * n
        try:
            found.append(planned(n, not found))
        except NoPlanError:
            if found or not more_are_there:
                if not found:
                    raise
                break
        else:
            is_slower = len(found) > 1 and found[-1].step_s > _GAIN * found[-2].step_s
            is_alone = len(found[-1].stages) == 1 and not _has_no_room_for_pipelines(found[-1])
            if is_slower or is_alone or not more_are_there:
                break
        n *= 2
    best = min(found, key=lambda plan: plan.step_s)
    others = tuple(
        Alternative(
            f"{other.microbatches} microbatches",
            other.step_s,
            other.memory_bytes,
            f"{other.step_s / best.step_s:.2f} times as long a step" if best.step_s else "as fast",
        )
        for other in found
        if other is not best
    )
    return replace(best, alternatives=best.alternatives + others)
