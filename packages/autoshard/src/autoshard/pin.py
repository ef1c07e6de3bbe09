"""Hold some values or operators as they are told to be: a smaller problem, built from the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from shardspec import Spec

from autoshard.build import Built
from autoshard.errors import PinError
from autoshard.graph import Graph
from autoshard.options import Options
from autoshard.problem import Problem
from autoshard.strategy import Strategy
from autoshard.tables import table_of

Pin = Spec | Strategy | tuple[Spec, ...]
"""How an operator runs (a strategy), or how a value is stored or made (a spec, or any of some)."""
Kept = list[NDArray[np.intp]]
"""Per node, the strategies that are left."""


def kept_strategies(
    graph: Graph,
    mesh_shape: tuple[int, ...],
    options: Options,
    built: Built,
    pins: Mapping[str, Pin],
) -> Kept:
    """The strategies of each node that agree with all pins.

    Raises:
        PinError: no operator or value has this name, or none of its strategies agrees.
    """
    masks = [np.ones(len(cost), dtype=np.bool_) for cost in built.problem.node_costs]
    operators = {operator.name: index for index, operator in enumerate(graph.operators)}
    for name, pin in pins.items():
        if not isinstance(pin, Strategy) and not all(isinstance(s, Spec) for s in _specs(pin)):
            raise PinError(
                f"a pin is a Strategy, a Spec or a tuple of Specs; got {pin!r} for {name!r}; "
                "Spec.parse reads text"
            )
        if isinstance(pin, Strategy):
            if name not in operators:
                raise PinError(f"a strategy is pinned to an operator; got {name!r}, which is none")
            node = len(graph.inputs) + operators[name]
            table = table_of(graph, graph.operators[operators[name]], mesh_shape, options)
            agrees = [strategy == pin for strategy in table.strategies]
        elif name in built.inputs:
            node = built.inputs[name]
            agrees = [specs[0] in _specs(pin) for specs in built.copies[node]]
        elif name in graph.producers:
            index, position = graph.producers[name]
            node = len(graph.inputs) + index
            table = table_of(graph, graph.operators[index], mesh_shape, options)
            column = table.results[position]
            agrees = [column.distinct.specs[i] in _specs(pin) for i in column.index]
        else:
            raise PinError(f"a spec is pinned to a value of the graph; got {name!r}, which is none")
        masks[node] &= np.array(agrees)
        if not masks[node].any():
            wanted = str(pin) if isinstance(pin, Strategy) else ", ".join(map(str, _specs(pin)))
            raise PinError(
                "a pin is one of the strategies of its operator, or one of the specs of its value, "
                f"and agrees with the other pins; {name!r} on a mesh of shape {mesh_shape} cannot "
                f"be {wanted}; see enumerate_strategies and stored_specs"
            )
    return [mask.nonzero()[0] for mask in masks]


def _specs(pin: Spec | tuple[Spec, ...]) -> tuple[Spec, ...]:
    return pin if isinstance(pin, tuple) else (pin,)


def restricted(problem: Problem, kept: Kept) -> Problem:
    """The problem with only these strategies of each node."""
    return replace(
        problem,
        node_costs=tuple(c[of] for c, of in zip(problem.node_costs, kept, strict=True)),
        edge_costs=tuple(
            table[np.ix_(kept[i], kept[j])]
            if len(kept[i]) < table.shape[0] or len(kept[j]) < table.shape[1]
            else table
            for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True)
        ),
        usages=tuple(u[of] for u, of in zip(problem.usages, kept, strict=True)),
    )
