"""Operators that only move elements: sums of any kind of number pass through them."""

from __future__ import annotations

from autoshard.base.checks import checked
from autoshard.errors import RuleError
from autoshard.graph.rule import Factor, Rule
from autoshard.rules.factors import Linear, Shape, Shapes, aligned
from autoshard.rules.reshaping import reshape


@checked
def transpose(shape: Shape, permutation: tuple[int, ...]) -> Rule:
    """Result dim `d` is operand dim `permutation[d]`."""
    operand = tuple((dim,) for dim in range(len(shape)))
    result = tuple(operand[dim] for dim in permutation)
    return Rule(tuple(Factor(size) for size in shape), (operand,), (result,), ((0,),))


@checked
def broadcast(shape: Shape, result_shape: Shape, dims: tuple[int, ...]) -> Rule:
    """Operand dim `d` becomes result dim `dims[d]`; the result's other dims are new (XLA)."""
    for dim, size in zip(dims, shape, strict=True):
        if size not in (1, result_shape[dim]):
            raise RuleError(f"shape {shape} at dims {dims} does not broadcast to {result_shape}")
    operand = tuple(
        (dim,) if size == result_shape[dim] else () for dim, size in zip(dims, shape, strict=True)
    )
    result = tuple((dim,) for dim in range(len(result_shape)))
    return Rule(tuple(Factor(size) for size in result_shape), (operand,), (result,), ((0,),))


def transposed(
    operand_shapes: Shapes, result_shapes: Shapes, *, permutation: tuple[int, ...]
) -> Rule:
    """`transpose` as the table calls it."""
    return transpose(operand_shapes[0], permutation)


def broadcasted(operand_shapes: Shapes, result_shapes: Shapes, *, dims: tuple[int, ...]) -> Rule:
    """`broadcast` as the table calls it."""
    return broadcast(operand_shapes[0], result_shapes[0], dims)


def reshaped(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """`reshape` as the table calls it."""
    return reshape(operand_shapes[0], result_shapes[0])


def cut(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """A slice, at fixed places or at scalar operands: dims that are not taken whole stay whole.

    A slice that steps through a dim takes less than all of it, so this covers strides.
    """
    operand, *starts = operand_shapes
    dims = changed_dims(operand, result_shapes[0])
    return aligned(operand_shapes, result_shapes, dims, ((0,),), n_scalars=len(starts))


def update(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """A slice of the first operand replaced by the second, at scalar operands."""
    operand, part, *starts = operand_shapes
    dims = changed_dims(operand, part)
    return aligned(operand_shapes, result_shapes, dims, ((0, 1),), n_scalars=len(starts))


def pad(
    operand_shapes: Shapes,
    result_shapes: Shapes,
    *,
    dims: tuple[int, ...] | None = None,
    zeros: bool = False,
) -> Rule:
    """Elements added around or between; the value is a scalar operand, if it is one.

    Args:
        operand_shapes: The array, and the value unless it is a constant.
        result_shapes: One.
        dims: Those that are padded; by default those whose size changes (padding may be negative
            on one side, so a padded dim can keep its size).
        zeros: Whether the value is known to be 0, so that sums may pass. With the value as an
            operand they pass if it is a partial sum like the array.
    """
    operand, *value = operand_shapes
    padded = changed_dims(operand, result_shapes[0]) if dims is None else dims
    linear: Linear = ((0,),) if zeros else ((0, 1),) if value else ()
    return aligned(operand_shapes, result_shapes, padded, linear, n_scalars=len(value))


def concatenate(operand_shapes: Shapes, result_shapes: Shapes, *, dim: int) -> Rule:
    """The operands one after the other along `dim`."""
    return aligned(operand_shapes, result_shapes, (dim,), (tuple(range(len(operand_shapes))),))


def changed_dims(before: Shape, after: Shape) -> tuple[int, ...]:
    """The dims whose sizes differ."""
    return tuple(d for d, (n, m) in enumerate(zip(before, after, strict=True)) if n != m)
