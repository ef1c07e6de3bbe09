"""The method `elimination`: exact dynamic programming over a problem that is narrow enough.

The core reduces, then minimises over one node after the other, the narrowest first: each time the
tables that mention it become one over its neighbours (bucket elimination, Dechter 1999). The answer
is the optimum whatever the memory limit, so it is an answer where it keeps the limit.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from autoshard._native import core
from autoshard.errors import WidthError
from autoshard.evaluate import evaluate
from autoshard.instance import instance_of
from autoshard.leanest import leanest_of_equals
from autoshard.problem import Problem
from autoshard.run import Run

ENTRIES = 1e7
"""Of any table in an exact elimination: 80 MB."""


def elimination(problem: Problem, run: Run) -> None:
    """Find the cheapest choice, which is the answer if it keeps the limit; takes no steps.

    Raises:
        WidthError: a table would have more than `ENTRIES` entries, or all more than 512 MB.
    """
    instance = instance_of(problem)
    if not instance.possible:
        run.raise_bound(math.inf)
    elif not eliminate(problem, instance, run):
        raise WidthError(_digits(instance, run), ENTRIES)


def eliminate(problem: Problem, instance: core.Instance, run: Run) -> bool:
    """Offer the optimum of what reduction leaves of a problem; says whether it is narrow enough."""
    empty = np.zeros(0, dtype=np.int32)
    labels = instance.eliminate(ENTRIES) if instance.n_nodes else empty
    if labels is None:
        return False
    choice = leanest_of_equals(problem, instance.expand(labels).tolist())
    run.raise_bound(evaluate(problem, choice).cost)
    run.offer(choice, by="elimination")
    return True


def _digits(instance: core.Instance, run: Run) -> float:
    """The logarithm to base 10 of the entries of the largest table, as far as the time goes."""
    node_costs, edges, _, _ = instance.parts()
    size = [math.log10(len(cost)) for cost in node_costs]
    around: list[set[int]] = [set() for _ in size]
    for i, j, _ in edges:
        around[i].add(j)
        around[j].add(i)
    table = [size[node] + sum(size[other] for other in around[node]) for node in range(len(size))]
    heap, widest = [(digits, node) for node, digits in enumerate(table)], 0.0
    heapq.heapify(heap)
    while heap and run.time_left() > 0.0:
        digits, node = heapq.heappop(heap)
        if digits != table[node]:  # has changed since
            continue
        widest, table[node] = max(widest, digits), math.nan
        for other in around[node]:
            around[other] |= around[node]
            around[other] -= {node, other}
            table[other] = size[other] + sum(size[next_one] for next_one in around[other])
            heapq.heappush(heap, (table[other], other))
    return widest
