"""The pipeline schedule of a plan, as pipesched's object: it alone says who runs what when."""

from __future__ import annotations

import pipesched
from pipesched import Edge, Kind, Schedule

from frontends.errors import PlanError
from frontends.plan import Plan

RUN = (
    "gpipe",
    "1f1b",
    "eager-1f1b",
    "interleaved-1f1b",
    "looped-bfs",
    "zb-h1",
    "zb-h2",
    "zb-1p",
    "zb-auto",
    "zb-v",
    "v-half",
    "v-min",
    "dualpipe-v",
)
"""Names of schedules that run. Others run as text, if each stage is on one rank."""

PLAIN = ("1f1b", "eager-1f1b", "gpipe")
"""Those of one stage a rank and whole backwards, which a plan is chosen among if none is asked for;
the one that holds the fewest microbatches first."""

_INSTEAD = {
    "dualpipe": "dualpipe-v, which is idle no longer and holds each stage once",
    "chimera": "zb-v, which has two stages a rank too, or interleaved-1f1b",
}
"""Schedules that keep a second copy of every stage, and those that hold one and do as well."""


def schedule_of(plan: Plan) -> Schedule:
    """The schedule of a plan: the one of that name, or the one whose text it has.

    Raises:
        PlanError: There is no such schedule for as many stages and microbatches, or it does what
            no training step does here: forwards only, recomputation, or copies of a stage.
    """
    n_stages, microbatches = len(plan.stages), plan.microbatches
    try:
        if plan.schedule in pipesched.NAMES:
            schedule = pipesched.make(plan.schedule, n_stages, microbatches)
        else:
            schedule = Schedule.parse(plan.schedule)
        pipesched.check(schedule)
    except pipesched.PipeschedError as error:
        raise PlanError(
            "a plan's schedule is one of pipesched's names or texts, for its stages and "
            f"microbatches; {plan.schedule.split()[:1]} for {n_stages} stages and {microbatches} "
            f"microbatches: {error}"
        ) from error
    if (schedule.n_stages, schedule.n_microbatches) != (n_stages, microbatches):
        raise PlanError(
            f"a plan's schedule is of its stages and microbatches; got {schedule.n_stages} stages "
            f"and {schedule.n_microbatches} microbatches for {n_stages} and {microbatches}"
        )
    if len(schedule.placement.routes) > 1:
        instead = _INSTEAD.get(schedule.name, f"one of {', '.join(RUN)}")
        raise PlanError(
            "each stage of a plan is on one mesh, which alone holds and updates its weights; "
            f"{schedule.name} has copies of stages on several ranks: take {instead}"
        )
    kinds = {action.kind for actions in schedule.ranks for action in actions}
    if Kind.RECOMPUTE in kinds:
        raise PlanError(
            "what a stage computes again is in its program, where the planner sees its time and "
            f"memory; {schedule.name} recomputes by the schedule: use jax.checkpoint in the step, "
            f"and the schedule without it, or one of {', '.join(RUN)}"
        )
    if not schedule.backward:
        raise PlanError(
            f"a schedule that trains runs forwards and backwards; {schedule.name} has no "
            f"backwards: take one of {', '.join(RUN)}"
        )
    return schedule


def split_stages(schedule: Schedule) -> frozenset[int]:
    """The stages whose backward has two parts, input gradient and weight gradient."""
    return frozenset(
        action.stage
        for actions in schedule.ranks
        for action in actions
        if action.kind is Kind.WEIGHT_GRADIENT
    )


def stages_a_rank(name: str) -> int:
    """How many stages each rank runs by the schedule of a name."""
    return 4 // len(pipesched.make(name, 4, 4).ranks)  # every one is defined for 4 and 4


def most_held(schedule: Schedule) -> tuple[list[int], list[int]]:
    """Microbatches that each stage holds at most, and those between the parts of their backward.

    A microbatch is held from its forward until its backward, or its weight gradient, is done.
    """
    n, split = schedule.n_stages, split_stages(schedule)
    held, between, most_held, most_between = [0] * n, [0] * n, [0] * n, [0] * n
    for action in (action for actions in schedule.ranks for action in actions):
        stage = action.stage
        match action.kind:
            case Kind.FORWARD:
                held[stage] += 1
            case Kind.BACKWARD:
                held[stage] -= 1
                if stage in split:  # both parts, one after the other
                    most_between[stage] = max(most_between[stage], between[stage] + 1)
            case Kind.INPUT_GRADIENT:
                between[stage] += 1
            case Kind.WEIGHT_GRADIENT:
                held[stage] -= 1
                between[stage] -= 1
        most_held[stage] = max(most_held[stage], held[stage])
        most_between[stage] = max(most_between[stage], between[stage])
    return most_held, most_between


def most_waiting(schedule: Schedule, edge: Edge) -> int:
    """Microbatches of which a stage has something at most, before it begins to use it.

    What passes between stages of one rank is there when it is made; from other ranks a stage takes
    it when it is used.
    """
    (route,) = schedule.placement.routes
    (made, source), (used, destination) = edge.src, edge.dst
    if route[source] != route[destination]:
        return 0
    waiting = most = 0
    for action in schedule.ranks[route[source]]:
        kind = Kind.BACKWARD if action.kind is Kind.INPUT_GRADIENT else action.kind
        waiting += ((kind, action.stage) == (made, source)) - (
            (kind, action.stage) == (used, destination)
        )
        most = max(most, waiting)
    return most
