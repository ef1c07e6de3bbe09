"""Problems in which groups of nodes choose together; tied layers and coarse graphs are such groups.

Each node belongs to a group, and each choice of a group fixes the strategies of its members. The
costs of the grouped problem are sums over members: of node costs, of edges inside a group, and of
edges between two groups. So a choice of the groups costs exactly what its expansion costs.

Memory is exact only at selected times. At each time, a group uses what its members alive then use,
but a node of a `Problem` has only one usage and one interval. So a group becomes one node for each
stretch of times over which its usage is the same, and edges force these nodes to the same choice.
The times are selected by solving: whenever an expansion breaks the limit, the time of its peak is
added (a cutting plane).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from autoshard.base.arrays import Array
from autoshard.problem.evaluate import evaluate
from autoshard.problem.problem import Problem, equal_choices
from autoshard.problem.solution import Solution


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The group of each node of a problem, and the node's strategy for each choice of the group."""

    of: tuple[int, ...]
    """For each node the number of its group, from 0."""
    strategies: tuple[NDArray[np.intp], ...]
    """For each node, shape (choices of its group,): its strategy for each of them."""

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return max(self.of, default=-1) + 1

    def expand(self, choice: Sequence[int]) -> list[int]:
        """The choice of every node, given the choice of every group."""
        return [
            int(strategies[choice[group]])
            for group, strategies in zip(self.of, self.strategies, strict=True)
        ]

    def then(self, groups: Groups) -> Groups:
        """Groups of these groups, as groups of the nodes."""
        return Groups(
            tuple(groups.of[group] for group in self.of),
            tuple(
                strategies[groups.strategies[group]]
                for group, strategies in zip(self.of, self.strategies, strict=True)
            ),
        )


def in_order(problem: Problem) -> tuple[NDArray[np.intp], ...]:
    """For every node all its strategies, in order; nodes with equally many share one array."""
    known: dict[int, NDArray[np.intp]] = {}
    return tuple(known.setdefault(len(c), np.arange(len(c))) for c in problem.node_costs)


def each_alone(problem: Problem) -> Groups:
    """Groups of one node each."""
    return Groups(tuple(range(problem.n_nodes)), in_order(problem))


def grouped(problem: Problem, groups: Groups, times: Sequence[int] = ()) -> Problem:
    """The problem of choosing for groups; its first `groups.n_groups` nodes are the groups.

    Args:
        problem: The problem of the nodes.
        groups: Groups of its nodes.
        times: The times at which usages count, in increasing order.
    """
    n = groups.n_groups
    costs: list[Array] = [np.zeros(0)] * n
    for node, (group, member) in enumerate(zip(groups.of, groups.strategies, strict=True)):
        cost = problem.node_costs[node][member]
        costs[group] = costs[group] + cost if len(costs[group]) else cost
    alike: dict[tuple[int, int], dict[tuple[int, ...], list[int]]] = {}
    for edge, ((i, j), table) in enumerate(zip(problem.edges, problem.edge_costs, strict=True)):
        a, b = groups.of[i], groups.of[j]
        of_i, of_j = groups.strategies[i], groups.strategies[j]
        if a == b:
            costs[a] = costs[a] + table[of_i, of_j]
            continue
        # repeated layers share arrays: equal edges are counted, not added one by one
        like = (id(table), id(of_i), id(of_j), int(a < b))
        alike.setdefault((min(a, b), max(a, b)), {}).setdefault(like, []).append(edge)
    tables: dict[tuple[int, int], Array] = {}
    known: dict[tuple[int, ...], Array] = {}
    for pair, counted in alike.items():
        parts = []
        for shared, edges in counted.items():
            key = (*shared, len(edges))
            if key not in known:
                table = _between(problem, groups, edges[0])
                known[key] = table if len(edges) == 1 else len(edges) * table
            parts.append(known[key])
        tables[pair] = reduce(np.add, parts)
    usages = [np.zeros(len(cost)) for cost in costs]
    intervals = [(0, 0)] * n
    for group, (first, *more) in _stretches(problem, groups, times).items():
        (usages[group], intervals[group]), same = first, equal_choices(len(costs[group]))
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
    """The costs of an edge between two groups, with a row for each choice of the lower group."""
    i, j = problem.edges[edge]
    table = problem.edge_costs[edge]
    for dim, node in enumerate((i, j)):
        strategies = groups.strategies[node]
        if not np.array_equal(strategies, np.arange(table.shape[dim])):
            table = table.take(strategies, axis=dim)
    return table if groups.of[i] < groups.of[j] else table.T


def _stretches(
    problem: Problem, groups: Groups, times: Sequence[int]
) -> dict[int, list[tuple[Array, tuple[int, int]]]]:
    """For each group with members alive at some of the times: stretches of equal usage.

    A stretch is the usage of each choice, and the indices [from, to) of the times that it spans.
    """
    if not times:
        return {}
    used: dict[int, dict[int, Array]] = {}
    for node, (first, last) in enumerate(problem.intervals):
        usage = problem.usages[node][groups.strategies[node]]
        at = used.setdefault(groups.of[node], {})
        for index in range(*np.searchsorted(times, (first, last)).tolist()):
            at[index] = at[index] + usage if index in at else usage
    by_group: dict[int, list[tuple[Array, tuple[int, int]]]] = {}
    for group, at in sorted(used.items()):
        for index, usage in sorted(at.items()):
            stretches = by_group.setdefault(group, [])
            if stretches and stretches[-1][1][1] == index and (stretches[-1][0] == usage).all():
                stretches[-1] = (usage, (stretches[-1][1][0], index + 1))
            else:
                stretches.append((usage, (index, index + 1)))
    return by_group


def solve_grouped(
    problem: Problem, groups: Groups, solve: Callable[[Problem], Solution]
) -> list[int]:
    """The expansion of the best choice of the groups, within the memory limit at all times.

    Args:
        problem: The problem of the nodes.
        groups: Groups of its nodes.
        solve: Solves the problem of the groups.

    Raises:
        InfeasibleError: `solve` raised it: nothing fits if groups choose together.
    """
    times: list[int] = []
    while True:
        choice = groups.expand(solve(grouped(problem, groups, times)).choice)
        if problem.usage_limit is None:  # the costs of groups are exact: nothing is left to check
            return choice
        judged = evaluate(problem, choice)
        if judged.feasible or judged.peak_time is None or judged.peak_time in times:
            return choice
        times = sorted([*times, judged.peak_time])
