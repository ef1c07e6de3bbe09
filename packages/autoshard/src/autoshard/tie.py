"""Repeated layers take the same strategies: AutoDDL 4.5.1.

A model repeats its layers, and its operators come in the order of the layers. So in each phase a
stretch of operators in which each is like the one `period` places before is a number of layers (or
of parameters, in an optimizer's update), and operators that are a multiple of the period apart are
tied. The longest such stretch comes first, then what is left on both sides of it, as long as there
are any (-> `repeated_operators`). Inputs, copies and outputs are tied if their neighbours are, and
at equal costs (-> `tied`).

Backward runs the layers in reverse, which makes no difference. Operators are alike if kind, rule
and FLOP are; how they are connected is not compared, so layers may be tied that are joined
differently. That costs quality, never correctness: the tied problem's costs are the true ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence

import numpy as np

from autoshard.graph import Graph
from autoshard.grouped import Groups, in_order
from autoshard.problem import Array, Problem


def repeated_operators(graph: Graph) -> tuple[int, ...]:
    """Per operator the first one that it is tied to, which may be itself.

    Examples:
        >>> from autoshard.programs import deep_mlp_step
        >>> graph = deep_mlp_step(widths=(8,) * 5, batch=4)
        >>> len(graph.operators) > len(set(repeated_operators(graph)))
        True
    """
    alike: dict[Hashable, int] = {}
    kinds = [
        alike.setdefault(
            (
                op.phase,
                op.kind,
                op.rule,
                op.flops,
                tuple(graph.value(name).dtype for name in op.inputs + op.outputs),
            ),
            len(alike),
        )
        for op in graph.operators
    ]
    first = list(range(len(kinds)))
    waiting = [(0, len(kinds))]
    while waiting:
        start, stop = waiting.pop()
        period, begin, end = longest_repeat(kinds[start:stop])
        if not period:
            continue
        begin, end = begin + start, end + start
        for index in range(begin + period, end):
            first[index] = first[index - period]
        waiting += [(start, begin), (end, stop)]
    return tuple(first)


def longest_repeat(kinds: Sequence[int]) -> tuple[int, int, int]:
    """The period and the ends of the stretch with most items that are equal to one a period before.

    Of equally good ones the shortest period, then the first stretch; (0, 0, 0) if no item is equal
    to one that is at most half the length before it.

    Examples:
        >>> longest_repeat([7, 1, 2, 3, 1, 2, 3, 1, 2, 8])
        (3, 1, 9)
    """
    items, best, most = np.asarray(kinds), (0, 0, 0), 0
    for period in range(1, len(items) // 2 + 1):
        same = np.concatenate(([False], items[period:] == items[:-period], [False]))
        changes = np.flatnonzero(same[1:] != same[:-1])
        starts, stops = changes[::2], changes[1::2]
        if not len(starts):
            continue
        lengths = stops - starts
        longest = int(lengths.argmax())
        # less than a period is a likeness of parts, not a repeated layer
        if lengths[longest] > most and lengths[longest] >= period:
            most = int(lengths[longest])
            best = (period, int(starts[longest]), int(stops[longest]) + period)
    return best


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
