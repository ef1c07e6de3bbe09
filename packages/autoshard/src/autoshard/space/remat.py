"""Rematerialisation: what backward reads is computed again there, and need not be held till then.

A pass on graphs, so that nothing else has to know: the copies of the operators are operators of
backward, with a strategy and a price of their own, and what they read is what is saved instead.
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
    from inputs, saved activations, and other recomputed values. Chen et al., "Training Deep Nets
    with Sublinear Memory Cost", 2016; to keep only the ends of segments, name all that
    `saved_activations` lists but these.

    Args:
        graph: Verified.
        names: Results of the first phase that a later one reads.

    Returns:
        A verified graph; recomputed values are called as before with the phase and `@` in front.

    Raises:
        GraphError: one of the names is no saved activation that an operator makes.

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
        raise GraphError(f"several names are computed again, as in ['gelu_1']; got {names!r}")
    saved = [name for name in saved_activations(graph) if name in graph.producers]
    if unknown := [name for name in names if name not in saved]:
        raise GraphError(
            "what is computed again is made in the first phase and read in a later one; got "
            f"{unknown[0]!r}, where these are {', '.join(saved)}"
        )
    values: dict[str, Value] = dict(graph.by_name)
    operators: list[Operator] = []
    again: dict[tuple[int, str], str] = {}

    def recompute(name: str, phase: int) -> str:
        """The name of a value in a phase; its operator is added before, if it is made again."""
        if name not in names or phase == 0:
            return name
        if (phase, name) not in again:
            operator = graph.operators[graph.producers[name][0]]
            inputs = tuple(recompute(operand, phase) for operand in operator.inputs)
            prefix = f"{graph.phases[phase].name}@"
            for made in operator.outputs:
                again[phase, made] = prefix + made
                values[prefix + made] = replace(graph.value(made), name=prefix + made)
            outputs = tuple(again[phase, made] for made in operator.outputs)
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
