"""Rules in einsum's notation: one letter for each dim."""

from __future__ import annotations

from autoshard.base.checks import checked
from autoshard.errors import RuleError
from autoshard.graph.rule import Dims, Factor, Kind, Reduction, Rule


@checked
def labelled(
    formula: str,
    operand_shapes: tuple[tuple[int, ...], ...],
    result_shapes: tuple[tuple[int, ...], ...],
    *,
    whole: str = "",
    reduction: Reduction = "sum",
    linear: tuple[tuple[int, ...], ...] = (),
) -> Rule:
    """A rule in einsum's notation, one letter for each dim; commas separate several results.

    A letter of some operand that some result lacks is a reduce factor, a letter in `whole` is a
    whole one, and every other letter is parallel. A dim of size 1 whose letter has another size
    elsewhere is broadcast. An empty side of the arrow means no operands, or no results.

    Examples:
        >>> embedding = labelled("vd,bt->btd", ((50, 8), (2, 4)), ((2, 4, 8),), linear=((0,),))
        >>> [factor.kind for factor in embedding.factors]
        ['reduce', 'parallel', 'parallel', 'parallel']
        >>> cumsum = labelled("it->it", ((3, 5),), ((3, 5),), whole="t", linear=((0,),))
        >>> [factor.kind for factor in cumsum.factors]
        ['parallel', 'whole']
    """
    left, _, right = formula.partition("->")
    operands = words_of(left, len(operand_shapes), formula)
    results = words_of(right, len(result_shapes), formula)
    sizes: dict[str, int] = {}
    for word, shape in zip(operands + results, operand_shapes + result_shapes, strict=True):
        if len(word) != len(shape):
            raise RuleError(f"one letter a dim; got {word!r} for shape {shape} in {formula!r}")
        for letter, size in zip(word, shape, strict=True):
            if sizes.setdefault(letter, size) not in (size, 1) and size != 1:
                raise RuleError(
                    f"a letter has one size (or 1); {letter!r} has {sizes[letter]} and {size} "
                    f"in {formula!r}"
                )
            sizes[letter] = size if sizes[letter] == 1 else sizes[letter]
    letters = [letter for letter in sizes if sizes[letter] != 1]
    factors = []
    for letter in letters:
        lacked = any(letter in word for word in operands) and any(
            letter not in word for word in results
        )
        kind: Kind = "whole" if letter in whole else "reduce" if lacked else "parallel"
        factors.append(
            Factor(sizes[letter], kind, reduction)
            if kind == "reduce"
            else Factor(sizes[letter], kind)
        )

    def dims(word: str, shape: tuple[int, ...]) -> Dims:
        return tuple(
            () if size == 1 else (letters.index(letter),)
            for letter, size in zip(word, shape, strict=True)
        )

    return Rule(
        tuple(factors),
        tuple(dims(word, shape) for word, shape in zip(operands, operand_shapes, strict=True)),
        tuple(dims(word, shape) for word, shape in zip(results, result_shapes, strict=True)),
        linear,
    )


def words_of(side: str, n: int, formula: str) -> list[str]:
    """The letters of each tensor on one side of a formula, which must have `n` tensors."""
    words = [word.strip() for word in side.split(",")] if side.strip() or n else []
    if len(words) != n:
        raise RuleError(f"{formula!r} names {len(words)} tensors on one side; got {n} shapes")
    return words


def letters_of(shape: tuple[int, ...]) -> str:
    """A letter for each dim of a shape, none of them d or v."""
    return "abcefghijklmnopqrstuwxyz"[: len(shape)]
