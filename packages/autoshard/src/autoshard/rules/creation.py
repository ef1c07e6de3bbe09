"""Operators that make arrays of nothing, or of a key."""

from __future__ import annotations

from autoshard.graph.rule import Rule
from autoshard.rules.factors import Factors, Shapes


def created(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """An iota, a constant, random numbers: every part can be made alone; operands stay whole.

    Random numbers: by a generator with a counter, such as Philox or Threefry, which a device can
    start at its own elements. One that cannot be started anywhere is no kind of the table.
    """
    factors = Factors()
    operands = [tuple(factors.whole(n) for n in shape) for shape in operand_shapes]
    results = [tuple(factors.parallel(n) for n in shape) for shape in result_shapes]
    return factors.rule(operands, results)


def dropout(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """The first operand times a random mask that is made of a key, the second: linear in it."""
    factors = Factors()
    array, *keys = operand_shapes
    dims = tuple(factors.parallel(n) for n in array)
    whole = [tuple(factors.whole(n) for n in shape) for shape in keys]
    return factors.rule([dims, *whole], [dims] * len(result_shapes), ((0,),))
