"""Repeated layers take the same strategies: AutoDDL 4.5.1.

Operators that repeat each other (`graph.repeats`) are tied; inputs, copies and outputs are tied if
their neighbours are, and at equal costs (-> `tied`). Layers may be tied that are joined
differently. That costs quality, never correctness: the tied problem's costs are the true ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

from autoshard.base.arrays import Array
from autoshard.problem.groups import Groups, in_order
from autoshard.problem.problem import Problem


def tied(problem: Problem, first: dict[int, int]) -> Groups:
    """The groups of a problem whose operators are tied.

    Args:
        problem: Of a graph.
        first: For each node that is an operator the node that it is tied to. Any other node is tied
            to those that have equal costs and equal edges with tied neighbours.
    """
    seen = _Tables()
    around: list[list[tuple[int, bool, int]]] = [[] for _ in range(problem.n_nodes)]
    for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True):
        number = seen.number(table)
        around[i].append((j, True, number))
        around[j].append((i, False, number))
    # Others are next to operators, or next to one that is: after two rounds all are told apart.
    key: list[int] = [first.get(node, -1) for node in range(problem.n_nodes)]
    for _ in range(2):
        described: list[Hashable] = [
            (first[node], len(problem.node_costs[node]))  # a pin leaves one of them fewer
            if node in first
            else (
                seen.number(problem.node_costs[node]),
                tuple(sorted((key[other], out, table) for other, out, table in around[node])),
            )
            for node in range(problem.n_nodes)
        ]
        numbers: dict[Hashable, int] = {}
        key = [numbers.setdefault(one, len(numbers)) for one in described]
    return Groups(tuple(key), in_order(problem))


class _Tables:
    """Numbers for arrays, the same for equal ones."""

    def __init__(self) -> None:
        self._by_id: dict[int, int] = {}
        self._by_content: dict[tuple[tuple[int, ...], bytes], int] = {}
        """By shape and digest."""

    def number(self, table: Array) -> int:
        if id(table) not in self._by_id:
            key = (table.shape, hashlib.blake2b(table.tobytes()).digest())
            self._by_id[id(table)] = self._by_content.setdefault(key, len(self._by_content))
        return self._by_id[id(table)]
