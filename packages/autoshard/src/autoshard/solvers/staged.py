"""Solves a problem with fewer choices first (tied layers, a coarse graph), then maybe the whole.

Every choice of tied layers or of a coarse graph is a choice of the whole problem. So the result is
an ordinary `Solution` of the whole problem: its cost is exact and it keeps the limit. It may not be
the best one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, get_args

from autoshard.errors import InfeasibleError, ProblemError
from autoshard.graph.graph import Graph
from autoshard.problem.evaluate import evaluate
from autoshard.problem.groups import Groups, each_alone, grouped, solve_grouped
from autoshard.problem.problem import Problem
from autoshard.problem.solution import Incumbent, Solution
from autoshard.problem.tie_break import leanest_of_equals
from autoshard.problem.tied import tied
from autoshard.solvers.coarsen import coarse
from autoshard.solvers.session import CLOSED, SolverSession
from autoshard.solvers.solve import solve

Level = Literal["O2"]


def solve_quickly(
    graph: Graph,
    problem: Problem,
    operator_nodes: Sequence[int],
    *,
    tie: bool = False,
    level: Level | None = None,
    polish: bool = False,
    method: str = "auto",
    time_s: float = 60.0,
    steps: int | None = None,
    gap: float = 0.0,
    seed: int = 0,
    progress: Callable[[Incumbent], None] | None = None,
) -> Solution:
    """Find a good choice for the problem of a graph by solving a problem with far fewer choices.

    Args:
        graph: Verified.
        problem: The problem of sharding the graph.
        operator_nodes: The node of each operator.
        tie: Whether repeated layers take the same strategies; see `tied`.
        level: "O2" solves a coarse graph (of tied layers, if `tie`); see `coarsen`. `None` chooses
            for every operator, Rhino's O3.
        polish: Whether to go on with the whole problem, starting at the choice found. If the
            smaller problem has no feasible choice, the whole problem is solved in any case.
        method: As for `solve`, like all that follow; each solve has the whole budget.
        time_s: Stop after this many seconds.
        steps: Stop after this many steps, which makes the answer the same on every machine.
        gap: As for `solve`.
        seed: Seed of the random numbers.
        progress: Called with each improvement of the whole problem's objective or bound.

    Returns:
        A choice for the whole problem. Without `polish`, its bound is the sum of the smallest costs
        of all nodes and edges, each taken alone.

    Raises:
        InfeasibleError: no feasible choice was found.
        ProblemError: the level is unknown, or as for `solve`.
    """
    if level not in (None, *get_args(Level)):
        raise ProblemError(
            f"a coarse graph is one of {get_args(Level)}, or None for every operator; got {level!r}"
        )
    budget = partial(solve, method=method, time_s=time_s, steps=steps, gap=gap, seed=seed)
    run = SolverSession(problem, time_s=time_s, seed=seed, progress=progress)
    if tie:
        pairs = zip(operator_nodes, graph.repeats, strict=True)
        groups = tied(problem, {node: operator_nodes[other] for node, other in pairs})
    else:
        groups = each_alone(problem)
    try:
        if level == "O2":
            start = _by_coarse_graphs(graph, problem, groups, operator_nodes, budget)
        else:
            start = solve_grouped(problem, groups, budget)
    except InfeasibleError:
        return budget(problem, progress=progress)
    # memory counts at few times only for groups, so equally cheap strategies may use less
    start = leanest_of_equals(problem, start)
    if polish:
        return budget(problem, start=start, progress=progress)
    tables = problem.node_costs + problem.edge_costs
    least = {id(table): float(table.min()) for table in {id(t): t for t in tables}.values()}
    run.offer(start, by=" ".join(["tied"] * tie + [level or ""]).strip())
    run.raise_bound(sum(least[id(table)] for table in tables))  # repeated layers share tables
    return run.solution(method)


def _by_coarse_graphs(
    graph: Graph,
    problem: Problem,
    groups: Groups,
    operator_nodes: Sequence[int],
    solve: Callable[[Problem], Solution],
) -> list[int]:
    """The best choice of the coarse graph, which is coarsened again around it while that helps."""
    merged, nodes = grouped(problem, groups), [groups.of[node] for node in operator_nodes]
    best: list[int] | None = None
    cost, around = math.inf, None
    while True:
        segments = groups.then(coarse(graph, merged, nodes, around))
        choice = solve_grouped(problem, segments, solve)
        new_cost = evaluate(problem, choice).cost
        # the gain has to exceed rounding
        if best is not None and new_cost >= cost - CLOSED * abs(cost):
            return best
        best, cost = choice, new_cost
        around = [0] * groups.n_groups
        for group, strategy in zip(groups.of, choice, strict=True):
            around[group] = strategy
