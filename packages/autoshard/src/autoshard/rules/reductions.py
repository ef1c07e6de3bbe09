"""Reductions along dims."""

from __future__ import annotations

from collections.abc import Callable

from autoshard.base.checks import checked
from autoshard.graph.rule import Factor, Reduction, Rule
from autoshard.rules.factors import Shape, Shapes, aligned, check_dims


@checked
def reduction(
    shape: Shape, dims: tuple[int, ...], kind: Reduction = "sum", *, keepdims: bool = False
) -> Rule:
    """Reduce `dims` of one operand; a sum is linear."""
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
    """The entry of a reduction that has a collective of its own."""

    def rule(operand_shapes: Shapes, result_shapes: Shapes, *, dims: tuple[int, ...]) -> Rule:
        (operand,), (result,) = operand_shapes, result_shapes
        return reduction(operand, dims, kind, keepdims=len(result) == len(operand))

    return rule


def along(operand_shapes: Shapes, result_shapes: Shapes, *, dims: tuple[int, ...]) -> Rule:
    """Anything that must see all of `dims`: an arg-reduction, a softmax, XLA's general reduce.

    Operands have the same rank, results have it too or lack `dims`.
    """
    return aligned(operand_shapes, result_shapes, dims)


def linear_along(operand_shapes: Shapes, result_shapes: Shapes, *, dims: tuple[int, ...]) -> Rule:
    """As `along`, linear in the first operand: a cumulative sum, a Fourier transform, a split."""
    return aligned(operand_shapes, result_shapes, dims, ((0,),))
