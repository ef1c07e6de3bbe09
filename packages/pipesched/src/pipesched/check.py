"""Judge a schedule, whoever made it. Shares no code with the generators.

One microbatch goes through F0, F1, ..., F(S-1), B(S-1), ..., B1, B0, each needing the one before.
A rank runs its list in order and waits where it must. The rules, in the order they are checked:

- completeness: every stage runs forward and backward once on every microbatch, and nothing else.
- placement: all actions of a stage are on one rank.
- dependency: no rank lists an action before another of its own that the action needs.
- deadlock: no ranks wait for each other in a circle.

Every `Edge` points forwards in the order above, so a schedule that passes can be run with any
edges (`pipesched.lower`), not only those of the chain.
"""

from __future__ import annotations

from pipesched.action import Action
from pipesched.errors import ScheduleError
from pipesched.kind import Kind
from pipesched.schedule import Schedule


def check(schedule: Schedule) -> None:
    """Accept a schedule that runs every action once, in an order that never gets stuck.

    Raises:
        ScheduleError: The schedule breaks a rule; names the rule, rank, position and action.
    """
    _check_completeness(schedule)
    _check_placement(schedule)
    _check_dependency(schedule)
    _check_deadlock(schedule)


def _check_completeness(schedule: Schedule) -> None:
    wanted = {
        Action(kind, stage, microbatch): None
        for kind in (Kind.FORWARD, Kind.BACKWARD)
        for stage in range(schedule.n_stages)
        for microbatch in range(schedule.n_microbatches)
    }
    found: dict[Action, tuple[int, int]] = {}
    for rank, actions in enumerate(schedule.ranks):
        for position, action in enumerate(actions):
            if action not in wanted:
                raise ScheduleError(
                    f"a schedule of {schedule.n_stages} stages and {schedule.n_microbatches} "
                    f"microbatches has no {action}; got it at rank {rank}, position {position}",
                    rule="completeness",
                    rank=rank,
                    position=position,
                    action=action,
                )
            if action in found:
                first_rank, first_position = found[action]
                raise ScheduleError(
                    f"an action runs once; got {action} at rank {first_rank}, position "
                    f"{first_position} and at rank {rank}, position {position}",
                    rule="completeness",
                    rank=rank,
                    position=position,
                    action=action,
                )
            found[action] = (rank, position)
    for action in wanted:
        if action not in found:
            raise ScheduleError(
                f"every stage runs forward and backward on every microbatch; got no {action}",
                rule="completeness",
                rank=None,
                position=None,
                action=action,
            )


def _check_placement(schedule: Schedule) -> None:
    first: dict[int, tuple[int, Action]] = {}
    for rank, actions in enumerate(schedule.ranks):
        for position, action in enumerate(actions):
            home, example = first.setdefault(action.stage, (rank, action))
            if rank != home:
                raise ScheduleError(
                    f"a stage is on one rank; got stage {action.stage} on rank {home} ({example}) "
                    f"and on rank {rank} ({action}, position {position})",
                    rule="placement",
                    rank=rank,
                    position=position,
                    action=action,
                )


def _check_dependency(schedule: Schedule) -> None:
    for rank, actions in enumerate(schedule.ranks):
        latest: dict[int | None, tuple[int, Action]] = {}  # by microbatch: the furthest it has come
        for position, action in enumerate(actions):
            earlier_position, earlier = latest.get(action.microbatch, (position, action))
            if _step(earlier, schedule.n_stages) > _step(action, schedule.n_stages):
                raise ScheduleError(
                    f"an action comes after those it needs; got {earlier} at rank {rank}, position "
                    f"{earlier_position}, before {action} at position {position}",
                    rule="dependency",
                    rank=rank,
                    position=earlier_position,
                    action=earlier,
                )
            latest[action.microbatch] = (position, action)


def _check_deadlock(schedule: Schedule) -> None:
    done: set[Action] = set()
    heads = [0] * len(schedule.ranks)
    advanced = True
    while advanced:
        advanced = False
        for rank, actions in enumerate(schedule.ranks):
            while heads[rank] < len(actions):
                needed = _needed(actions[heads[rank]], schedule.n_stages)
                if needed is not None and needed not in done:
                    break
                done.add(actions[heads[rank]])
                heads[rank] += 1
                advanced = True
    for rank, actions in enumerate(schedule.ranks):
        if heads[rank] < len(actions):
            action = actions[heads[rank]]
            raise ScheduleError(
                f"the ranks wait for each other; got rank {rank} stuck at position {heads[rank]}, "
                f"where {action} waits for {_needed(action, schedule.n_stages)}",
                rule="deadlock",
                rank=rank,
                position=heads[rank],
                action=action,
            )


def _step(action: Action, n_stages: int) -> int:
    """Where the action stands on its microbatch's way through the pipeline."""
    return action.stage if action.kind is Kind.FORWARD else 2 * n_stages - 1 - action.stage


def _needed(action: Action, n_stages: int) -> Action | None:
    """The action one step before."""
    if action.kind is Kind.FORWARD:
        if action.stage == 0:
            return None
        return Action(Kind.FORWARD, action.stage - 1, action.microbatch)
    if action.stage == n_stages - 1:
        return Action(Kind.FORWARD, action.stage, action.microbatch)
    return Action(Kind.BACKWARD, action.stage + 1, action.microbatch)
