"""A good choice for a network too wide to eliminate: exact moves over balls of nodes.

A move frees all nodes of a ball, holds its surroundings, and takes the optimum by elimination.
The first sweep builds the choice (what no ball has reached yet is left out); the next ones repeat
the balls near a change until none improves. Everything is in a fixed order: no randomness.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from autoshard.network import Network
from autoshard.problem import Array, Problem
from autoshard.reduce import eliminate_all, reduce_to_pairs

BALL = 32
"""Nodes in a ball [measured on GPT steps: larger ones take longer and find little more]."""
STRIDE = 8
"""Every how many nodes of the breadth-first order a ball is centred."""
ENTRIES = 200_000
"""Of any table in a move; a ball that needs more shrinks to half."""


class _Surroundings:
    """A problem's edges by node."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.edges: list[list[tuple[int, int, Array]]] = [[] for _ in range(problem.n_nodes)]
        """Per node: (edge, other node, costs with a row for each strategy of this node)."""
        for edge, ((i, j), cost) in enumerate(zip(problem.edges, problem.edge_costs, strict=True)):
            self.edges[i].append((edge, j, cost))
            self.edges[j].append((edge, i, cost.T))

    def breadth_first(self, seeds: list[int], limit: int) -> list[int]:
        """Up to `limit` nodes, nearest to the seeds first; each seed starts where others ended."""
        order: dict[int, None] = {}
        for seed in seeds:
            queue = deque([seed] if seed not in order else [])
            while queue and len(order) < limit:
                node = queue.popleft()
                if node in order:
                    continue
                order[node] = None
                queue.extend(other for _, other, _ in self.edges[node] if other not in order)
        return list(order)

    def best(self, ball: list[int], choice: dict[int, int]) -> dict[int, int] | None:
        """The optimal choice in a ball, given the choice around it; `None` if it is too wide."""
        inside = {node: index for index, node in enumerate(ball)}
        costs, pairs, tables = [], [], []
        for node in ball:
            cost = self.problem.node_costs[node]
            for _, other, table in self.edges[node]:
                if other in inside:
                    if node < other:
                        pairs.append((inside[node], inside[other]))
                        tables.append(table)
                elif other in choice:
                    cost = cost + table[:, choice[other]]
            costs.append(cost)
        nothing = tuple(np.zeros(len(cost)) for cost in costs)
        free = ((0, 0),) * len(ball)
        network = Network(Problem(tuple(costs), tuple(pairs), tuple(tables), nothing, free))
        reduce_to_pairs(network)
        if not eliminate_all(network, ENTRIES):
            return None
        return dict(zip(ball, network.choose({}), strict=True))

    def cost(self, ball: list[int], choice: dict[int, int]) -> float:
        """What the nodes of a ball and all edges that touch it cost."""
        total = sum(float(self.problem.node_costs[node][choice[node]]) for node in ball)
        inside = set(ball)
        for node in ball:
            for _, other, table in self.edges[node]:
                if other in choice and not (other in inside and other < node):
                    total += float(table[choice[node], choice[other]])
        return total


def search(problem: Problem) -> list[int]:
    """A choice that no ball improves; the limit is ignored."""
    around = _Surroundings(problem)
    order = around.breadth_first(list(range(problem.n_nodes)), problem.n_nodes)
    choice: dict[int, int] = {}
    changed: set[int] | None = None
    while changed is None or changed:
        before, changed = changed, set()
        for position, centre in enumerate(order):
            if position % STRIDE and centre in choice:
                continue
            ball = around.breadth_first([centre], BALL)
            if before is not None and before.isdisjoint(ball):
                continue
            found = around.best(ball, choice)
            while found is None:
                ball = ball[: len(ball) // 2]
                found = around.best(ball, choice)
            if not all(node in choice for node in ball):
                choice.update(found)
                continue
            old = {node: choice[node] for node in ball}
            value = around.cost(ball, choice)
            choice.update(found)
            # a real gain, not rounding: else ties could go round for ever
            if around.cost(ball, choice) < value - 1e-9 * abs(value):
                changed.update(node for node in ball if old[node] != choice[node])
            else:
                choice.update(old)
        if before is None:
            changed = set(order)
    return [choice[node] for node in range(problem.n_nodes)]
