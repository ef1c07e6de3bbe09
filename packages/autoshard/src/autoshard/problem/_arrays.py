"""A `Problem` for the compiled core, and what the core leaves of it as a `Problem`."""

from __future__ import annotations

import math

import numpy as np

from autoshard.base._native import core
from autoshard.base.arrays import Array
from autoshard.problem.problem import Problem


def instance_of(problem: Problem) -> core.Instance:
    """What the core's exact reduction leaves of a problem."""
    return core.Instance(arrays_of(problem))


def arrays_of(problem: Problem) -> core.Arrays:
    """A problem as the core takes it.

    Tables that several edges share as one array are handed over once: in a program of repeated
    layers that is most of them.
    """
    tables: list[Array] = []
    starts: dict[int, int] = {}
    end = 0
    for table in problem.edge_costs:
        if id(table) not in starts:
            starts[id(table)] = end
            tables.append(np.ravel(table))
            end += table.size
    return core.Arrays(
        np.array([len(cost) for cost in problem.node_costs], dtype=np.int64),
        _joined(problem.node_costs),
        _joined(problem.usages),
        np.array(problem.intervals, dtype=np.int64).reshape(-1, 2),
        np.array(problem.edges, dtype=np.int64).reshape(-1, 2),
        _joined(tables),
        np.array([starts[id(table)] for table in problem.edge_costs], dtype=np.int64),
        math.inf if problem.usage_limit is None else problem.usage_limit,
    )


def problem_of(instance: core.Instance) -> Problem:
    """What reduction has left, for the integer program.

    Its first nodes are the instance's. A node that uses something over several stretches of time
    has another one tied to it for each stretch but the first; what is used in any case is a node,
    too.
    """
    node_costs, joined, pieces, fixed = instance.parts()
    usages = [np.zeros(len(cost)) for cost in node_costs]
    intervals = [(0, 0)] * len(node_costs)
    edges = [(i, j) for i, j, _ in joined]
    tables = [table for _, _, table in joined]
    for node, first, last, usage in pieces:
        if intervals[node] == (0, 0):
            usages[node], intervals[node] = usage, (first, last)
            continue
        equal = np.full((len(usage), len(usage)), math.inf)
        np.fill_diagonal(equal, 0.0)
        edges.append((node, len(node_costs)))
        tables.append(equal)
        node_costs.append(np.zeros(len(usage)))
        usages.append(usage)
        intervals.append((first, last))
    # Sums and differences of fractions may leave a little less than nothing.
    for row, usage in enumerate(np.maximum(fixed, 0.0).tolist()):
        node_costs.append(np.zeros(1))
        usages.append(np.array([usage]))
        intervals.append((row, row + 1))
    return Problem(
        tuple(node_costs),
        tuple(edges),
        tuple(tables),
        tuple(usages),
        tuple(intervals),
        None if math.isinf(instance.limit) else instance.limit,
    )


def _joined(arrays: tuple[Array, ...] | list[Array]) -> Array:
    return np.concatenate(arrays, dtype=np.float64) if arrays else np.zeros(0)
