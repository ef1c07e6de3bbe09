"""The method `exhaustive`: every choice there is (AutoDDL 4.6, the baseline of figure 8)."""

from __future__ import annotations

import math

from autoshard.problem.problem import Problem
from autoshard.solvers.local import Neighbours
from autoshard.solvers.session import SolverSession


def exhaustive(problem: Problem, run: SolverSession) -> None:
    """Try all choices, the strategies of the last node the fastest; a step is a choice.

    Departure: what has a forbidden strategy or pair among its first nodes is passed over whole.
    """
    neighbours = Neighbours(problem)
    last = problem.n_nodes - 1
    choice = [-1] * problem.n_nodes
    costs = [neighbours.costs(0, choice, before=0).tolist()] + [[]] * last
    paid = [0.0] * problem.n_nodes
    """By the nodes before each."""
    node = 0
    while node >= 0:
        choice[node] += 1
        if choice[node] == len(costs[node]):
            choice[node] = -1
            node -= 1
            continue
        cost = paid[node] + costs[node][choice[node]]
        if math.isinf(cost):
            continue
        if node < last:
            node += 1
            paid[node] = cost
            costs[node] = neighbours.costs(node, choice, before=node).tolist()
            continue
        if not run.step():
            return
        if cost < run.objective:
            run.offer(choice)
    run.raise_bound(run.objective)
