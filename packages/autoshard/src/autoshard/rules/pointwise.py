"""Rules of operators on corresponding elements, with the operands in which they are linear."""

from __future__ import annotations

from autoshard.base.checks import checked
from autoshard.errors import RuleError
from autoshard.graph.rule import Dims, Factor, Rule
from autoshard.rules.factors import Linear, Shape, Shapes
from autoshard.rules.fallback import whole


@checked
def elementwise(
    operand_shapes: Shapes, result_shape: Shape, linear: Linear = (), *, n_results: int = 1
) -> Rule:
    """The rule of an operator on corresponding elements; operands broadcast as in numpy.

    Examples:
        >>> elementwise(((4, 8), (8,)), (4, 8), linear=((0, 1),)).operands
        (((0,), (1,)), ((1,),))
    """
    factor_of: dict[int, int] = {}
    for dim, size in enumerate(result_shape):
        if size != 1:
            factor_of[dim] = len(factor_of)
    operands = []
    for shape in operand_shapes:
        skipped = len(result_shape) - len(shape)
        aligned = tuple(zip(shape, result_shape[max(skipped, 0) :], strict=False))
        if skipped < 0 or any(size not in (1, expected) for size, expected in aligned):
            raise RuleError(f"operand shape {shape} does not broadcast to {result_shape}")
        operands.append(
            tuple(
                () if size == 1 else (factor_of[skipped + dim],) for dim, size in enumerate(shape)
            )
        )
    result: Dims = tuple(
        (factor_of[dim],) if dim in factor_of else () for dim in range(len(result_shape))
    )
    factors = tuple(Factor(result_shape[dim]) for dim in factor_of)
    return Rule(factors, tuple(operands), (result,) * n_results, linear)


def nonlinear(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """Any function of corresponding elements, with one result or several."""
    return elementwise(operand_shapes, result_shapes[0], n_results=len(result_shapes))


def jointly_linear(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """A weighted sum of all operands: partial sums pass if all operands are partial alike."""
    every = tuple(range(len(operand_shapes)))
    return elementwise(operand_shapes, result_shapes[0], (every,), n_results=len(result_shapes))


def linear_in_each(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """A product: partial sums pass in any one operand while the others are complete."""
    each = tuple((operand,) for operand in range(len(operand_shapes)))
    return elementwise(operand_shapes, result_shapes[0], each)


def linear_in_first(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """The first operand times a function of the others: a quotient, a derivative."""
    return elementwise(operand_shapes, result_shapes[0], ((0,),))


def select(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """A choice by element: the first operand says which of the others an element comes from."""
    cases = tuple(range(1, len(operand_shapes)))
    return elementwise(operand_shapes, result_shapes[0], (cases,))


def power(operand_shapes: Shapes, result_shapes: Shapes, *, exponent: int) -> Rule:
    """`x ** exponent` with a constant exponent: linear only if that is 1."""
    return elementwise(operand_shapes, result_shapes[0], ((0,),) if exponent == 1 else ())


def convert(operand_shapes: Shapes, result_shapes: Shapes, *, exact: bool) -> Rule:
    """A change of dtype.

    Args:
        operand_shapes: One shape.
        result_shapes: The same shape.
        exact: Whether the new dtype holds every value of the old one. If not, the addends of a
            partial sum would be rounded one by one, so partial sums do not pass.
    """
    return elementwise(operand_shapes, result_shapes[0], ((0,),) if exact else ())


def bitcast(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """The same bits as another dtype; if the width changes, elements are regrouped: stays whole."""
    if operand_shapes == result_shapes:
        return nonlinear(operand_shapes, result_shapes)
    return whole(operand_shapes, result_shapes)


# fmt: off
NONLINEAR = (
    "abs", "acos", "acosh", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e",
    "bessel_i1e", "cbrt", "ceil", "clamp", "clz", "cos", "cosh", "digamma", "eq", "erf", "erf_inv",
    "erfc", "exp", "exp2", "expm1", "floor", "ge", "gelu", "gt", "igamma", "igamma_grad_a",
    "igammac", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "ne",
    "nextafter", "not", "or", "polygamma", "population_count", "pow", "reciprocal",
    "reduce_precision", "regularized_incomplete_beta", "relu", "rem", "round", "rsqrt",
    "shift_left", "shift_right_arithmetic", "shift_right_logical", "sigmoid", "sign", "silu", "sin",
    "sinh", "softplus", "sqrt", "square", "tan", "tanh", "threefry2x32", "xor", "zeta",
)
"""Elementwise kinds that pass no partial sum; their operands broadcast."""
# fmt: on
