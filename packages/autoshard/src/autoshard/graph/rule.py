"""All that sharding needs to know of an operator: its loop indices (factors), and their dims.

Every parallel algorithm of an operator follows from assigning mesh axes to factors (Alpa 4.1: "to
parallelize it, we can parallelize the loop i, loop j, loop k, or combinations"), so rules are data.

Example: `c[b,i,j] = sum_k a[b,i,k] * b[b,k,j]` has factors b, i, j (parallel) and k (reduce); its
operand dims are ((b,), (i,), (k,)) and ((b,), (k,), (j,)), its result dims ((b,), (i,), (j,)).
A reshape that merges (2, 3) to (6,) has factors of sizes 2 and 3; the only dim of its result is
(0, 1), major factor first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, Self, cast, get_args

from autoshard.base.record import LEFT_OUT_IF_DEFAULT
from autoshard.errors import RuleError

Kind = Literal["parallel", "reduce", "whole"]
Reduction = Literal["sum", "max", "min", "product"]
"""How the elements along a factor that is not in the result become one."""

Dims = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Factor:
    """One loop index of an operator."""

    size: int
    kind: Kind = "parallel"
    """`whole`: every device has to run over all of it (a sort, a convolution's window)."""
    reduction: Reduction = "sum"
    """For a `reduce` factor: how the results of its parts are combined."""
    rises: bool = field(default=False, metadata={LEFT_OUT_IF_DEFAULT: True})
    """Whether index i takes i + 1 times the work of the first one, as a row under a causal mask."""
    halves: bool = field(default=False, metadata={LEFT_OUT_IF_DEFAULT: True})
    """Whether a device may run half of its part of this factor over the opposite part of one that
    rises, the last part instead of the first, so that all devices have as much work."""

    def share(self, n: int) -> float:
        """The fraction of the work that the busiest of `n` parts has: of the last, if it rises.

        Examples:
            >>> Factor(8).share(4), Factor(10).share(4)
            (0.25, 0.3)
            >>> round(Factor(1000, rises=True).share(4), 4)  # 7 / 16 for many indices
            0.4373
        """
        part = -(-self.size // n)
        if not self.rises:
            return part / self.size if self.size else 1.0
        return part * (2 * self.size - part + 1) / (self.size * (self.size + 1))

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 0:
            raise RuleError(f"the size of a factor is an integer >= 0; got {self.size!r}")
        if self.kind not in get_args(Kind) or self.reduction not in get_args(Reduction):
            raise RuleError(
                f"a factor is one of {get_args(Kind)} and reduces by one of {get_args(Reduction)}; "
                f"got {self.kind!r} and {self.reduction!r}"
            )
        if self.kind == "whole" and (self.rises or self.halves):
            raise RuleError(
                "the work of a 'whole' factor is not split, so it does not rise and has no halves"
            )
        if self.rises and self.halves:
            raise RuleError("a factor that rises is balanced by halves of another, not its own")
        if self.kind != "reduce" and self.reduction != "sum":
            raise RuleError(
                "only a 'reduce' factor has a reduction; "
                f"got kind={self.kind!r} and reduction={self.reduction!r}"
            )


@dataclass(frozen=True, slots=True)
class Rule:
    """The factors of an operator, and which of them make up each dim of its operands and results.

    If a result lacks a parallel factor, it does not depend on it: all parts of the factor compute
    the same result. If an operand lacks a reduce factor, it takes part in the result of each part
    where the operator multiplies by it, and counts once where it is a summand, such as the target
    of a scatter-add.

    Prints in einsum's notation, one letter for each factor, with the factors' sizes and kinds.

    Examples:
        >>> rule = Rule.parse("(a,b)(b,c)->(a,c) {a=4, b=8 sum, c=2} linear {0} {1}")
        >>> rule.factors[1] == Factor(8, "reduce"), rule.operands[1], rule.result_shapes
        (True, ((1,), (2,)), ((4, 2),))
        >>> str(Rule.parse("(ab,1)->(a,b) {a=2, b=3}"))
        '(ab,1)->(a,b) {a=2, b=3}'
    """

    factors: tuple[Factor, ...]
    operands: tuple[Dims, ...]
    """For each operand and dim: its factors, major to minor; () is a dim of size 1 (broadcast)."""
    results: tuple[Dims, ...]
    linear: tuple[tuple[int, ...], ...] = ()
    """Each entry is a set of operands in which the operator is jointly linear: if exactly these are
    partial sums over an axis, and all others are not split along it, every result is a partial sum
    over it. add: ((0, 1),); mul: ((0,), (1,)); neg: ((0,),); tanh: ()."""
    rings: tuple[tuple[int, int], ...] = field(default=(), metadata={LEFT_OUT_IF_DEFAULT: True})
    """Each entry is a factor, and a `whole` one that an axis may split together with it: the parts
    of the second then go round along the axis, so that each device has every part once (rows and
    keys in ring attention; Liu et al., arXiv 2310.01889)."""

    def __post_init__(self) -> None:
        try:
            for problem in _problems(self):
                raise RuleError(problem)
        except (AttributeError, TypeError) as error:
            raise RuleError(
                "a rule has a tuple of Factors, and for each operand and result a tuple of dims, "
                f"each a tuple of numbers of factors; got factors={self.factors!r}, "
                f"operands={self.operands!r}, results={self.results!r}, linear={self.linear!r}, "
                f"rings={self.rings!r}"
            ) from error

    @property
    def operand_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes that the operands must have."""
        return tuple(self._shape(dims) for dims in self.operands)

    @property
    def result_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes that the results must have."""
        return tuple(self._shape(dims) for dims in self.results)

    @property
    def sends(self) -> bool:
        """Whether some strategy may send something while the operator runs."""
        return bool(self.rings) or any(factor.halves for factor in self.factors)

    def _shape(self, dims: Dims) -> tuple[int, ...]:
        return tuple(math.prod(self.factors[f].size for f in dim) for dim in dims)

    def without(self, constants: Collection[int]) -> Rule:
        """The rule with these operands held constant, as literals of the program are.

        Every device has the whole constant, so the factors that the constant spans become whole. An
        operator that is jointly linear in a set with a constant in it is only affine in the rest of
        the set, so partial sums do not pass: `x + 1` of partial sums would add one per device.

        Examples:
            >>> str(Rule.parse("(a)()->(a) {a=4} linear {0,1}").without({1}))
            '(a)->(a) {a=4}'
            >>> str(Rule.parse("(a)(a)->(a) {a=4} linear {0} {1}").without({0}))
            '(a)->(a) {a=4 whole} linear {0}'
        """
        kept = [index for index in range(len(self.operands)) if index not in constants]
        position = {old: new for new, old in enumerate(kept)}
        spanned = {f for index in constants for dim in self.operands[index] for f in dim}
        factors = tuple(
            Factor(factor.size, "whole") if index in spanned else factor
            for index, factor in enumerate(self.factors)
        )
        linear = tuple(
            tuple(position[operand] for operand in group)
            for group in self.linear
            if not set(group) & set(constants)
        )
        rings = tuple(pair for pair in self.rings if not spanned.intersection(pair))
        return Rule(factors, tuple(self.operands[i] for i in kept), self.results, linear, rings)

    def __str__(self) -> str:
        names = [_name(index) for index in range(len(self.factors))]

        def side(tensors: tuple[Dims, ...]) -> str:
            return "".join(
                f"({','.join(''.join(names[f] for f in dim) or '1' for dim in dims)})"
                for dims in tensors
            )

        factors = ", ".join(
            f"{name}={factor.size}{_KIND_TEXT[factor.kind, factor.reduction]}"
            + " rises" * factor.rises
            + " halves" * factor.halves
            for name, factor in zip(names, self.factors, strict=True)
        )
        text = f"{side(self.operands)}->{side(self.results)} {{{factors}}}"
        groups = "".join(f" {{{','.join(map(str, group))}}}" for group in self.linear)
        text += f" linear{groups}" if groups else ""
        rings = "".join(f" {{{names[one]},{names[other]}}}" for one, other in self.rings)
        return text + (f" rings{rings}" if rings else "")

    @classmethod
    def parse(cls, text: str) -> Self:
        """The rule that prints as `text`; `parse(str(rule)) == rule` for all rules.

        Raises:
            RuleError: `text` is not in this notation, or breaks one of the checks of a rule.
        """
        match = _RULE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise RuleError(
                "a rule is written as '(a,b)(b,c)->(a,c) {a=4, b=8 sum, c=2} linear {0} {1}'; "
                f"got {text!r}"
            )
        factors: dict[str, Factor] = {}
        for name, size, kind, rises, halves in _FACTOR.findall(match["factors"]):
            if name in factors:
                raise RuleError(f"a factor is listed once; got {name!r} twice in {text!r}")
            factor = _factor(int(size), kind)
            factors[name] = replace(factor, rises=bool(rises), halves=bool(halves))
        index = {name: i for i, name in enumerate(factors)}

        def side(tensors: str) -> tuple[Dims, ...]:
            words = [_NAME.findall(dim) for dim in re.split("[(),]", tensors)]
            if unknown := [name for word in words for name in word if name not in index]:
                raise RuleError(f"a rule's dims are made of its factors; got {unknown} in {text!r}")
            return tuple(
                tuple(tuple(index[n] for n in _NAME.findall(dim)) for dim in dims.split(",") if dim)
                for dims in re.findall(r"\(([^)]*)\)", tensors)
            )

        linear = tuple(
            tuple(map(int, group.split(",")))
            for group in re.findall(r"\{([^}]*)\}", match["linear"] or "")
        )
        rings = []
        for pair in re.findall(r"\{([^}]*)\}", match["rings"] or ""):
            one, other = (index.get(name, -1) for name in pair.split(","))
            rings.append((one, other))
        sides = side(match["left"]), side(match["right"])
        return cls(tuple(factors.values()), *sides, linear, tuple(rings))


_NUMBER = "[0-9]{1,19}"
_DIMS = r"(?:\((?:[a-z0-9]+(?:,[a-z0-9]+)*)?\))*"
_SIZED = rf"[a-z][0-9]*={_NUMBER}(?: (?:sum|max|min|product|whole))?(?: rises)?(?: halves)?"
_GROUP = rf"\{{{_NUMBER}(?:,{_NUMBER})*\}}"
_PAIR = r"\{[a-z][0-9]*,[a-z][0-9]*\}"
_RULE = re.compile(
    rf"(?P<left>{_DIMS})->(?P<right>{_DIMS}) \{{(?P<factors>(?:{_SIZED}(?:, {_SIZED})*)?)\}}"
    rf"(?: linear(?P<linear>(?: {_GROUP})+))?(?: rings(?P<rings>(?: {_PAIR})+))?"
)
_FACTOR = re.compile(r"([a-z][0-9]*)=([0-9]+)(?: (?!rises|halves)([a-z]+))?( rises)?( halves)?")
_NAME = re.compile("[a-z][0-9]*")
_KIND_TEXT: dict[tuple[Kind, Reduction], str] = {
    **{("reduce", reduction): f" {reduction}" for reduction in get_args(Reduction)},
    **{("parallel", reduction): "" for reduction in get_args(Reduction)},
    **{("whole", reduction): " whole" for reduction in get_args(Reduction)},
}


def _name(index: int) -> str:
    """The letter of a factor: a to z, then a1 to z1, and so on."""
    return chr(ord("a") + index % 26) + (str(index // 26) if index >= 26 else "")


def _factor(size: int, kind: str) -> Factor:
    if kind in get_args(Reduction):
        return Factor(size, "reduce", cast(Reduction, kind))
    return Factor(size, "whole") if kind == "whole" else Factor(size)


def _problems(rule: Rule) -> Iterator[str]:
    """Yield each reason why a rule cannot be right, as a sentence."""
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
        in_results = any(index in dim for dims in rule.results for dim in dims)
        if factor.kind == "parallel" and in_operands and not in_results:
            yield (
                "a factor of operands that no result has is 'reduce' or 'whole'; "
                f"factor {index} is 'parallel'"
            )
        if factor.kind == "reduce" and not in_operands:
            yield f"a 'reduce' factor is in a dim of some operand; factor {index} is in none"
    reductions = {factor.reduction for factor in rule.factors if factor.kind == "reduce"}
    if len(reductions) > 1:
        yield f"all reduce factors of a rule have the same reduction; got {sorted(reductions)}"
    if rule.linear and reductions - {"sum"}:
        yield f"only sums are linear; got linear={rule.linear} with a {max(reductions)!r} factor"
    for pair in rule.rings:
        yield from _problems_of_ring(rule, pair)
    for group in rule.linear:
        if not group or any(not 0 <= operand < len(rule.operands) for operand in group):
            yield f"linear names operands by index; got {group} with {len(rule.operands)} operands"


def _problems_of_ring(rule: Rule, pair: tuple[int, int]) -> Iterator[str]:
    """Yield each reason why two factors cannot be split by one axis, as a sentence."""
    if any(not 0 <= factor < len(rule.factors) for factor in pair):
        yield f"a ring is of two factors; got {pair} with {len(rule.factors)} factors"
        return
    one, other = pair
    if rule.factors[one].kind == "whole" or rule.factors[other].kind != "whole":
        kinds = [rule.factors[factor].kind for factor in pair]
        yield f"the parts of a 'whole' factor go round along another one's; got {pair}: {kinds}"
    for dims in rule.operands + rule.results:
        both = [dim for dim in dims if one in dim or other in dim]
        if len(both) > 1 or any(len(dim) > 1 for dim in both):
            yield f"the factors of a ring are dims of different tensors; got {pair} in {dims}"
