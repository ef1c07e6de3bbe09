"""Solving with fewer choices first: repeated layers tied, a coarse graph, and then polished.

Both are problems whose choices are choices of the whole, so what comes out is an ordinary
`Solution` of the whole problem: it costs what is said and keeps the limit. It may not be the best.
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
    """Find a good choice of a graph's problem from one of far fewer choices.

    Args:
        graph: Verified.
        problem: Of sharding it.
        operator_nodes: The node of each operator.
        tie: Whether repeated layers take the same strategies; see `tied`.
        level: "O2" for a coarse graph (of the tied layers, if they are); see `coarsen`. `None`
            is Rhino's O3, every operator.
        polish: Whether to go on with the whole problem from there. If nothing is feasible where
            choices are made together, the whole problem is solved in any case.
        method: As of `solve`, like all that follow; each solve has the whole budget.
        time_s: When to stop.
        steps: A budget that makes the answer the same on every machine.
        gap: As of `solve`.
        seed: Of random numbers.
        progress: Called with each improvement of the whole problem's objective or bound.

    Returns:
        A choice for the whole problem. Without polish its bound is the sum of what nodes and edges
        cost at least, one by one.

    Raises:
        InfeasibleError: no feasible choice was found.
        ProblemError: there is no such level, or as `solve`.
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
    # to groups, memory counts at few times only: what is equal to them need not be as lean
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
    """The choice of the coarse graph, coarsened again around it as long as that gains."""
    merged, nodes = grouped(problem, groups), [groups.of[node] for node in operator_nodes]
    best: list[int] | None = None
    cost, around = math.inf, None
    while True:
        segments = groups.then(coarse(graph, merged, nodes, around))
        choice = solve_grouped(problem, segments, solve)
        gained = evaluate(problem, choice).cost
        # a real gain, not rounding
        if best is not None and gained >= cost - CLOSED * abs(cost):
            return best
        best, cost = choice, gained
        around = [0] * groups.n_groups
        for group, strategy in zip(groups.of, choice, strict=True):
            around[group] = strategy
