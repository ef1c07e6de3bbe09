"""The best schedule of a few actions by brute force; shares no code with `pipesched.search`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import inf

from pipesched.base.action import Action
from pipesched.base.kind import Kind
from pipesched.judge.broken import ScheduleError
from pipesched.judge.check import check
from pipesched.schedule.costs import Costs
from pipesched.schedule.schedule import Schedule
from pipesched.simulation.simulate import simulate


def optimum_s(
    empty: Schedule, costs: Costs, memory_bytes: float | Sequence[float], *, split: bool
) -> float:
    """The smallest makespan of all schedules like `empty`; infinite if none keeps within memory.

    It tries every order of every rank in which the actions of each microbatch are in the order of
    its path; microbatches are in any order. There are binomial(4, 2) ** n of them for n ranks with
    one stage, two microbatches and whole backwards, so the problem has to be small.
    """
    n_stages, best_s = empty.n_stages, inf
    backward = [Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT] if split else [Kind.BACKWARD]
    path = [(Kind.FORWARD, s) for s in range(n_stages)]
    path += [(backward[0], s) for s in reversed(range(n_stages))]
    rank_of = empty.placement.rank
    choices = []
    for rank in range(len(empty.ranks)):
        parts = []
        for m in range(empty.n_microbatches):
            parts.append([Action(kind, s, m) for kind, s in path if rank_of(s, m) == rank])
            if split:
                late = [Action(backward[1], s, m) for s in range(n_stages) if rank_of(s, m) == rank]
                parts += [[action] for action in late]
        choices.append(list(_merged(parts)))
    for ranks in product(*choices):
        schedule = replace(empty, ranks=ranks)
        try:
            check(
                schedule,
                memory_bytes=memory_bytes,
                activation_bytes=costs.sizes("activation_bytes", n_stages),
                weight_gradient_bytes=costs.sizes("weight_gradient_bytes", n_stages),
            )
        except ScheduleError:
            continue
        best_s = min(best_s, simulate(schedule, costs).makespan_s)
    return best_s


def _merged(
    parts: list[list[Action]], before: tuple[Action, ...] = ()
) -> Iterator[tuple[Action, ...]]:
    """All ways to merge the lists such that each weight gradient follows its input gradient."""
    if not any(parts):
        yield before
    for i, part in enumerate(parts):
        if part and (
            part[0].kind is not Kind.WEIGHT_GRADIENT
            or replace(part[0], kind=Kind.INPUT_GRADIENT) in before
        ):
            yield from _merged([*parts[:i], part[1:], *parts[i + 1 :]], (*before, part[0]))
