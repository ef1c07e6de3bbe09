"""Rules of contractions: einsum, and XLA's dot_general."""

from __future__ import annotations

from autoshard.base.checks import checked
from autoshard.errors import RuleError
from autoshard.graph.rule import Rule
from autoshard.rules.factors import Dim, Factors, Shape, Shapes
from autoshard.rules.notation import labelled, words_of


@checked
def einsum(formula: str, *operand_shapes: Shape) -> Rule:
    """The rule of a contraction such as `"bik,bkj->bij"`, which is linear in each operand.

    Examples:
        >>> einsum("ik,kj->ij", (2, 3), (3, 5)).result_shapes
        ((2, 5),)
    """
    left, arrow, right = formula.partition("->")
    if not arrow:
        raise RuleError(f"a contraction's formula has an arrow, as 'ik,kj->ij'; got {formula!r}")
    words = words_of(left, len(operand_shapes), formula)
    sizes = {
        letter: size
        for word, shape in zip(words, operand_shapes, strict=True)
        for letter, size in zip(word, shape, strict=False)
    }
    if unknown := [letter for letter in right.strip() if letter not in sizes]:
        raise RuleError(
            f"a contraction's result has dims of its operands only; got {unknown} in {formula!r}"
        )
    result = tuple(sizes[letter] for letter in right.strip())
    linear = tuple((operand,) for operand in range(len(words)))
    return labelled(formula, operand_shapes, (result,), linear=linear)


def contraction(operand_shapes: Shapes, result_shapes: Shapes, *, formula: str) -> Rule:
    """`einsum`, with the arguments of the table of rules."""
    return einsum(formula, *operand_shapes)


def dot_general(
    operand_shapes: Shapes,
    result_shapes: Shapes,
    *,
    contracting: tuple[tuple[int, ...], tuple[int, ...]],
    batch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
) -> Rule:
    """XLA's dot_general: the result has the batch dims, then the other dims of left and right.

    Args:
        operand_shapes: Left and right.
        result_shapes: One shape.
        contracting: The dims of the left and of the right operand that are summed over, in pairs.
        batch: The dims of the left and of the right operand that the result has once, in pairs.

    Examples:
        >>> str(dot_general(((2, 3, 4), (2, 4, 5)), ((2, 3, 5),),
        ...                 contracting=((2,), (1,)), batch=((0,), (0,))))
        '(a,c,b)(a,b,d)->(a,c,d) {a=2, b=4 sum, c=3, d=5} linear {0} {1}'
    """
    left, right = operand_shapes
    factors = Factors()
    dims: tuple[dict[int, Dim], dict[int, Dim]] = ({}, {})
    for i, j in zip(*batch, strict=True):
        dims[0][i] = dims[1][j] = factors.parallel(left[i])
    result = [dims[0][i] for i in batch[0]]
    for i, j in zip(*contracting, strict=True):
        dims[0][i] = dims[1][j] = factors.reduced(left[i])
    for shape, known in zip((left, right), dims, strict=True):
        for d, n in enumerate(shape):
            if d not in known:
                known[d] = factors.parallel(n)
                result.append(known[d])
    operands = [tuple(known[d] for d in range(len(known))) for known in dims]
    return factors.rule(operands, [tuple(result)], ((0,), (1,)))
