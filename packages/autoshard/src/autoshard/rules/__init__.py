"""Rules of operators: a file for each family, and one table of them all.

`rule_of(kind, operand_shapes, result_shapes, **attributes)` looks up the rule of an operator. The
functions that write rules (`einsum`, `elementwise`, `labelled`, ...) can also be called directly.
"""

from autoshard.rules.factors import Factors
from autoshard.rules.fallback import whole
from autoshard.rules.movement import broadcast, transpose
from autoshard.rules.notation import labelled
from autoshard.rules.pointwise import elementwise
from autoshard.rules.products import einsum
from autoshard.rules.reductions import reduction
from autoshard.rules.reshaping import reshape
from autoshard.rules.table import RULES, rule_of

__all__ = [
    "RULES",
    "Factors",
    "broadcast",
    "einsum",
    "elementwise",
    "labelled",
    "reduction",
    "reshape",
    "rule_of",
    "transpose",
    "whole",
]
