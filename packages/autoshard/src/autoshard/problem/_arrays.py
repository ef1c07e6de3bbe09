"""Converts a `Problem` to the compiled core's arrays, and a reduced instance to a `Problem`."""

from __future__ import annotations

import math

import numpy as np

from autoshard.base._native import core
from autoshard.base.arrays import Array
from autoshard.problem.problem import Problem, equal_choices


def instance_of(problem: Problem) -> core.Instance:
    """The core's instance of a problem, after exact reduction."""
    return core.Instance(arrays_of(problem))


def arrays_of(problem: Problem) -> core.Arrays:
    """A problem in the form that the core takes.

    A table that several edges share as one array is passed once. In a program of repeated layers
    most tables are shared.
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
    """A reduced instance as a problem, for the integer program.

    Its first nodes are the instance's. A node that uses memory over several stretches of time gets,
    for each stretch but the first, a further node that is forced to the same strategy. Usage that
    does not depend on any choice is a node of one strategy for each time.
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
        edges.append((node, len(node_costs)))
        tables.append(equal_choices(len(usage)))
        node_costs.append(np.zeros(len(usage)))
        usages.append(usage)
        intervals.append((first, last))
    # Rounding of sums and differences may leave values a little below zero.
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
