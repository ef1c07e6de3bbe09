"""The best schedule of a few actions, by trying all. Shares no code with `pipesched.search`."""

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
    """The least makespan of all schedules like `empty`, infinite if none keeps within the memory.

    Tries every order of every rank in which each microbatch's actions come in the order of its way,
    microbatches in any order. There are binomial(4, 2) ** n of them for n ranks of one stage, two
    microbatches and whole backwards, so keep it small.
    """
    n_stages, best_s = empty.n_stages, inf
    backward = [Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT] if split else [Kind.BACKWARD]
    way = [(Kind.FORWARD, s) for s in range(n_stages)]
    way += [(backward[0], s) for s in reversed(range(n_stages))]
    rank_of = empty.placement.rank
    choices = []
    for rank in range(len(empty.ranks)):
        ways = []
        for m in range(empty.n_microbatches):
            ways.append([Action(kind, s, m) for kind, s in way if rank_of(s, m) == rank])
            if split:
                late = [Action(backward[1], s, m) for s in range(n_stages) if rank_of(s, m) == rank]
                ways += [[action] for action in late]
        choices.append(list(_merged(ways)))
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
    ways: list[list[Action]], before: tuple[Action, ...] = ()
) -> Iterator[tuple[Action, ...]]:
    """Every way to merge the lists in which a weight gradient follows its input gradient."""
    if not any(ways):
        yield before
    for i, way in enumerate(ways):
        if way and (
            way[0].kind is not Kind.WEIGHT_GRADIENT
            or replace(way[0], kind=Kind.INPUT_GRADIENT) in before
        ):
            yield from _merged([*ways[:i], way[1:], *ways[i + 1 :]], (*before, way[0]))
