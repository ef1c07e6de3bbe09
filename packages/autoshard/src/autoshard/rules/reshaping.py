"""Rules of reshapes, which merge and split dims but never reorder their factors."""

from __future__ import annotations

import math

from autoshard.base.checks import checked
from autoshard.errors import RuleError
from autoshard.graph.rule import Factor, Kind, Rule
from autoshard.rules.fallback import whole


@checked
def reshape(shape: tuple[int, ...], result_shape: tuple[int, ...]) -> Rule:
    """The rule of a row-major reshape; its factors are the common refinement of both shapes.

    Where a dim of the one shape and a dim of the other share only a common divisor, that divisor is
    the major factor of both, and the rest of the group of dims is whole.

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
