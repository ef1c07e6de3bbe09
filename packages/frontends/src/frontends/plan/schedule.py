"""The pipeline schedule of a plan, as pipesched's object: it alone says who runs what when."""

from __future__ import annotations

from dataclasses import replace

import pipesched
from pipesched import Edge, Kind, Placement, Schedule

from frontends.errors import PlanError
from frontends.plan.plan_fields import PlanFields


def runs(schedule: Schedule) -> bool:
    """Whether it trains; what recomputes by the schedule runs by none here."""
    return schedule.backward and not _recomputes(schedule)


def names_that_run() -> tuple[str, ...]:
    """Names of all schedules that run. Those that others have registered are taken to.

    Raises:
        PlanError: Distributions have schedules of the same name.
    """
    try:
        names = pipesched.schedule_names()
    except pipesched.PipeschedError as error:
        raise PlanError(str(error)) from error
    ours = {n: runs(pipesched.schedule_entry(n).example) for n in pipesched.NAMES}
    return tuple(name for name in names if ours.get(name, True))


def check_name(name: str) -> None:
    """Raise `PlanError` unless there is a schedule of this name, and it runs."""
    try:
        if name in pipesched.schedule_names() and runs(pipesched.schedule_entry(name).example):
            return
    except pipesched.PipeschedError as error:
        raise PlanError(str(error)) from error
    raise PlanError(
        f"a schedule is one of {', '.join(names_that_run())}, or registered by "
        f"pipesched.register_schedule; got {name!r}"
    )


def _recomputes(schedule: Schedule) -> bool:
    return any(action.kind is Kind.RECOMPUTE for actions in schedule.ranks for action in actions)


def schedule_of(plan: PlanFields) -> Schedule:
    """The schedule of a plan: the one of that name, or the one whose text it has.

    Where it has copies of stages, the plan has each copy as a stage of its own: see `each_copy`.

    Raises:
        PlanError: There is no such schedule for as many stages and microbatches, or it does what
            no training step does here: forwards only, recomputation, or a copy of a stage with one
            microbatch or none.
    """
    n_stages, microbatches = len(plan.stages), plan.microbatches
    is_name = plan.schedule.split() == [plan.schedule]
    try:
        if is_name:
            n_copies = pipesched.schedule_entry(plan.schedule).copies_of_stages
            schedule = pipesched.make(plan.schedule, n_stages // n_copies, microbatches)
        else:
            schedule = Schedule.parse(plan.schedule)
        pipesched.check(schedule)
    except pipesched.UnknownScheduleError as error:
        raise PlanError(
            "a plan whose schedule has a name runs where that is known; this process knows "
            f"{', '.join(names_that_run())}, and the plan has {plan.schedule!r}: import what "
            "registers it (pipesched.register_schedule)"
        ) from error
    except pipesched.PipeschedError as error:
        raise PlanError(
            "a plan's schedule is one of pipesched's names or texts, for its stages and "
            f"microbatches; {plan.schedule.split()[:1]} for {n_stages} stages and {microbatches} "
            f"microbatches: {error}"
        ) from error
    found = schedule.n_stages * len(schedule.placement.routes)
    if (found, schedule.n_microbatches) != (n_stages, microbatches):
        raise PlanError(
            "a plan's schedule is of its stages, all copies counted, and microbatches; got "
            f"{found} stages and {schedule.n_microbatches} microbatches for {n_stages} and "
            f"{microbatches}"
        )
    if least := lonely(schedule):
        raise PlanError(least)
    if _recomputes(schedule):
        raise PlanError(
            "what a stage computes again is in its program, where the planner sees its time and "
            f"memory; {schedule.name} recomputes by the schedule: use jax.checkpoint in the step, "
            f"and the schedule without it, or one of {', '.join(names_that_run())}"
        )
    if not schedule.backward:
        raise PlanError(
            f"a schedule that trains runs forwards and backwards; {schedule.name} has no "
            f"backwards: take one of {', '.join(names_that_run())}"
        )
    return schedule


def lonely(schedule: Schedule) -> str | None:
    """What is wrong where a route has fewer than two microbatches; None if all have more."""
    route_of, n_routes = schedule.placement.route_of, len(schedule.placement.routes)
    if n_routes == 1 or min(map(route_of.count, range(n_routes))) > 1:
        return None
    return (
        f"each copy of a stage runs two microbatches or more; {schedule.name} has {n_routes} "
        f"copies and {schedule.n_microbatches} microbatches: take {2 * n_routes} or more"
    )


def each_copy(schedule: Schedule) -> Schedule:
    """The schedule with every copy of a stage as a stage of its own, as a plan has them.

    Copies of stage s are stages s, s + S, s + 2 S, ... of S stages. Each has a part of the
    microbatches only, so that pipesched, where all pass through all stages, would refuse it.
    """
    placement = schedule.placement
    if len(placement.routes) == 1:
        return schedule
    ranks = tuple(
        tuple(
            replace(action, stage=copy_at(schedule, action.stage, action.microbatch))
            for action in actions
            if action.edge is None
        )
        for actions in schedule.ranks
    )
    route = tuple(rank for route in placement.routes for rank in route)
    return replace(
        schedule,
        n_stages=len(route),
        ranks=ranks,
        placement=Placement((route,)),
        edges=(),
    )


def first_microbatches(schedule: Schedule, n: int) -> Schedule:
    """The schedule of a smaller batch: the same order, of the first `n` microbatches alone.

    Args:
        schedule: Of one route: other microbatches would be missing on one of several.
        n: Not more than it has.
    """
    ranks = tuple(
        tuple(a for a in actions if a.microbatch is None or a.microbatch < n)
        for actions in schedule.ranks
    )
    return replace(schedule, n_microbatches=n, ranks=ranks)


def copy_at(schedule: Schedule, stage: int, microbatch: int | None) -> int:
    """The stage of a plan that runs a microbatch of a stage of its schedule; None: the first."""
    route_of = schedule.placement.route_of
    if microbatch is None or not route_of:
        return stage
    return stage + schedule.n_stages * route_of[microbatch]


def microbatches_at(schedule: Schedule, stage: int) -> int:
    """How many microbatches a stage of a plan runs."""
    route_of = schedule.placement.route_of
    return route_of.count(stage // schedule.n_stages) if route_of else schedule.n_microbatches


def split_stages(schedule: Schedule) -> frozenset[int]:
    """The stages whose backward has two parts, input gradient and weight gradient."""
    return frozenset(
        action.stage
        for actions in schedule.ranks
        for action in actions
        if action.kind is Kind.WEIGHT_GRADIENT
    )


def most_held(schedule: Schedule) -> tuple[list[int], list[int]]:
    """Microbatches that each stage holds at most, and those between the parts of their backward.

    Copies are stages of their own, as in a plan. A microbatch is held from its forward until its
    backward, or its weight gradient, is done.
    """
    schedule = each_copy(schedule)
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

    Args:
        schedule: With every copy of a stage as a stage of its own.
        edge: Between its stages.
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


def _plain() -> tuple[str, ...]:
    found = {}
    for name in pipesched.NAMES:
        example = pipesched.schedule_entry(name).example
        kinds = {action.kind for actions in example.ranks for action in actions}
        is_linear = example.placement == Placement.linear(example.n_stages)
        if is_linear and kinds == {Kind.FORWARD, Kind.BACKWARD}:
            found[name] = sum(most_held(example)[0])
    return tuple(sorted(found, key=found.__getitem__))


PLAIN = _plain()
"""Those of pipesched's own of one stage a rank and whole backwards, which a plan is chosen among if
none is asked for; the one that holds the fewest microbatches first. What others register is taken
where it is asked for: a plan does not depend on what else a process knows."""
