"""Ties repeated layers, so that they take the same strategies (AutoDDL 4.5.1).

Operators that repeat each other (`graph.repeats`) are tied. Inputs, copies and outputs are tied if
they have equal costs and their neighbours are tied (-> `tied`). This may tie layers that are
connected differently, which may make the answer worse but never wrong: the costs of the tied
problem are the true ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

from autoshard.base.arrays import Array
from autoshard.problem.groups import Groups, in_order
from autoshard.problem.problem import Problem


def tied(problem: Problem, first: dict[int, int]) -> Groups:
    """The groups of tied nodes of a problem, given which operators are tied.

    Args:
        problem: The problem of a graph.
        first: For each node of an operator, the node that it is tied to. Any other node is tied
            to those that have equal costs and equal edges to tied neighbours.
    """
    seen = _Tables()
    around: list[list[tuple[int, bool, int]]] = [[] for _ in range(problem.n_nodes)]
    for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True):
        number = seen.number(table)
        around[i].append((j, True, number))
        around[j].append((i, False, number))
    # Every other node is next to an operator, or next to a node that is: two rounds suffice.
    key: list[int] = [first.get(node, -1) for node in range(problem.n_nodes)]
    for _ in range(2):
        described: list[Hashable] = [
            (first[node], len(problem.node_costs[node]))  # a pin may leave fewer strategies
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
    """Numbers arrays; equal arrays have the same number."""

    def __init__(self) -> None:
        self._by_id: dict[int, int] = {}
        self._by_content: dict[tuple[tuple[int, ...], bytes], int] = {}
        """By shape and digest."""

    def number(self, table: Array) -> int:
        if id(table) not in self._by_id:
            key = (table.shape, hashlib.blake2b(table.tobytes()).digest())
            self._by_id[id(table)] = self._by_content.setdefault(key, len(self._by_content))
        return self._by_id[id(table)]
