"""Writing a rule by hand: factors are made one by one, each as the dim that spans it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from autoshard.errors import RuleError
from autoshard.graph.rule import Dims, Factor, Reduction, Rule

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]
Linear = tuple[tuple[int, ...], ...]
Dim = tuple[int, ...]
"""The factors of one dim, major to minor."""


@dataclass(slots=True)
class Factors:
    """The factors made so far.

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

    def parallel(self, size: int) -> Dim:
        """A dim of its own that may be split; `()` if it has size 1."""
        return self._dim(Factor(size))

    def reduced(self, size: int, reduction: Reduction = "sum") -> Dim:
        """A dim of its own that is reduced."""
        return self._dim(Factor(size, "reduce", reduction))

    def whole(self, size: int) -> Dim:
        """A dim of its own that no device may see only a part of."""
        return self._dim(Factor(size, "whole"))

    def rule(self, operands: Sequence[Dims], results: Sequence[Dims], linear: Linear = ()) -> Rule:
        """The rule over all factors made."""
        return Rule(tuple(self.made), tuple(operands), tuple(results), linear)


def check_dims(shape: Shape, dims: Collection[int]) -> None:
    """Raise `RuleError` unless these are dims of the shape, counted from the first."""
    if unknown := [dim for dim in dims if not 0 <= dim < len(shape)]:
        raise RuleError(
            f"the dims of shape {shape} are 0 to {len(shape) - 1}; got {unknown[0]}: negative ones "
            "are not counted from the end"
        )


def aligned(
    operand_shapes: Shapes,
    result_shapes: Shapes,
    whole_dims: Collection[int],
    linear: Linear = (),
    n_scalars: int = 0,
) -> Rule:
    """Operands and results run over the same dims, of which some stay whole.

    A result may lack the whole dims or have them with size 1; sizes along them may differ.

    Args:
        operand_shapes: All of the same rank, but the last `n_scalars`, which stay whole.
        result_shapes: Of the operands' rank, or that without `whole_dims`.
        whole_dims: Dims of the first operand.
        linear: As in `Rule`.
        n_scalars: Operands at the end that are not aligned (indices, fill values).

    Raises:
        RuleError: a whole dim is none of the first operand's.

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
