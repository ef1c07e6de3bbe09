"""The pipeline schedule of a plan as a `pipesched.Schedule`, which decides what runs when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pipesched
from pipesched import Edge, Kind, Placement, Schedule

from frontends.errors import PlanError
from frontends.plan.plan_fields import PlanFields, Stage, Transfer
from frontends.step.step import FORWARD

_KINDS = {"forward": Kind.FORWARD, "backward": Kind.BACKWARD}


def runs(schedule: Schedule) -> bool:
    """Whether the schedule can train a step; one with recompute actions cannot run here."""
    return schedule.backward and not _recomputes(schedule)


def names_that_run() -> tuple[str, ...]:
    """Names of all schedules that can run; registered ones are assumed to.

    Raises:
        PlanError: Two distributions register schedules of the same name.
    """
    try:
        names = pipesched.schedule_names()
    except pipesched.PipeschedError as error:
        raise PlanError(str(error)) from error
    ours = {n: runs(pipesched.schedule_entry(n).example) for n in pipesched.NAMES}
    return tuple(name for name in names if ours.get(name, True))


def check_name(name: str) -> None:
    """Raise `PlanError` unless a schedule of this name exists and can run."""
    try:
        if pipesched.is_schedule(name) and runs(pipesched.schedule_entry(name).example):
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
    """The schedule of a plan, from its name or its text.

    If the schedule replicates stages, each replica is a stage of the plan: see `each_copy`.

    Raises:
        PlanError: The schedule does not exist for this number of stages and microbatches, or
            cannot run here: it has forwards only, or recompute actions, or a replica of a stage
            with fewer than two microbatches.
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
            "a process must know the name of a plan's schedule; this one knows "
            f"{', '.join(names_that_run())}, and the plan has {plan.schedule!r}: import the module "
            "that registers it (pipesched.register_schedule)"
        ) from error
    except pipesched.PipeschedError as error:
        raise PlanError(
            "a plan's schedule is one of pipesched's names or texts, for its stages and "
            f"microbatches; {plan.schedule.split()[:1]} for {n_stages} stages and {microbatches} "
            f"microbatches: {error}"
        ) from error
    n_copied = schedule.n_stages * len(schedule.placement.routes)
    if (n_copied, schedule.n_microbatches) != (n_stages, microbatches):
        raise PlanError(
            "a plan's schedule has as many stages, with all copies, and microbatches as the plan; "
            f"got {n_copied} stages and {schedule.n_microbatches} microbatches for {n_stages} and "
            f"{microbatches}"
        )
    if least := lonely(schedule):
        raise PlanError(least)
    if _recomputes(schedule):
        raise PlanError(
            "recomputation belongs into the program of a stage, where the planner sees its time "
            f"and memory; {schedule.name} has recompute actions: use jax.checkpoint in the step, "
            f"and the schedule without them, or one of {', '.join(names_that_run())}"
        )
    if not schedule.backward:
        raise PlanError(
            f"a schedule that trains runs forwards and backwards; {schedule.name} has no "
            f"backwards: take one of {', '.join(names_that_run())}"
        )
    return schedule


def lonely(schedule: Schedule) -> str | None:
    """A message if a route of the schedule has fewer than two microbatches; None otherwise."""
    route_of, n_routes = schedule.placement.route_of, len(schedule.placement.routes)
    if n_routes == 1 or min(map(route_of.count, range(n_routes))) > 1:
        return None
    return (
        f"each copy of a stage runs two microbatches or more; {schedule.name} has {n_routes} "
        f"copies and {schedule.n_microbatches} microbatches: take {2 * n_routes} or more"
    )


def each_copy(schedule: Schedule) -> Schedule:
    """The schedule with every replica of a stage as a stage of its own, as plans have them.

    The replicas of stage s are stages s, s + S, s + 2 S, ... of S stages. Each runs only part of
    the microbatches, so `pipesched.check`, for which every microbatch runs on every stage, would
    refuse this schedule.
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
    """The schedule of a smaller batch: the first `n` microbatches, in the same order.

    Args:
        schedule: A schedule of one route; one of several would lose some of its microbatches.
        n: At most the number of microbatches that the schedule has.
    """
    ranks = tuple(
        tuple(a for a in actions if a.microbatch is None or a.microbatch < n)
        for actions in schedule.ranks
    )
    return replace(schedule, n_microbatches=n, ranks=ranks)


def copy_at(schedule: Schedule, stage: int, microbatch: int | None) -> int:
    """The stage of a plan, a replica of `stage` in its schedule, that runs a microbatch.

    The first replica if `microbatch` is None.
    """
    route_of = schedule.placement.route_of
    if microbatch is None or not route_of:
        return stage
    return stage + schedule.n_stages * route_of[microbatch]


def microbatches_at(schedule: Schedule, stage: int) -> int:
    """How many microbatches a stage of a plan runs."""
    route_of = schedule.placement.route_of
    return route_of.count(stage // schedule.n_stages) if route_of else schedule.n_microbatches


def split_stages(schedule: Schedule) -> frozenset[int]:
    """The stages whose backward is split into input gradient and weight gradient."""
    return frozenset(
        action.stage
        for actions in schedule.ranks
        for action in actions
        if action.kind is Kind.WEIGHT_GRADIENT
    )


def most_held(schedule: Schedule) -> tuple[list[int], list[int]]:
    """The maximum number of microbatches that each stage holds.

    Replicas are stages of their own, as in a plan. A microbatch is held from its forward until its
    backward, or its weight gradient, is done.

    Returns:
        By stage, the maximum of those held, and of those between the two parts of their backward.
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
                if stage in split:  # this backward runs both parts, one after the other
                    most_between[stage] = max(most_between[stage], between[stage] + 1)
            case Kind.INPUT_GRADIENT:
                between[stage] += 1
            case Kind.WEIGHT_GRADIENT:
                held[stage] -= 1
                between[stage] -= 1
        most_held[stage] = max(most_held[stage], held[stage])
        most_between[stage] = max(most_between[stage], between[stage])
    return most_held, most_between


def edge_of(transfer: Transfer, stages: Sequence[Stage]) -> Edge | None:
    """The edge of a pipeline that a transfer of microbatches belongs to; None for other transfers.

    The forward waits for a value that it reads, even if the backward reads it, too. In a plan
    without shardings, which do not say what reads a value, the backward reads what comes back.

    Args:
        transfer: The transfer.
        stages: All stages of the plan; replicas are stages of their own, as in the edge.

    Raises:
        PlanError: There is no such stage, or it has no such value.
    """
    if transfer.phase not in _KINDS:
        return None
    to = transfer.destination
    sharding = stages[to].sharding if to < len(stages) else None
    if to >= len(stages) or (sharding and transfer.value not in sharding.graph.readers):
        raise PlanError(
            f"stages read what they are sent; stage {to} does not read {transfer.value}"
        )
    if sharding is None:
        reads_forward = transfer.phase == "forward" and to > transfer.source
    else:
        readers = sharding.graph.readers[transfer.value]
        reads_forward = any(sharding.graph.operators[i].phase == FORWARD for i in readers[:1])
    read = Kind.FORWARD if reads_forward else Kind.BACKWARD
    return Edge((_KINDS[transfer.phase], transfer.source), (read, to))


def most_waiting(schedule: Schedule, edge: Edge) -> int:
    """The maximum number of microbatches whose value of an edge waits to be read.

    Between stages of one rank, a value waits from when it is computed until it is read. A value
    from another rank never waits, as it is received when it is read.

    Args:
        schedule: A schedule with every replica of a stage as a stage of its own.
        edge: An edge between two of its stages.
    """
    (route,) = schedule.placement.routes
    (produced, source), (read, destination) = edge.src, edge.dst
    if route[source] != route[destination]:
        return 0
    waiting = most = 0
    for action in schedule.ranks[route[source]]:
        kind = Kind.BACKWARD if action.kind is Kind.INPUT_GRADIENT else action.kind
        waiting += ((kind, action.stage) == (produced, source)) - (
            (kind, action.stage) == (read, destination)
        )
        most = max(most, waiting)
    return most


def _plain() -> tuple[str, ...]:
    held = {}
    for name in pipesched.NAMES:
        example = pipesched.schedule_entry(name).example
        kinds = {action.kind for actions in example.ranks for action in actions}
        is_linear = example.placement == Placement.linear(example.n_stages)
        if is_linear and kinds == {Kind.FORWARD, Kind.BACKWARD}:
            held[name] = sum(most_held(example)[0])
    return tuple(sorted(held, key=held.__getitem__))


PLAIN = _plain()
"""The schedules that a plan is chosen from if the user asks for none: pipesched's own with one
stage a rank and whole backwards. The one that holds the fewest microbatches comes first. Registered
schedules run only if they are asked for, so that plans do not depend on what is registered."""
