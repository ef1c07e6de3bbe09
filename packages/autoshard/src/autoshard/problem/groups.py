"""Problems in which groups of nodes choose together: what tied layers and coarse graphs are.

Each node belongs to a group, and each choice of a group fixes its members' strategies. The grouped
problem's costs are sums over members: of node costs, of edges inside a group, and of the edges
between two groups. So a choice of the groups costs exactly what its expansion costs.

Memory is exact at chosen times only: a group uses at a time what its members alive then use, and a
node of a `Problem` has one usage and one interval. So a group is a node for each stretch of times
at which it uses the same, and edges that forbid these to differ. Which times matter is found by
solving: where an expansion breaks the limit, the time at which it does is one more (a cutting
plane).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from autoshard.base.arrays import Array
from autoshard.problem.evaluate import evaluate
from autoshard.problem.problem import Problem
from autoshard.problem.solution import Solution


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Which group each node of a problem belongs to, and what it does for each of its choices."""

    of: tuple[int, ...]
    """Per node the number of its group, from 0."""
    strategies: tuple[NDArray[np.intp], ...]
    """Per node, shape (choices of its group,): its strategy for each of them."""

    @property
    def n_groups(self) -> int:
        """How many groups there are."""
        return max(self.of, default=-1) + 1

    def expand(self, choice: Sequence[int]) -> list[int]:
        """The choice of every node that follows from one of every group."""
        return [
            int(strategies[choice[group]])
            for group, strategies in zip(self.of, self.strategies, strict=True)
        ]

    def then(self, groups: Groups) -> Groups:
        """Groups of these groups, as one."""
        return Groups(
            tuple(groups.of[group] for group in self.of),
            tuple(
                strategies[groups.strategies[group]]
                for group, strategies in zip(self.of, self.strategies, strict=True)
            ),
        )


def in_order(problem: Problem) -> tuple[NDArray[np.intp], ...]:
    """Of every node all strategies in order; one array for all that have as many."""
    known: dict[int, NDArray[np.intp]] = {}
    return tuple(known.setdefault(len(c), np.arange(len(c))) for c in problem.node_costs)


def each_alone(problem: Problem) -> Groups:
    """Every node a group of its own."""
    return Groups(tuple(range(problem.n_nodes)), in_order(problem))


def grouped(problem: Problem, groups: Groups, times: Sequence[int] = ()) -> Problem:
    """The problem of choosing for groups; its first `groups.n_groups` nodes are the groups.

    Args:
        problem: Of the nodes.
        groups: Of its nodes.
        times: At which usages count, in order.
    """
    n = groups.n_groups
    costs: list[Array] = [np.zeros(0)] * n
    for node, (group, member) in enumerate(zip(groups.of, groups.strategies, strict=True)):
        cost = problem.node_costs[node][member]
        costs[group] = costs[group] + cost if len(costs[group]) else cost
    alike: dict[tuple[int, int], dict[tuple[int, ...], list[int]]] = {}
    for edge, ((i, j), table) in enumerate(zip(problem.edges, problem.edge_costs, strict=True)):
        a, b = groups.of[i], groups.of[j]
        mine, other = groups.strategies[i], groups.strategies[j]
        if a == b:
            costs[a] = costs[a] + table[mine, other]
            continue
        # repeated layers have the same arrays, which are added up by counting
        like = (id(table), id(mine), id(other), int(a < b))
        alike.setdefault((min(a, b), max(a, b)), {}).setdefault(like, []).append(edge)
    tables: dict[tuple[int, int], Array] = {}
    known: dict[tuple[int, ...], Array] = {}
    for pair, counted in alike.items():
        parts = []
        for of, edges in counted.items():
            key = (*of, len(edges))
            if key not in known:
                table = _between(problem, groups, edges[0])
                known[key] = table if len(edges) == 1 else len(edges) * table
            parts.append(known[key])
        tables[pair] = reduce(np.add, parts)
    usages = [np.zeros(len(cost)) for cost in costs]
    intervals = [(0, 0)] * n
    for group, (first, *more) in _stretches(problem, groups, times).items():
        (usages[group], intervals[group]), same = first, _equal(len(costs[group]))
        for usage, interval in more:
            tables[group, len(costs)] = same
            costs.append(np.zeros(len(usage)))
            usages.append(usage)
            intervals.append(interval)
    return Problem(
        tuple(costs),
        tuple(tables),
        tuple(tables.values()),
        tuple(usages),
        tuple(intervals),
        problem.usage_limit,
    )


def _between(problem: Problem, groups: Groups, edge: int) -> Array:
    """The costs of an edge between two groups, with a row for each choice of the first one."""
    i, j = problem.edges[edge]
    table = problem.edge_costs[edge]
    for dim, node in enumerate((i, j)):
        strategies = groups.strategies[node]
        if not np.array_equal(strategies, np.arange(table.shape[dim])):
            table = table.take(strategies, axis=dim)
    return table if groups.of[i] < groups.of[j] else table.T


def _equal(n: int) -> Array:
    """An edge that allows equal strategies only."""
    table = np.full((n, n), math.inf)
    np.fill_diagonal(table, 0.0)
    return table


def _stretches(
    problem: Problem, groups: Groups, times: Sequence[int]
) -> dict[int, list[tuple[Array, tuple[int, int]]]]:
    """Per group that uses something at some of the times: its usages and when, as indices."""
    if not times:
        return {}
    used: dict[int, dict[int, Array]] = {}
    for node, (first, last) in enumerate(problem.intervals):
        usage = problem.usages[node][groups.strategies[node]]
        at = used.setdefault(groups.of[node], {})
        for index in range(*np.searchsorted(times, (first, last)).tolist()):
            at[index] = at[index] + usage if index in at else usage
    found: dict[int, list[tuple[Array, tuple[int, int]]]] = {}
    for group, at in sorted(used.items()):
        for index, usage in sorted(at.items()):
            stretches = found.setdefault(group, [])
            if stretches and stretches[-1][1][1] == index and (stretches[-1][0] == usage).all():
                stretches[-1] = (usage, (stretches[-1][1][0], index + 1))
            else:
                stretches.append((usage, (index, index + 1)))
    return found


def solve_grouped(
    problem: Problem, groups: Groups, solve: Callable[[Problem], Solution]
) -> list[int]:
    """The expansion of the best choice of the groups, within the memory limit at all times.

    Args:
        problem: Of the nodes.
        groups: Of its nodes.
        solve: Solves the problem of the groups.

    Raises:
        InfeasibleError: as `solve` does; then nothing in which the groups choose together fits.
    """
    times: list[int] = []
    while True:
        choice = groups.expand(solve(grouped(problem, groups, times)).choice)
        if problem.usage_limit is None:  # costs of groups are exact, and nothing else counts
            return choice
        judged = evaluate(problem, choice)
        if judged.feasible or judged.peak_time is None or judged.peak_time in times:
            return choice
        times = sorted([*times, judged.peak_time])
