"""The dtype at whose rate an operator computes: that of the operands which it multiplies.

A product of bfloat16 matrices runs at bfloat16's rate, whatever dtype it is summed in and returned
as: the matrix units work this way, and no step runs at the rate of the result's wider dtype. So
results do not count. If the operands have several dtypes, the narrower ones are converted first, so
the widest floating-point dtype decides: a product of bfloat16 weights and float32 activations runs
at float32's rate, one of int8 weights and bfloat16 activations at bfloat16's. Operands that are all
integers run at the integers' rate.

An operator that is linear in each operand alone (a product, a convolution) multiplies all of them.
In any other operator, operands of a lower rank than the highest are scales, shifts and statistics,
such as the float32 normalisers that the gradient of flash attention reads: they are applied to
rows, not multiplied as matrices are.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.base.checks import checked
from autoshard.graph.graph_fields import itemsize
from autoshard.graph.rule import Rule


@checked
def arithmetic_dtype(rule: Rule, dtypes: Sequence[str]) -> str:
    """The dtype at whose rate an operator runs; the module's docstring has the reasons.

    Args:
        rule: The operator's rule.
        dtypes: The dtypes of its operands, then of its results.

    Returns:
        The widest floating-point dtype of the operands that are multiplied, or, if none is
        floating-point, the widest dtype of all operands. For an operator without operands, the same
        for its results.

    Examples:
        >>> product = Rule.parse("(a,b)(b,c)->(a,c) {a=4, b=8 sum, c=2} linear {0} {1}")
        >>> arithmetic_dtype(product, ("bfloat16", "bfloat16", "float32"))
        'bfloat16'
        >>> arithmetic_dtype(product, ("bfloat16", "float32", "bfloat16"))
        'float32'
        >>> arithmetic_dtype(product, ("int8", "int8", "int32"))
        'int8'
    """
    n_operands = len(rule.operands)
    tensors, named = rule.operands, dtypes[:n_operands]
    if not n_operands:
        tensors, named = rule.results, dtypes
    floating = [i for i, dtype in enumerate(named) if "float" in dtype or "complex" in dtype]
    if floating and not all((i,) in rule.linear for i in range(n_operands)):
        most_dims = max(len(tensors[i]) for i in floating)
        floating = [i for i in floating if len(tensors[i]) == most_dims]
    return max((named[i] for i in floating or range(len(named))), key=itemsize)
