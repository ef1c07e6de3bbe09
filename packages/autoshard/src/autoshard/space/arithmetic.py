"""At which dtype's rate an operator computes: that of the operands which it multiplies.

A product of bfloat16 matrices runs at bfloat16's rate whatever it is summed in and returned as:
that is what the units do with it, and no step of it is in the wider dtype of the result. So results
do not count. Of operands of several dtypes the narrower ones are converted first, so the widest
floating-point one decides: a product of bfloat16 weights and float32 activations is float32's,
one of int8 weights and bfloat16 activations bfloat16's. Integers alone run at integers' rate.

An operator that is linear in each operand alone (a product, a convolution) multiplies them all. Of
others those with fewer dims than the widest-ranked are scales, shifts and statistics, such as the
float32 normalisers that the gradient of flash attention reads: applied to rows, and not multiplied
as matrices are.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.base.checks import checked
from autoshard.graph.graph_fields import itemsize
from autoshard.graph.rule import Rule


@checked
def arithmetic_dtype(rule: Rule, dtypes: Sequence[str]) -> str:
    """The dtype at whose rate an operator runs; see above.

    Args:
        rule: Of the operator.
        dtypes: Of its operands, then of its results.

    Returns:
        The widest floating-point dtype of the operands that are multiplied, or else the widest of
        all operands; of an operator that has none, the same of its results.

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
