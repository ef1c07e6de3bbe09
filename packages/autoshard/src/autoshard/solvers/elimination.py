"""The method `elimination`: exact dynamic programming, for problems that are narrow enough.

The core reduces the problem, then minimises over one node after the other, narrowest first: the
tables that mention the node become one table over its neighbours (bucket elimination, Dechter
1999). The result is the cheapest choice regardless of the memory limit, so it is the answer if it
keeps the limit.

If it does not, the method branches: at the time when the cheapest choice uses most, some live node
uses more than it has to. Either this node takes a strategy that uses less, or one that uses at
least as much. Both halves are problems of the same kind, whose optimum is a lower bound for all of
their choices (Land and Doig, "An Automatic Method of Solving Discrete Programming Problems",
Econometrica 28(3), 1960). The half that uses less is solved first, so that a choice that fits is
found soon.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autoshard.base._native import core
from autoshard.errors import WidthError
from autoshard.problem._arrays import instance_of
from autoshard.problem.evaluate import evaluate
from autoshard.problem.pin import Kept, restricted
from autoshard.problem.problem import Problem
from autoshard.problem.tie_break import leanest_of_equals
from autoshard.solvers.session import SolverSession

ENTRIES = 1e7
"""The most entries of a table in an exact elimination: 80 MB."""


def elimination(problem: Problem, run: SolverSession) -> None:
    """Find the cheapest choice that keeps the limit; a step is the elimination of one problem.

    One step is enough without a limit, or if the cheapest choice of all keeps it.

    Raises:
        WidthError: a table would have more than `ENTRIES` entries, or all tables together more than
            512 MB.
    """
    waiting: list[tuple[Kept, tuple[int, ...] | None]] = [({}, None)]
    while waiting:
        kept, choice = waiting.pop()
        if kept and not _may_fit(problem, kept):
            continue
        if choice is None:
            if not run.step():
                return
            choice = _cheapest(problem, kept, run)
            if choice is None:
                continue
            run.offer(choice, by="elimination")
        judged = evaluate(problem, choice)
        if not kept:
            run.raise_bound(judged.cost)
        if judged.feasible or judged.cost >= run.objective or judged.peak_time is None:
            continue
        waiting += _halves(problem, kept, choice, judged.peak_time)
    run.raise_bound(run.objective)


def _cheapest(problem: Problem, kept: Kept, run: SolverSession) -> tuple[int, ...] | None:
    """The cheapest choice of these strategies, whatever it uses; `None` if all are forbidden."""
    part = restricted(problem, kept, None)
    instance = instance_of(part)
    if not instance.possible:
        return None
    labels = _labels(instance)
    if labels is None:
        raise WidthError(_digits(instance, run), ENTRIES)
    choice = leanest_of_equals(part, instance.expand(labels).tolist())
    return tuple(int(kept[node][s]) if node in kept else s for node, s in enumerate(choice))


def _may_fit(problem: Problem, kept: Kept) -> bool:
    """Whether the limit is kept if every node takes the strategy that uses least, at any cost."""
    least = []
    for node, usage in enumerate(problem.usages):
        of = kept.get(node)
        least.append(int(usage.argmin() if of is None else of[usage[of].argmin()]))
    nothing = tuple(np.zeros_like(cost) for cost in problem.node_costs)
    alone = replace(problem, node_costs=nothing, edges=(), edge_costs=())
    return evaluate(alone, least).feasible


def _halves(
    problem: Problem, kept: Kept, choice: tuple[int, ...], time: int
) -> list[tuple[Kept, tuple[int, ...] | None]]:
    """Two parts that together have all choices that can keep the limit; the leaner part is last.

    Args:
        problem: The problem whose limit is broken.
        kept: The strategies that are left.
        choice: The cheapest choice of these, which is also the cheapest of the first part.
        time: The time at which the choice breaks the limit.

    Returns:
        For each part the strategies that are left, and its cheapest choice if that is known. No
        part if no choice keeps the limit at that time.
    """

    def more_than_least(node: int) -> float:
        usage = problem.usages[node][_left(problem, kept, node)]
        return float(problem.usages[node][choice[node]] - usage.min())

    alive = [n for n, (first, last) in enumerate(problem.intervals) if first <= time < last]
    node = max(alive, key=more_than_least)
    if more_than_least(node) <= 0.0:
        return []
    left = _left(problem, kept, node)
    is_leaner = problem.usages[node][left] < problem.usages[node][choice[node]]
    return [({**kept, node: left[~is_leaner]}, choice), ({**kept, node: left[is_leaner]}, None)]


def _left(problem: Problem, kept: Kept, node: int) -> NDArray[np.intp]:
    """The strategies of a node that are left."""
    return kept[node] if node in kept else np.arange(len(problem.usages[node]))


def eliminate(problem: Problem, instance: core.Instance, run: SolverSession) -> bool:
    """Offer the cheapest choice of a reduced problem; returns False if it is too wide for that."""
    labels = _labels(instance)
    if labels is None:
        return False
    choice = leanest_of_equals(problem, instance.expand(labels).tolist())
    run.raise_bound(evaluate(problem, choice).cost)
    run.offer(choice, by="elimination")
    return True


def _labels(instance: core.Instance) -> NDArray[np.int32] | None:
    """The cheapest labels of a reduced problem; `None` if it is too wide."""
    return instance.eliminate(ENTRIES) if instance.n_nodes else np.zeros(0, dtype=np.int32)


def _digits(instance: core.Instance, run: SolverSession) -> float:
    """Logarithm to base 10 of the entries of the largest table; a lower bound if time runs out."""
    node_costs, edges, _, _ = instance.parts()
    size = [math.log10(len(cost)) for cost in node_costs]
    around: list[set[int]] = [set() for _ in size]
    for i, j, _ in edges:
        around[i].add(j)
        around[j].add(i)
    table = [size[node] + sum(size[other] for other in around[node]) for node in range(len(size))]
    heap, widest = [(digits, node) for node, digits in enumerate(table)], 0.0
    heapq.heapify(heap)
    while heap and run.time_left() > 0.0:
        digits, node = heapq.heappop(heap)
        if digits != table[node]:  # the entry is outdated
            continue
        widest, table[node] = max(widest, digits), math.nan
        for other in around[node]:
            around[other] |= around[node]
            around[other] -= {node, other}
            table[other] = size[other] + sum(size[next_one] for next_one in around[other])
            heapq.heappush(heap, (table[other], other))
    return widest
