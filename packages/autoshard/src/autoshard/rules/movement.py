"""Rules of operators that only move elements, through which partial sums of any dtype pass."""

from __future__ import annotations

from autoshard.base.checks import checked
from autoshard.errors import RuleError
from autoshard.graph.rule import Factor, Rule
from autoshard.rules.factors import Linear, Shape, Shapes, aligned
from autoshard.rules.reshaping import reshape


@checked
def transpose(shape: Shape, permutation: tuple[int, ...]) -> Rule:
    """The rule of a transpose: result dim `d` is operand dim `permutation[d]`."""
    operand = tuple((dim,) for dim in range(len(shape)))
    result = tuple(operand[dim] for dim in permutation)
    return Rule(tuple(Factor(size) for size in shape), (operand,), (result,), ((0,),))


@checked
def broadcast(shape: Shape, result_shape: Shape, dims: tuple[int, ...]) -> Rule:
    """The rule of XLA's broadcast: operand dim `d` becomes result dim `dims[d]`; others are new."""
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
    """`transpose`, with the arguments of the table of rules."""
    return transpose(operand_shapes[0], permutation)


def broadcasted(operand_shapes: Shapes, result_shapes: Shapes, *, dims: tuple[int, ...]) -> Rule:
    """`broadcast`, with the arguments of the table of rules."""
    return broadcast(operand_shapes[0], result_shapes[0], dims)


def reshaped(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """`reshape`, with the arguments of the table of rules."""
    return reshape(operand_shapes[0], result_shapes[0])


def cut(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """A slice at a fixed offset, or at one in scalar operands; dims that it shortens stay whole.

    A slice with a stride shortens the dim, so this covers strides.
    """
    operand, *starts = operand_shapes
    dims = changed_dims(operand, result_shapes[0])
    return aligned(operand_shapes, result_shapes, dims, ((0,),), n_scalars=len(starts))


def update(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """The first operand with a slice replaced by the second, at the offset in scalar operands."""
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
    """A pad: elements added around the array or between its elements.

    Args:
        operand_shapes: The array, and the padding value unless it is a constant.
        result_shapes: One shape.
        dims: The padded dims; by default those whose size changes. (Padding may be negative on one
            side, so a padded dim can keep its size.)
        zeros: Whether the padding value is known to be 0, so that partial sums pass. If the value
            is an operand, they pass where it is a partial sum like the array.
    """
    operand, *value = operand_shapes
    padded = changed_dims(operand, result_shapes[0]) if dims is None else dims
    linear: Linear = ((0,),) if zeros else ((0, 1),) if value else ()
    return aligned(operand_shapes, result_shapes, padded, linear, n_scalars=len(value))


def concatenate(operand_shapes: Shapes, result_shapes: Shapes, *, dim: int) -> Rule:
    """The operands one after the other along `dim`."""
    return aligned(operand_shapes, result_shapes, (dim,), (tuple(range(len(operand_shapes))),))


def changed_dims(before: Shape, after: Shape) -> tuple[int, ...]:
    """The dims whose sizes differ between two shapes of the same rank."""
    return tuple(d for d, (n, m) in enumerate(zip(before, after, strict=True)) if n != m)
