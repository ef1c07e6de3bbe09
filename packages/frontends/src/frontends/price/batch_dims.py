"""The dim of each value along which its examples lie."""

from __future__ import annotations

from autoshard import Graph


def batch_dims(graph: Graph) -> dict[str, int]:
    """By value that has examples, the dim of which they are the major part.

    Examples lie along dim 0 of the inputs with the role `batch`. An operator's results have them in
    the dims that begin with the same factor of its rule, and results that sum over it have none.
    """
    found = {name: 0 for name in graph.inputs if _is_batch(graph, name)}
    for op in graph.operators:
        for operand, dims in zip(op.inputs, op.rule.operands, strict=True):
            if operand not in found or not (factors := dims[found[operand]]):
                continue
            for result, of in zip(op.outputs, op.rule.results, strict=True):
                for dim, made in enumerate(of):
                    if made[:1] == factors[:1]:
                        found.setdefault(result, dim)
    return found


def _is_batch(graph: Graph, name: str) -> bool:
    value = graph.value(name)
    return value.role == "batch" and bool(value.shape)
