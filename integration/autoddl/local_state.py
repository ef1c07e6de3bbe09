"""Costs and usages of one node's strategies while all other nodes keep theirs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from autoshard import Problem
from autoshard.base.arrays import Array
from autoshard.problem.full_times import Live
from autoshard.solvers.session import CLOSED


class Neighbours:
    """The edges of a problem, by node."""

    def __init__(self, problem: Problem) -> None:
        self.node_costs = problem.node_costs
        self.around: list[list[tuple[int, Array]]] = [[] for _ in problem.node_costs]
        """For each node: (other end, costs), with shape (other end's strategies, strategies)."""
        for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True):
            self.around[i].append((j, np.ascontiguousarray(table.T)))
            self.around[j].append((i, table))

    def costs(self, node: int, choice: Sequence[int], *, before: int | None = None) -> Array:
        """The cost of each strategy of a node, including its edges; shape (strategies,).

        Args:
            node: The node.
            choice: One strategy for each node; that of `node` does not matter.
            before: If given, only edges to nodes with smaller numbers than this count.
        """
        costs = self.node_costs[node].copy()
        for other, table in self.around[node]:
            if before is None or other < before:
                costs += table[choice[other]]
        return costs


class LocalState:
    """A choice that changes node by node, with its cost and its distance from being feasible.

    Choices are compared lexicographically by three numbers: forbidden strategies and pairs; usage
    above the limit, summed over the times; cost of all that is not forbidden. So a search moves
    towards feasible choices, wherever it begins.
    """

    def __init__(self, problem: Problem, neighbours: Neighbours, choice: Sequence[int]) -> None:
        self.problem = problem
        self.neighbours = neighbours
        self.choice = [int(strategy) for strategy in choice]
        self._live = None if problem.usage_limit is None else Live(problem)
        self._used = np.zeros(0) if self._live is None else self._live.used(self.choice)
        limit = math.inf if problem.usage_limit is None else problem.usage_limit
        costs = np.concatenate(
            [
                [cost[s] for cost, s in zip(problem.node_costs, self.choice, strict=True)],
                [
                    table[self.choice[i], self.choice[j]]
                    for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True)
                ],
            ]
        )
        infinite = np.isinf(costs)
        over = np.maximum(self._used - limit, 0.0).sum()
        self.worth = np.array([infinite.sum(), over, costs[~infinite].sum()])
        """(forbidden, usage above the limit, cost) of the choice."""

    @property
    def is_feasible(self) -> bool:
        """Whether nothing is forbidden and the limit is kept, up to rounding."""
        room = 0.0 if self.problem.usage_limit is None else self.problem.usage_limit
        return bool(self.worth[0] <= 0.0 and self.worth[1] <= CLOSED * room)

    def changes(self, node: int) -> Array:
        """What each strategy of a node would add to `worth`; shape (strategies, 3)."""
        costs = self.neighbours.node_costs[node]
        forbidden = np.isinf(costs).astype(np.float64)
        costs = np.where(np.isinf(costs), 0.0, costs)
        for other, table in self.neighbours.around[node]:
            row = table[self.choice[other]]
            infinite = np.isinf(row)
            forbidden += infinite
            costs += np.where(infinite, 0.0, row)
        worth = np.stack([forbidden, self._over(node), costs], axis=1)
        changes: Array = worth - worth[self.choice[node]]
        return changes

    def take(self, node: int, strategy: int, change: Array) -> None:
        """Change the strategy of a node; `change` is what that adds to `worth`."""
        if self._live is not None:
            usage = self.problem.usages[node]
            span = slice(self._live.first[node], self._live.stop[node])
            self._used[span] += usage[strategy] - usage[self.choice[node]]
        self.choice[node] = strategy
        self.worth += change

    def _over(self, node: int) -> Array:
        """By how much each strategy of a node exceeds the limit, summed over the node's times."""
        usage = self.problem.usages[node]
        if self._live is None or self.problem.usage_limit is None:
            return np.zeros(len(usage))
        others = self._used[self._live.first[node] : self._live.stop[node]]
        room = self.problem.usage_limit - (others - usage[self.choice[node]])
        over: Array = np.maximum(usage[:, None] - room, 0.0).sum(axis=1)
        return over
