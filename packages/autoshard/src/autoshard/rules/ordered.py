"""Rules of operators that need a dim in order, or a whole matrix; these dims stay whole."""

from __future__ import annotations

from autoshard.graph.rule import Rule
from autoshard.rules.factors import Factors, Shapes
from autoshard.rules.reductions import along, linear_along


def one_dim(operand_shapes: Shapes, result_shapes: Shapes, *, dim: int) -> Rule:
    """A sort of any number of arrays, a top-k, a cumulative maximum: `dim` stays whole."""
    return along(operand_shapes, result_shapes, dims=(dim,))


def linear_one_dim(operand_shapes: Shapes, result_shapes: Shapes, *, dim: int) -> Rule:
    """A cumulative sum, or a split into several results: `dim` stays whole, partial sums pass."""
    return linear_along(operand_shapes, result_shapes, dims=(dim,))


def factorization(operand_shapes: Shapes, result_shapes: Shapes, *, n_dims: int = 2) -> Rule:
    """A decomposition of matrices, or another problem in linear algebra: many, side by side.

    Only the batch dims are parallel. Every operand and every result begins with them.

    Args:
        operand_shapes: In the first, the batch dims are followed by `n_dims` others.
        result_shapes: Shapes of the results.
        n_dims: How many dims the first operand of one problem has.
    """
    factors = Factors()
    batch = tuple(map(factors.parallel, operand_shapes[0][: len(operand_shapes[0]) - n_dims]))

    def dims(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        return (*batch, *(factors.whole(n) for n in shape[len(batch) :]))

    return factors.rule(list(map(dims, operand_shapes)), list(map(dims, result_shapes)))


def triangular_solve(
    operand_shapes: Shapes, result_shapes: Shapes, *, left_side: bool = True
) -> Rule:
    """`a x = b` for x, or `x a = b`: batch dims and the right-hand sides are parallel.

    Args:
        operand_shapes: `a` (..., n, n) and `b` (..., n, m), or (..., m, n) if not `left_side`.
        result_shapes: The shape of `b`.
        left_side: Whether `a` is on the left of `x`.
    """
    factors = Factors()
    (*batch_sizes, _, _), (*_, rows, columns) = operand_shapes
    batch = tuple(factors.parallel(n) for n in batch_sizes)
    n = rows if left_side else columns
    matrix = (*batch, factors.whole(n), factors.whole(n))
    solved = factors.whole(n)
    sides = factors.parallel(columns if left_side else rows)
    right = (*batch, solved, sides) if left_side else (*batch, sides, solved)
    return factors.rule([matrix, right], [right], ((1,),))
