"""Breaks ties among equally cheap choices in favour of one that uses less memory."""

from __future__ import annotations

import numpy as np

from autoshard.base.arrays import Array
from autoshard.problem.problem import Problem


def leanest_of_equals(problem: Problem, choice: list[int]) -> list[int]:
    """The choice in which nodes take, among equally cheap strategies, the one that uses least.

    One pass, last node first. Usages count here even if a node's interval is empty.
    """
    choice = list(choice)
    least = {id(u): u.min() for u in {id(u): u for u in problem.usages}.values()}
    pairs = zip(problem.usages, choice, strict=True)
    around: dict[int, list[tuple[int, Array]]] = {
        node: [] for node, (usage, s) in enumerate(pairs) if usage.item(s) > least[id(usage)]
    }
    for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True):
        if i in around:
            around[i].append((j, table))
        if j in around:
            around[j].append((i, table.T))
    for node in reversed(around):
        cost = problem.node_costs[node].copy()
        for other, table in around[node]:
            cost += table[:, choice[other]]
        usage = problem.usages[node]
        equal = cost <= cost[choice[node]]
        if usage[equal].min() < usage[choice[node]]:
            choice[node] = int(np.where(equal, usage, np.inf).argmin())
    return choice
