"""Results that take no memory: the inner ones of elementwise chains, which XLA fuses.

This is assumed in apply only, where an optimizer's arithmetic consists of such chains, and only
state and gradients take memory beside them. In forward and backward every result counts: there
XLA's schedule and its copies of operands take about what fusion saves (docs/memory.md has figures).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from autoshard import Graph, Operator

from frontends.step.step import APPLY


def fused_in_apply(graph: Graph, laid_out: Collection[str]) -> frozenset[str]:
    """The values of apply that XLA fuses away: all their readers loop over the same elements.

    Args:
        graph: The graph of a step or of a stage.
        laid_out: Values that need an array in any case, as they are converted or sent.
    """
    apply = [op for op in graph.operators if op.phase == APPLY]
    known: dict[int, bool] = {}  # repeated layers share rules
    for op in apply:
        if id(op.rule) not in known:
            known[id(op.rule)] = is_elementwise(op)
    elementwise = {op.name for op in apply if known[id(op.rule)]}
    readers: dict[str, list[Operator]] = defaultdict(list)
    for op in apply:
        for name in op.inputs:
            readers[name].append(op)
    kept = {output.value for output in graph.outputs}.union(laid_out)
    return frozenset(
        op.outputs[0]
        for op in apply
        if op.name in elementwise
        and op.outputs[0] not in kept
        and all(
            reader.name in elementwise
            and graph.value(reader.outputs[0]).shape == graph.value(op.outputs[0]).shape
            for reader in readers[op.outputs[0]]
        )
    )


def is_elementwise(op: Operator) -> bool:
    """Whether each element of the only result depends on that of each operand, or on a scalar."""
    if len(op.outputs) != 1 or any(factor.kind != "parallel" for factor in op.rule.factors):
        return False
    (result,) = op.rule.results
    return all(len(dim) == 1 for dim in result) and all(
        dims in (result, ()) for dims in op.rule.operands
    )
