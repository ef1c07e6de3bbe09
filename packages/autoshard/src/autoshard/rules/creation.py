"""Rules of operators that create arrays, from nothing or from a random key."""

from __future__ import annotations

from autoshard.graph.rule import Rule
from autoshard.rules.factors import Factors, Shapes


def created(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """An iota, a constant, random numbers: each part can be created alone; operands stay whole.

    Random numbers come from a counter-based generator, such as Philox or Threefry, which a device
    can start at the elements of its shard. Generators without this are not kinds of the table.
    """
    factors = Factors()
    operands = [tuple(factors.whole(n) for n in shape) for shape in operand_shapes]
    results = [tuple(factors.parallel(n) for n in shape) for shape in result_shapes]
    return factors.rule(operands, results)


def dropout(operand_shapes: Shapes, result_shapes: Shapes) -> Rule:
    """The first operand times a random mask from a key, the second operand; linear in the first."""
    factors = Factors()
    array, *keys = operand_shapes
    dims = tuple(factors.parallel(n) for n in array)
    whole = [tuple(factors.whole(n) for n in shape) for shape in keys]
    return factors.rule([dims, *whole], [dims] * len(result_shapes), ((0,),))
