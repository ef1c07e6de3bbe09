"""Which operators are cheap to run again."""

from __future__ import annotations

import math

from autoshard import Graph, Operator

_CHEAP_FLOPS = 16.0
"""The most FLOPs for each element that a cheap operator reads or writes [chosen]: random bits take
fewer, a sort or a solve more."""


def is_product(op: Operator) -> bool:
    """Whether an operator is a matrix product, or a convolution."""
    operands = _factors_of_operands(op)
    return (
        {(0,), (1,)} <= set(op.rule.linear)
        and len(operands) == 2
        and any(op.rule.factors[factor].kind != "parallel" for factor in operands[0] & operands[1])
    )


def has_batch_dims(op: Operator) -> bool:
    """Whether both operands of a product have a dim that its result has, too."""
    operands = _factors_of_operands(op)
    results = {factor for dims in op.rule.results for dim in dims for factor in dim}
    return bool(operands[0] & operands[1] & results)


def is_cheap(op: Operator, graph: Graph) -> bool:
    """Whether an operator takes about as long as to read its operands and to write its results."""
    values = map(graph.value, (*op.inputs, *op.outputs))
    elements = sum(math.prod(value.shape) for value in values)
    return not is_product(op) and op.flops <= _CHEAP_FLOPS * elements


def _factors_of_operands(op: Operator) -> list[set[int]]:
    return [{factor for dim in dims for factor in dim} for dims in op.rule.operands]
