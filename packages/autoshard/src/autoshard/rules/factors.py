"""`Factors`, to write a rule by hand: each new factor is returned as the dim that it makes up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from autoshard.errors import RuleError
from autoshard.graph.rule import Dims, Factor, Reduction, Rule

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]
Linear = tuple[tuple[int, ...], ...]
Dim = tuple[int, ...]
"""The indices of the factors of one dim, major to minor."""


@dataclass(slots=True)
class Factors:
    """The factors of a rule that is being written.

    Examples:
        >>> factors = Factors()
        >>> rows, columns = factors.parallel(4), factors.reduced(8)
        >>> factors.rule([(rows, columns)], [(rows,)], linear=((0,),)).operand_shapes
        ((4, 8),)
    """

    made: list[Factor] = field(default_factory=list)

    def _dim(self, factor: Factor) -> Dim:
        if factor.size == 1:
            return ()
        self.made.append(factor)
        return (len(self.made) - 1,)

    def parallel(self, size: int, *, rises: bool = False, halves: bool = False) -> Dim:
        """A dim of one new factor that may be split; `()` if the size is 1."""
        return self._dim(Factor(size, rises=rises, halves=halves))

    def reduced(
        self,
        size: int,
        reduction: Reduction = "sum",
        *,
        rises: bool = False,
        halves: bool = False,
    ) -> Dim:
        """A dim of one new factor that is reduced; `()` if the size is 1."""
        return self._dim(Factor(size, "reduce", reduction, rises, halves))

    def whole(self, size: int) -> Dim:
        """A dim of one new factor that stays whole on every device; `()` if the size is 1."""
        return self._dim(Factor(size, "whole"))

    def rule(
        self,
        operands: Sequence[Dims],
        results: Sequence[Dims],
        linear: Linear = (),
        rings: Sequence[tuple[Dim, Dim]] = (),
    ) -> Rule:
        """The rule over all factors that were created; a ring of a dim of size 1 is left out."""
        pairs = tuple((one[0], other[0]) for one, other in rings if one and other)
        return Rule(tuple(self.made), tuple(operands), tuple(results), linear, pairs)


def check_dims(shape: Shape, dims: Collection[int]) -> None:
    """Raise `RuleError` unless these are dims of the shape, counted from the first one."""
    if unknown := [dim for dim in dims if not 0 <= dim < len(shape)]:
        raise RuleError(
            f"the dims of shape {shape} are 0 to {len(shape) - 1}; got {unknown[0]}: negative dims "
            "do not count from the end"
        )


def aligned(
    operand_shapes: Shapes,
    result_shapes: Shapes,
    whole_dims: Collection[int],
    linear: Linear = (),
    n_scalars: int = 0,
) -> Rule:
    """The rule of an operator whose operands and results have the same dims, some of them whole.

    A result may lack the whole dims or have them with size 1. The sizes of operands and results
    along the whole dims may differ.

    Args:
        operand_shapes: All of the same rank, except for the last `n_scalars`, which stay whole.
        result_shapes: Each has the operands' dims, or these without `whole_dims`.
        whole_dims: Dims of the first operand that stay whole.
        linear: As in `Rule`.
        n_scalars: How many operands at the end are not aligned (indices, fill values).

    Raises:
        RuleError: a whole dim is not a dim of the first operand.

    Examples:
        >>> rule = aligned(((4, 8),), ((4, 3), (4, 3)), (1,))
        >>> rule.operands, rule.results
        ((((0,), (1,)),), (((0,), (2,)), ((0,), (3,))))
    """
    factors = Factors()
    first = operand_shapes[0]
    check_dims(first, whole_dims)
    shared = {d: factors.parallel(n) for d, n in enumerate(first) if d not in whole_dims}

    def dims(shape: Shape) -> Dims:
        here = range(len(first)) if len(shape) == len(first) else sorted(shared)
        return tuple(
            shared[d] if d in shared else factors.whole(n) for d, n in zip(here, shape, strict=True)
        )

    n_aligned = len(operand_shapes) - n_scalars
    operands = [dims(shape) for shape in operand_shapes[:n_aligned]]
    scalars = [tuple(factors.whole(n) for n in shape) for shape in operand_shapes[n_aligned:]]
    return factors.rule([*operands, *scalars], [dims(shape) for shape in result_shapes], linear)
