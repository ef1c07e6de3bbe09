"""The sizes of the matrix product that an operator is, on the busiest device of a strategy.

A product and a convolution multiply two operands and sum over some factors. A factor of the result
counts as rows `m` if only the first operand has it (or none: the taps of a filter's gradient), as
columns `n` if only the second has it, and as `batch` if both have it. The number of terms `k`
follows from the FLOP, so that windows, groups and holes need no cases of their own.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeAlias

from autoshard.base.checks import checked
from autoshard.graph.rule import Rule
from autoshard.space.strategy import Strategy, split_factors

Sizes: TypeAlias = tuple[float, float, float]
"""Rows `m`, columns `n`, and `batch` of a product."""


@checked
def matrix_sizes(
    rule: Rule, strategy: Strategy | None = None, mesh_shape: tuple[int, ...] = ()
) -> Sizes | None:
    """Rows, columns and batch of the product that an operator is; `None` if it is no product.

    Args:
        rule: The operator's rule.
        strategy: How it is split; the sizes of the whole without one.
        mesh_shape: The sizes of the mesh's axes.

    Examples:
        >>> from autoshard import enumerate_strategies
        >>> rule = Rule.parse("(a,b)(b,c)->(a,c) {a=4, b=8 sum, c=2} linear {0} {1}")
        >>> matrix_sizes(rule)
        (4.0, 2.0, 1.0)
        >>> sorted({matrix_sizes(rule, how, (2,)) for how in enumerate_strategies(rule, (2,))})
        [(2.0, 2.0, 1.0), (4.0, 1.0, 1.0), (4.0, 2.0, 1.0)]
    """
    roles = _roles(rule)
    if not roles:
        return None
    parts = dict.fromkeys(range(len(rule.factors)), 1)
    if strategy is not None:
        for factor, axes in split_factors(rule, strategy.mapping).items():
            parts[factor] = math.prod(mesh_shape[axis] for axis in axes)
    m, n, batch = (
        math.prod(-(-rule.factors[factor].size // parts[factor]) for factor in of) for of in roles
    )
    return float(m), float(n), float(batch)


@lru_cache(maxsize=4096)
def _roles(rule: Rule) -> tuple[tuple[int, ...], ...]:
    """The factors of the rows, the columns and the batch; nothing if the rule is no product."""
    if len(rule.operands) != 2 or len(rule.results) != 1:
        return ()
    if not {(0,), (1,)} <= set(rule.linear):
        return ()
    if not any(factor.kind == "reduce" for factor in rule.factors):
        return ()
    first, second, result = (
        {factor for dim in dims for factor in dim} for dims in (*rule.operands, *rule.results)
    )
    if not first & second:
        return ()
    rows = result - second
    return tuple(map(tuple, map(sorted, (rows, result & second - first, result & first & second))))
