"""Floating-point operations of the operator kinds of the table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from autoshard.base.checks import checked
from autoshard.rules import rule_of
from autoshard.rules.factors import Shapes


@checked
def flops_of(kind: str, operand_shapes: Shapes, result_shapes: Shapes, **attributes: Any) -> float:
    """FLOP of a whole operator: 2 for each multiply-add of a product, else 1 for each element.

    The elements are those of the largest operand or result.

    Args:
        kind: As in `RULES`; an unknown kind counts 1 for each element.
        operand_shapes: Shapes of all operands, in order.
        result_shapes: Shapes of all results, in order.
        attributes: Those of the kind's rule (`rule_of`).

    Examples:
        >>> flops_of("einsum", ((4, 8), (8, 16)), ((4, 16),), formula="ik,kj->ij") == 2 * 4 * 8 * 16
        True
        >>> flops_of("add", ((4, 8), (8,)), ((4, 8),))
        32.0
    """
    if kind in _FLOPS:
        return float(_FLOPS[kind](operand_shapes, result_shapes, attributes))
    return float(max(map(math.prod, operand_shapes + result_shapes), default=0))


def _product(kind: str) -> Callable[[Shapes, Shapes, dict[str, Any]], int]:
    """A multiply-add for each combination of the loop indices."""

    def flops(operand_shapes: Shapes, result_shapes: Shapes, attributes: dict[str, Any]) -> int:
        rule = rule_of(kind, operand_shapes, result_shapes, **attributes)
        return 2 * math.prod(factor.size for factor in rule.factors)

    return flops


def _convolution(
    operand_shapes: Shapes, result_shapes: Shapes, attributes: dict[str, Any]
) -> float:
    """For each element of the forward result, a multiply-add over a kernel's channels and window.

    The gradients do the same products, and sum over other indices.
    """
    tensors = list(operand_shapes)
    computed = ("data", "kernel", "result").index(attributes.get("computes", "result"))
    tensors.insert(computed, result_shapes[0])
    _, kernel, result = tensors
    outputs: int = kernel[attributes["kernel"][0]]
    return 2 * math.prod(result) * math.prod(kernel) / max(1, outputs)


def _attention(operand_shapes: Shapes, result_shapes: Shapes, attributes: dict[str, Any]) -> int:
    """Scores over the queries' width, then sums of values; a causal mask saves nothing."""
    (b, h, t, d), (_, _, s, _), (*_, e) = operand_shapes
    return 2 * b * h * t * s * (d + e)


def _triangular_solve(
    operand_shapes: Shapes, result_shapes: Shapes, attributes: dict[str, Any]
) -> int:
    """Half a product of the matrix with each right-hand side."""
    n: int = operand_shapes[0][-1]
    return n * math.prod(operand_shapes[1])


def _per_matrix(of_one: Callable[[int, int], float]) -> Callable[..., float]:
    """The FLOP of a decomposition, given those of one matrix of m rows and n columns, m ≥ n."""

    def flops(operand_shapes: Shapes, result_shapes: Shapes, attributes: dict[str, Any]) -> float:
        *batch, rows, columns = operand_shapes[0]
        return math.prod(batch) * of_one(max(rows, columns), min(rows, columns))

    return flops


_FLOPS: dict[str, Callable[[Shapes, Shapes, dict[str, Any]], float]] = {
    "einsum": _product("einsum"),
    "dot_general": _product("dot_general"),
    "convolution": _convolution,
    "attention": _attention,
    "triangular_solve": _triangular_solve,
    # Golub and Van Loan, Matrix Computations: 4.2.5, 3.2.10, 5.2.2, 8.3.5, 7.5.6 and figure 8.6.1
    "cholesky": _per_matrix(lambda m, n: n**3 / 3),
    "lu": _per_matrix(lambda m, n: n**2 * (m - n / 3)),
    "qr": _per_matrix(lambda m, n: 2 * n**2 * (m - n / 3)),
    "eigh": _per_matrix(lambda m, n: 9.0 * n**3),
    **dict.fromkeys(("eig", "schur"), _per_matrix(lambda m, n: 25.0 * n**3)),
    "svd": _per_matrix(lambda m, n: 4.0 * m**2 * n + 8 * m * n**2 + 9 * n**3),
}
