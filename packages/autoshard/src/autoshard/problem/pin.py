"""Pins: choices that the user makes, applied by restricting the problem to those that agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from shardspec import ShardspecError, Spec

from autoshard.base.arrays import Array
from autoshard.errors import PinError
from autoshard.graph.graph import Graph
from autoshard.problem.from_graph import Built
from autoshard.problem.problem import Problem
from autoshard.space.strategy import Strategy

Pin = Spec | str | Strategy | tuple[Spec | str, ...] | tuple[Strategy, ...]
"""The strategy of an operator, or the spec in which a value is stored or computed, also as text
such as `RS0` (or a tuple of strategies or specs, one of which it has to be)."""
Kept = dict[int, NDArray[np.intp]]
"""For each node that loses some of its strategies: those that remain."""


def kept_strategies(
    graph: Graph,
    mesh_shape: tuple[int, ...],
    built: Built,
    pins: Mapping[str, Pin],
) -> Kept:
    """The strategies of each node that agree with all pins.

    Raises:
        PinError: no operator or value has a pin's name, or none of its strategies agrees.
    """
    masks: dict[int, NDArray[np.bool_]] = {}
    operators = {operator.name: index for index, operator in enumerate(graph.operators)}
    for name, pin in pins.items():
        if pin == ():
            raise PinError(
                f"a pin leaves some strategy or spec; got none for {name!r} on a mesh of shape "
                f"{mesh_shape}"
            )
        strategies = _strategies(pin)
        specs = () if strategies else _specs(name, pin)
        if strategies:
            if name not in operators:
                raise PinError(f"a strategy is pinned to an operator; got {name!r}, which is none")
            node = len(graph.inputs) + operators[name]
            agrees = [one in strategies for one in built.tables[operators[name]].strategies]
        elif name in built.inputs:
            node = built.inputs[name]
            agrees = [copies[0] in specs for copies in built.copies[node]]
        elif name in graph.producers:
            index, position = graph.producers[name]
            node = len(graph.inputs) + index
            column = built.tables[index].results[position]
            agrees = [column.distinct.specs[i] in specs for i in column.index]
        else:
            raise PinError(f"a spec is pinned to a value of the graph; got {name!r}, which is none")
        masks[node] = masks.get(node, True) & np.array(agrees)
        if not masks[node].any():
            wanted = ", ".join(map(str, strategies or specs))
            raise PinError(
                "a pin is one of the strategies of its operator, or one of the specs of its value, "
                f"and agrees with the other pins; {name!r} on a mesh of shape {mesh_shape} cannot "
                f"be {wanted}; see enumerate_strategies and stored_specs"
            )
    known: dict[bytes, NDArray[np.intp]] = {}  # nodes that keep the same strategies share an array
    return {
        node: known.setdefault(mask.tobytes(), mask.nonzero()[0])
        for node, mask in masks.items()
        if not mask.all()
    }


def _strategies(pin: object) -> tuple[Strategy, ...]:
    each = pin if isinstance(pin, tuple) else (pin,)
    strategies = tuple(one for one in each if isinstance(one, Strategy))
    return strategies if len(strategies) == len(each) else ()


def _specs(name: str, pin: object) -> tuple[Spec, ...]:
    try:
        each = pin if isinstance(pin, tuple) else (pin,)
        specs = tuple(Spec.parse(one) if isinstance(one, str) else one for one in each)
    except ShardspecError as error:
        raise PinError(
            f"a pin is a spec, such as RS0; got {pin!r} for {name!r}: {error}"
        ) from error
    if not all(isinstance(one, Spec) for one in specs):
        raise PinError(
            "a pin is a Strategy, a Spec or its text, or a tuple of Specs; got "
            f"{pin!r} for {name!r}"
        )
    return specs


def restricted(problem: Problem, kept: Kept, usage_limit: float | None) -> Problem:
    """The problem with only these strategies of each node, and with a limit.

    Nodes and edges that share an array, and keep the same part of it, share the new array, too.
    """
    if not kept and usage_limit == problem.usage_limit:
        return problem
    known: dict[tuple[int, int, int], Array] = {}

    def part(table: Array, node: int, dim: int = 0) -> Array:
        if node not in kept:
            return table
        key = (id(table), id(kept[node]), dim)
        if key not in known:
            known[key] = table.take(kept[node], axis=dim)
        return known[key]

    node_costs, usages = list(problem.node_costs), list(problem.usages)
    for node in kept:
        node_costs[node], usages[node] = part(node_costs[node], node), part(usages[node], node)
    tables = zip(problem.edges, problem.edge_costs, strict=True)
    edge_costs = tuple(part(part(table, i), j, 1) for (i, j), table in tables)
    return replace(
        problem,
        node_costs=tuple(node_costs),
        edge_costs=edge_costs,
        usages=tuple(usages),
        usage_limit=usage_limit,
    )
