"""For strided shards: the numbers of pieces worth cutting each dim into before axes split them.

A dim of `n` units on `k` devices has as many strides as `n / k` has factors, and most of them are
no better than the largest (Rhino 4.3.3). Another stride helps only where it avoids communication:
before or after an operator that merges or splits dims. A reshape of `3 * heads * width` units to
three dims, for example, lets its operand be cut into 3 or into `3 * heads` pieces. A number of
pieces that one operator allows is passed on to its neighbours, as far as the loop over the dim
reaches, and back to how inputs are stored. Rhino finds these by merging operators, beginning at
each matrix product; here, one pass over the graph propagates all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from autoshard.graph.graph_fields import GraphFields, Operator
from autoshard.graph.rule import Rule

Pieces = tuple[int, ...]
"""Numbers of pieces, in increasing order, each a multiple of the one before."""


def pieces_of_dims(graph: GraphFields) -> dict[str, tuple[Pieces, ...]]:
    """For each value and dim, the numbers of pieces, other than 1, that it may be cut into."""
    pieces: dict[str, list[Pieces]] = {v.name: [()] * len(v.shape) for v in graph.values}
    waiting = list(graph.operators)
    readers: dict[str, list[Operator]] = {}
    for operator in graph.operators:
        for name in (*operator.inputs, *operator.outputs):
            readers.setdefault(name, []).append(operator)
    while waiting:
        ahead: dict[str, Operator] = {}
        for operator in waiting:
            names = (*operator.inputs, *operator.outputs)
            of_factors = pieces_of_factors(operator.rule, [tuple(pieces[name]) for name in names])
            for name, dims in zip(
                names, operator.rule.operands + operator.rule.results, strict=True
            ):
                before = list(pieces[name])
                for dim, factors in enumerate(dims):
                    for count in _of_dim(factors, operator.rule, of_factors):
                        size = graph.value(name).shape[dim]
                        pieces[name][dim] = _with(pieces[name][dim], count, size)
                if pieces[name] != before:
                    ahead.update((one.name, one) for one in readers[name])
        waiting = list(ahead.values())
    return {name: tuple(of_dims) for name, of_dims in pieces.items()}


def pieces_of_factors(rule: Rule, of_dims: list[tuple[Pieces, ...]]) -> tuple[Pieces, ...]:
    """For each factor of an operator, the numbers of pieces, other than 1, that it may be cut into.

    Args:
        rule: The operator's rule.
        of_dims: The numbers of pieces for each operand and result, and each of its dims.
    """
    pieces: list[Pieces] = [()] * len(rule.factors)
    for dims, of_tensor in zip(rule.operands + rule.results, of_dims, strict=True):
        for factors, counts in zip(dims, of_tensor, strict=True):
            for factor, above in _places(factors, rule):
                size = rule.factors[factor].size
                if rule.factors[factor].kind == "whole":
                    continue
                for count in counts:
                    if above < count < above * size and count % above == 0:
                        pieces[factor] = _with(pieces[factor], count // above, size)
    return tuple(pieces)


def _of_dim(factors: tuple[int, ...], rule: Rule, of_factors: tuple[Pieces, ...]) -> Iterator[int]:
    """The numbers of pieces that a dim may be cut into, given those of its factors."""
    for factor, above in _places(factors, rule):
        yield above
        yield from (above * count for count in of_factors[factor])


def _places(factors: tuple[int, ...], rule: Rule) -> Iterator[tuple[int, int]]:
    """Each factor of a dim, with the product of the sizes of the factors before it."""
    above = 1
    for factor in factors:
        yield factor, above
        above *= rule.factors[factor].size


def _with(counts: Pieces, count: int, size: int) -> Pieces:
    """The numbers of pieces with one more, if each still divides the next, and the last the size.

    Examples:
        >>> _with((3,), 12, 96), _with((3,), 2, 96), _with((3,), 96, 96)
        ((3, 12), (3,), (3,))
    """
    if not 1 < count < size:
        return counts
    more = tuple(sorted({*counts, count}))
    nested = all(high % low == 0 for low, high in pairwise((*more, size)))
    return more if nested else counts
