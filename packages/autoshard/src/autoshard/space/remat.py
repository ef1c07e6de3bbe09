"""Rematerialization: backward computes values again instead of keeping them since forward.

It is a pass on graphs, so no other module has to know about it: the copies of the operators are
operators of backward, with their own strategies and prices, and the values that these copies read
are saved instead.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from autoshard.base.checks import of_class
from autoshard.errors import GraphError
from autoshard.graph.graph import Graph, verify
from autoshard.graph.graph_fields import Operator, Value
from autoshard.graph.lifetime import saved_activations


def rematerialize(graph: Graph, names: Collection[str]) -> Graph:
    """The graph in which later phases compute some saved activations again.

    Each is recomputed once in every later phase that reads it, just before its first reader there,
    from inputs, saved activations, and other recomputed values (Chen et al., "Training Deep Nets
    with Sublinear Memory Cost", 2016). To keep only the ends of segments, name all others that
    `saved_activations` lists.

    Args:
        graph: Verified.
        names: Results of the first phase that a later one reads.

    Returns:
        A verified graph; the name of a recomputed value is the phase, `@` and the original name.

    Raises:
        GraphError: one of the names is not a saved activation that an operator computes.

    Examples:
        >>> from autoshard.programs import mlp_step
        >>> graph = mlp_step(batch=8, width=4, hidden=16)
        >>> saved_activations(graph)
        ('x', 'einsum_0', 'gelu_1', 'einsum_2', 'mul_const_6')
        >>> saved_activations(rematerialize(graph, ["gelu_1"]))
        ('x', 'einsum_0', 'einsum_2', 'mul_const_6')
    """
    of_class(GraphError, "graph", graph, Graph, "as GraphBuilder and Graph.parse make it")
    if isinstance(names, str) or not isinstance(names, Collection):
        raise GraphError(f"names is a collection of names, as ['gelu_1']; got names={names!r}")
    saved = [name for name in saved_activations(graph) if name in graph.producers]
    if unknown := [name for name in names if name not in saved]:
        raise GraphError(
            "a recomputed value is computed in the first phase and read in a later one; got "
            f"{unknown[0]!r}, and such values of the graph are {', '.join(saved)}"
        )
    values: dict[str, Value] = dict(graph.by_name)
    operators: list[Operator] = []
    again: dict[tuple[int, str], str] = {}

    def recompute(name: str, phase: int) -> str:
        """The name of a value in a phase; adds its operator first, if it is recomputed there."""
        if name not in names or phase == 0:
            return name
        if (phase, name) not in again:
            operator = graph.operators[graph.producers[name][0]]
            inputs = tuple(recompute(operand, phase) for operand in operator.inputs)
            prefix = f"{graph.phases[phase].name}@"
            for output in operator.outputs:
                again[phase, output] = prefix + output
                values[prefix + output] = replace(graph.value(output), name=prefix + output)
            outputs = tuple(again[phase, output] for output in operator.outputs)
            operators.append(
                replace(
                    operator,
                    name=prefix + operator.name,
                    inputs=inputs,
                    outputs=outputs,
                    phase=phase,
                )
            )
        return again[phase, name]

    for operator in graph.operators:
        inputs = tuple(recompute(name, operator.phase) for name in operator.inputs)
        operators.append(replace(operator, inputs=inputs))
    changed = replace(graph, values=tuple(values.values()), operators=tuple(operators))
    verify(changed)
    return changed
