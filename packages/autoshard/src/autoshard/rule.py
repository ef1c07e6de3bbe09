"""What an operator is, for sharding: its loop indices (factors) and which dims each one runs over.

Every parallel algorithm of an operator follows from assigning mesh axes to factors (Alpa 4.1: "to
parallelize it, we can parallelize the loop i, loop j, loop k, or combinations"), so rules are data.

Example: `c[b,i,j] = sum_k a[b,i,k] * b[b,k,j]` has factors b, i, j (parallel) and k (reduce); its
operand dims are ((b,), (i,), (k,)) and ((b,), (k,), (j,)), its result dims ((b,), (i,), (j,)).
Merging (2, 3) to (6,) has factors of sizes 2 and 3; the result's only dim is (0, 1), major first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from autoshard.errors import RuleError

Kind = Literal["parallel", "reduce", "whole"]
Reduction = Literal["sum", "max", "min"]
Dims = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Factor:
    """One loop index of an operator."""

    size: int
    kind: Kind = "parallel"
    """`whole`: no device may see only a part of it (a sort, a convolution's window)."""
    reduction: Reduction = "sum"
    """Of a `reduce` factor: how the results of its parts combine."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The factors of an operator and how its operands' and results' dims are made of them."""

    factors: tuple[Factor, ...]
    operands: tuple[Dims, ...]
    """Per operand, per dim: its factors, major to minor; () is a dim of size 1 (broadcast)."""
    results: tuple[Dims, ...]
    linear: tuple[tuple[int, ...], ...] = ()
    """Each entry is a set of operands in which the operator is jointly linear. If exactly these are
    partial sums over an axis and all others whole on it, every result is a partial sum over it:
    add ((0, 1),), mul ((0,), (1,)), neg ((0,),), tanh ()."""

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise RuleError(problem)

    @property
    def operand_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes that the operands must have."""
        return tuple(self._shape(dims) for dims in self.operands)

    @property
    def result_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes that the results must have."""
        return tuple(self._shape(dims) for dims in self.results)

    def _shape(self, dims: Dims) -> tuple[int, ...]:
        return tuple(math.prod(self.factors[f].size for f in dim) for dim in dims)


def _problems(rule: Rule) -> Iterator[str]:
    """Each reason why a rule cannot be right, as a sentence."""
    for dims in rule.operands + rule.results:
        used = [factor for dim in dims for factor in dim]
        if any(not 0 <= factor < len(rule.factors) for factor in used):
            yield f"dims name factors by index; got {dims} with {len(rule.factors)} factors"
            return
        if twice := [f for f in used if used.count(f) > 1 and rule.factors[f].kind != "whole"]:
            yield (
                "a factor that occurs twice in one tensor is 'whole' (its diagonal is not a "
                f"shard); got {dims} where factor {twice[0]} is {rule.factors[twice[0]].kind!r}"
            )
    for index, factor in enumerate(rule.factors):
        in_operands = any(index in dim for dims in rule.operands for dim in dims)
        missing = [r for r, dims in enumerate(rule.results) if not any(index in d for d in dims)]
        if factor.kind == "parallel" and in_operands and missing:
            yield (
                "a factor that an operand has and a result lacks is 'reduce' or 'whole'; "
                f"factor {index} is 'parallel' and not in result {missing[0]}"
            )
        if factor.kind == "reduce" and not in_operands:
            yield f"a 'reduce' factor runs over some operand; factor {index} is in none"
    reductions = {factor.reduction for factor in rule.factors if factor.kind == "reduce"}
    if len(reductions) > 1:
        yield f"the reduce factors of a rule reduce alike; got {sorted(reductions)}"
    if rule.linear and reductions - {"sum"}:
        yield f"only sums are linear; got linear={rule.linear} with a {max(reductions)!r} factor"
    for group in rule.linear:
        if not group or any(not 0 <= operand < len(rule.operands) for operand in group):
            yield f"linear names operands; got {group} with {len(rule.operands)} operands"


def labelled(
    formula: str,
    operand_shapes: tuple[tuple[int, ...], ...],
    result_shapes: tuple[tuple[int, ...], ...],
    *,
    whole: str = "",
    reduction: Reduction = "sum",
    linear: tuple[tuple[int, ...], ...] = (),
) -> Rule:
    """A rule in einsum's notation, one letter a dim; several results are separated by commas.

    A letter that some result lacks is a reduce factor, every other one is parallel; the letters in
    `whole` are whole. A dim of size 1 whose letter has another size elsewhere is broadcast. An
    empty side of the arrow means no operands (or no results).

    Examples:
        >>> embedding = labelled("vd,bt->btd", ((50, 8), (2, 4)), ((2, 4, 8),), linear=((0,),))
        >>> [factor.kind for factor in embedding.factors]
        ['reduce', 'parallel', 'parallel', 'parallel']
        >>> cumsum = labelled("it->it", ((3, 5),), ((3, 5),), whole="t", linear=((0,),))
        >>> [factor.kind for factor in cumsum.factors]
        ['parallel', 'whole']
    """
    left, _, right = formula.partition("->")
    operands = _words(left, len(operand_shapes), formula)
    results = _words(right, len(result_shapes), formula)
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


def _words(side: str, n: int, formula: str) -> list[str]:
    words = [word.strip() for word in side.split(",")] if side.strip() or n else []
    if len(words) != n:
        raise RuleError(f"{formula!r} names {len(words)} tensors on one side; got {n} shapes")
    return words


def einsum(formula: str, *operand_shapes: tuple[int, ...]) -> Rule:
    """A contraction such as `"bik,bkj->bij"`: linear in each operand.

    Examples:
        >>> einsum("ik,kj->ij", (2, 3), (3, 5)).result_shapes
        ((2, 5),)
    """
    left, _, right = formula.partition("->")
    words = _words(left, len(operand_shapes), formula)
    sizes = {
        letter: size
        for word, shape in zip(words, operand_shapes, strict=True)
        for letter, size in zip(word, shape, strict=False)
    }
    if unknown := [letter for letter in right.strip() if letter not in sizes]:
        raise RuleError(
            f"a contraction's result has dims of its operands; got {unknown} in {formula!r}"
        )
    result = tuple(sizes[letter] for letter in right.strip())
    linear = tuple((operand,) for operand in range(len(words)))
    return labelled(formula, operand_shapes, (result,), linear=linear)


def elementwise(
    operand_shapes: tuple[tuple[int, ...], ...],
    result_shape: tuple[int, ...],
    linear: tuple[tuple[int, ...], ...] = (),
) -> Rule:
    """An operator on corresponding elements; operands broadcast as in numpy.

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
    result = tuple(
        (factor_of[dim],) if dim in factor_of else () for dim in range(len(result_shape))
    )
    factors = tuple(Factor(result_shape[dim]) for dim in factor_of)
    return Rule(factors, tuple(operands), (result,), linear)


def whole(
    operand_shapes: tuple[tuple[int, ...], ...], result_shapes: tuple[tuple[int, ...], ...]
) -> Rule:
    """An operator that must see all of every operand: the fallback for what has no rule."""
    sizes = [size for shape in operand_shapes + result_shapes for size in shape if size != 1]
    numbers = iter(range(len(sizes)))

    def dims(shape: tuple[int, ...]) -> Dims:
        return tuple(() if size == 1 else (next(numbers),) for size in shape)

    return Rule(
        tuple(Factor(size, "whole") for size in sizes),
        tuple(dims(shape) for shape in operand_shapes),
        tuple(dims(shape) for shape in result_shapes),
    )


def transpose(shape: tuple[int, ...], permutation: tuple[int, ...]) -> Rule:
    """Result dim `d` is operand dim `permutation[d]`."""
    operand = tuple((dim,) for dim in range(len(shape)))
    result = tuple(operand[dim] for dim in permutation)
    return Rule(tuple(Factor(size) for size in shape), (operand,), (result,), ((0,),))


def broadcast(shape: tuple[int, ...], result_shape: tuple[int, ...], dims: tuple[int, ...]) -> Rule:
    """Operand dim `d` becomes result dim `dims[d]`; the result's other dims are new (XLA)."""
    for dim, size in zip(dims, shape, strict=True):
        if size not in (1, result_shape[dim]):
            raise RuleError(f"shape {shape} at dims {dims} does not broadcast to {result_shape}")
    operand = tuple(
        (dim,) if size == result_shape[dim] else () for dim, size in zip(dims, shape, strict=True)
    )
    result = tuple((dim,) for dim in range(len(result_shape)))
    return Rule(tuple(Factor(size) for size in result_shape), (operand,), (result,), ((0,),))


def reduction(
    shape: tuple[int, ...],
    dims: tuple[int, ...],
    kind: Reduction = "sum",
    *,
    keepdims: bool = False,
) -> Rule:
    """Reduce `dims` of one operand; a sum is linear."""
    factors = tuple(
        Factor(size, "reduce", kind) if dim in dims else Factor(size)
        for dim, size in enumerate(shape)
    )
    operand = tuple((dim,) for dim in range(len(shape)))
    result = tuple(
        () if dim in dims else (dim,) for dim in range(len(shape)) if keepdims or dim not in dims
    )
    return Rule(factors, (operand,), (result,), ((0,),) if kind == "sum" else ())


def reshape(shape: tuple[int, ...], result_shape: tuple[int, ...]) -> Rule:
    """Regroup the elements in row-major order; the factors are both shapes' common refinement.

    Where two dims share only a common divisor, the divisor is their major factor and what is left
    of the group of dims is whole.

    Examples:
        >>> rule = reshape((2, 12), (2, 3, 4))
        >>> rule.operands, rule.results
        ((((0,), (1, 2)),), (((0,), (1,), (2,)),))
    """
    if math.prod(shape) != math.prod(result_shape):
        raise RuleError(f"a reshape keeps the number of elements; got {shape} to {result_shape}")
    if 0 in shape:
        return whole((shape,), (result_shape,))
    factors: list[Factor] = []
    sides: tuple[list[list[int]], ...] = tuple([[] for _ in s] for s in (shape, result_shape))
    pending = [
        [(dim, size) for dim, size in enumerate(s) if size != 1] for s in (shape, result_shape)
    ]

    def emit(size: int, kind: Kind, *places: tuple[int, int]) -> None:
        if size != 1:
            for side, dim in places:
                sides[side][dim].append(len(factors))
            factors.append(Factor(size, kind))

    while pending[0]:
        (i, a), (j, b) = pending[0].pop(0), pending[1].pop(0)
        common = math.gcd(a, b)
        emit(common, "parallel", (0, i), (1, j))
        a, b = a // common, b // common
        if a == 1 or b == 1:
            if a > 1:
                pending[0].insert(0, (i, a))
            if b > 1:
                pending[1].insert(0, (j, b))
            continue
        emit(a, "whole", (0, i))
        emit(b, "whole", (1, j))
        while a != b:
            if a < b:
                i, size = pending[0].pop(0)
                emit(size, "whole", (0, i))
                a *= size
            else:
                j, size = pending[1].pop(0)
                emit(size, "whole", (1, j))
                b *= size
    dims = [tuple(tuple(dim) for dim in side) for side in sides]
    return Rule(tuple(factors), (dims[0],), (dims[1],), ((0,),))
