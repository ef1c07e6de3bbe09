"""In how many pieces each dim may be cut before axes share each of them: strides worth trying.

A dim of `n` units on `k` devices has as many strides as `n / k` has factors, and most are as good
as the largest (Rhino 4.3.3). Another one helps where it avoids communication: in front of or behind
an operator that merges or splits dims. So a reshape of `3 * heads * width` units to three dims lets
its operand be cut in 3 or in `3 * heads` pieces; and what may be cut so in one operator may be so
in its neighbours, as far as the loop goes that runs over the dim, and back to how inputs are
stored. There, Rhino merges operators from each matrix product on; here, all cuts meet in one pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from autoshard.graph.graph_fields import GraphFields, Operator
from autoshard.graph.rule import Rule

Pieces = tuple[int, ...]
"""Numbers of pieces, rising, each a multiple of the one before."""


def pieces_of_dims(graph: GraphFields) -> dict[str, tuple[Pieces, ...]]:
    """For each value and each of its dims the numbers of pieces that it may be cut in, beside 1."""
    found: dict[str, list[Pieces]] = {v.name: [()] * len(v.shape) for v in graph.values}
    waiting = list(graph.operators)
    readers: dict[str, list[Operator]] = {}
    for operator in graph.operators:
        for name in (*operator.inputs, *operator.outputs):
            readers.setdefault(name, []).append(operator)
    while waiting:
        ahead: dict[str, Operator] = {}
        for operator in waiting:
            names = (*operator.inputs, *operator.outputs)
            of_factors = pieces_of_factors(operator.rule, [tuple(found[name]) for name in names])
            for name, dims in zip(
                names, operator.rule.operands + operator.rule.results, strict=True
            ):
                before = list(found[name])
                for dim, factors in enumerate(dims):
                    for count in _of_dim(factors, operator.rule, of_factors):
                        size = graph.value(name).shape[dim]
                        found[name][dim] = _with(found[name][dim], count, size)
                if found[name] != before:
                    ahead.update((one.name, one) for one in readers[name])
        waiting = list(ahead.values())
    return {name: tuple(of) for name, of in found.items()}


def pieces_of_factors(rule: Rule, of_dims: list[tuple[Pieces, ...]]) -> tuple[Pieces, ...]:
    """For each factor of an operator the numbers of pieces that it may be cut in, beside 1.

    Args:
        rule: Of the operator.
        of_dims: For each operand and result, and each of its dims, the numbers for the dim.
    """
    found: list[Pieces] = [()] * len(rule.factors)
    for dims, of_tensor in zip(rule.operands + rule.results, of_dims, strict=True):
        for factors, counts in zip(dims, of_tensor, strict=True):
            for factor, above in _places(factors, rule):
                size = rule.factors[factor].size
                if rule.factors[factor].kind == "whole":
                    continue
                for count in counts:
                    if above < count < above * size and count % above == 0:
                        found[factor] = _with(found[factor], count // above, size)
    return tuple(found)


def _of_dim(factors: tuple[int, ...], rule: Rule, of_factors: tuple[Pieces, ...]) -> Iterator[int]:
    """The numbers of pieces that a dim may be cut in for its factors."""
    for factor, above in _places(factors, rule):
        yield above
        yield from (above * count for count in of_factors[factor])


def _places(factors: tuple[int, ...], rule: Rule) -> Iterator[tuple[int, int]]:
    """Each factor of a dim, and into how many parts those before it cut the dim."""
    above = 1
    for factor in factors:
        yield factor, above
        above *= rule.factors[factor].size


def _with(counts: Pieces, count: int, size: int) -> Pieces:
    """The numbers with one more, if all of them can be digits of one size.

    Examples:
        >>> _with((3,), 12, 96), _with((3,), 2, 96), _with((3,), 96, 96)
        ((3, 12), (3,), (3,))
    """
    if not 1 < count < size:
        return counts
    more = tuple(sorted({*counts, count}))
    nested = all(high % low == 0 for low, high in pairwise((*more, size)))
    return more if nested else counts
