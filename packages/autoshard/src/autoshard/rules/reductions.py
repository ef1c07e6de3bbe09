"""Rules of reductions along dims."""

from __future__ import annotations

from collections.abc import Callable

from autoshard.base.checks import checked
from autoshard.graph.rule import Factor, Reduction, Rule
from autoshard.rules.factors import Shape, Shapes, aligned, check_dims


@checked
def reduction(
    shape: Shape, dims: tuple[int, ...], kind: Reduction = "sum", *, keepdims: bool = False
) -> Rule:
    """The rule that reduces `dims` of one operand; it is linear if the reduction is a sum."""
    check_dims(shape, dims)
    factors = tuple(
        Factor(size, "reduce", kind) if dim in dims else Factor(size)
        for dim, size in enumerate(shape)
    )
    operand = tuple((dim,) for dim in range(len(shape)))
    result = tuple(
        () if dim in dims else (dim,) for dim in range(len(shape)) if keepdims or dim not in dims
    )
    return Rule(factors, (operand,), (result,), ((0,),) if kind == "sum" else ())


def reducing(kind: Reduction) -> Callable[..., Rule]:
    """The table's entry for a reduction that some collective can finish (`reduction`)."""

    def rule(operand_shapes: Shapes, result_shapes: Shapes, *, dims: tuple[int, ...]) -> Rule:
        (operand,), (result,) = operand_shapes, result_shapes
        return reduction(operand, dims, kind, keepdims=len(result) == len(operand))

    return rule


def along(operand_shapes: Shapes, result_shapes: Shapes, *, dims: tuple[int, ...]) -> Rule:
    """An operator that needs all of `dims`: an arg-reduction, a softmax, XLA's general reduce.

    All operands have the same rank. A result has it, too, or lacks `dims`.
    """
    return aligned(operand_shapes, result_shapes, dims)


def linear_along(operand_shapes: Shapes, result_shapes: Shapes, *, dims: tuple[int, ...]) -> Rule:
    """Like `along`, and linear in the first operand: a cumulative sum, a Fourier transform."""
    return aligned(operand_shapes, result_shapes, dims, ((0,),))
