"""Products of rows with the matrix of their group, where each example has its own groups.

Rows are of shape (examples, rows, k), matrices of shape (groups, k, o). Where groups begin and end
in the rows of an example is of shape (examples, groups); rows may belong to no group.
"""

from __future__ import annotations

from typing import Protocol

from autoshard import Rule, labelled

Shapes = tuple[tuple[int, ...], ...]


class ShapedCall(Protocol):
    """A call with the shapes of its operands and results."""

    @property
    def operands(self) -> Shapes:
        """The shapes of the operands."""

    @property
    def results(self) -> Shapes:
        """The shapes of the results."""


def rows_multiplied(d: ShapedCall) -> Rule:
    """The rule of products (examples, rows, o): without a group's matrix, its rows yield zeros."""
    formula = "bnk,gko,bg,bg->bno"
    return labelled(formula, d.operands, d.results, whole="n", linear=((0,), (1,)))


def groups_multiplied(d: ShapedCall) -> Rule:
    """The rule of products (groups, k, o) of rows with rows: sums over the rows of each group."""
    formula = "bnk,bno,bg,bg->gko"
    return labelled(formula, d.operands, d.results, whole="n", linear=((0,), (1,)))


def flops(d: ShapedCall) -> float:
    """The FLOP of either: each row is multiplied once, for its group."""
    (examples, rows, summed), columns = d.operands[0], d.operands[1][-1]
    return 2.0 * examples * rows * summed * columns
