"""Where the values of a step hold the examples of its batch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from autoshard import Graph, Operator

from frontends.step.step import APPLY

Dims = tuple[tuple[int, ...], ...]
"""For each dim of a value, its factors in the rule of an operator, major to minor."""


class Place(NamedTuple):
    """Where a value holds the examples.

    A dim of size `outer * n` interleaves them if `outer` is not 1: it has `outer` runs, each of
    which goes through all examples. So has a batch of shape (B, T) that is transposed to (T, B) and
    made flat, and the concatenation of two batches.
    """

    dim: int
    outer: int


@dataclass(frozen=True, slots=True)
class Join:
    """An operator in which one value, the whole, consists of pieces along a dim.

    It concatenates, cuts out some of the pieces, or puts them among zeros or into another whole. No
    rule says so, as sharding has no use for it.
    """

    dim: int
    pieces: int
    """Into how many pieces of equal size the whole is cut."""

    wholes: tuple[str, ...]
    """Values that have all pieces."""

    parts: tuple[tuple[str, int, int], ...]
    """Each other value, the first of the pieces that it has, and how many it has."""

    @classmethod
    def of(
        cls, dim: int, wholes: Iterable[str], size: int, ranges: Iterable[tuple[str, int, int]]
    ) -> Join | None:
        """The join of values along a dim; None if it has one piece, or a value has none.

        Args:
            dim: The dim.
            wholes: The values that consist of the others, or contain them.
            size: The size of their dim.
            ranges: Each other value, where its slices begin in the whole, and where they end.
        """
        spans = list(ranges)
        piece = math.gcd(size, *(at for _, *span in spans for at in span))
        if piece in (0, size) or any(begin == end for _, begin, end in spans):
            return None
        parts = ((name, begin // piece, (end - begin) // piece) for name, begin, end in spans)
        return cls(dim, size // piece, tuple(wholes), tuple(parts))

    @property
    def counts(self) -> dict[str, int]:
        """By value: how many pieces it has."""
        return {**dict.fromkeys(self.wholes, self.pieces), **{name: n for name, _, n in self.parts}}

    def outer(self, places: Mapping[str, Place]) -> int | None:
        """How many runs of examples a piece has; None if the dim does not hold the examples."""
        found = set()
        for name, n in self.counts.items():
            if name in places:
                at = places[name]
                found.add(at.outer // n if at.dim == self.dim and not at.outer % n else None)
        return found.pop() if len(found) == 1 else None

    def places(self, outer: int) -> list[tuple[str, Place]]:
        """The places of all values, given the runs of examples that a piece has."""
        return [(name, Place(self.dim, outer * n)) for name, n in self.counts.items()]


def dims_of_examples(graph: Graph, is_cut: Callable[[int], bool]) -> dict[str, int]:
    """For each value that is tied to the batch and does not interleave examples: their dim.

    Args:
        graph: The step.
        is_cut: Whether a number of slices along the examples can be cut (or padded) as they are.
    """
    places = places_of_examples(graph, is_cut)
    return {name: place.dim for name, place in places.items() if place.outer == 1}


def places_of_examples(
    graph: Graph, is_cut: Callable[[int], bool], joins: Mapping[str, Join] | None = None
) -> dict[str, Place]:
    """For each value that is tied to the batch, where it holds the examples.

    A rule ties dims that are cut alike. Ties lead backwards, too: zeros that are added to a value
    with one element for each example are cut as the examples are; zeros that are added to weights
    are not.

    Args:
        graph: The step.
        is_cut: Whether a number of slices along the examples can be cut (or padded) as they are.
        joins: By operator, the join that it is.
    """
    touching: dict[str, list[Operator]] = defaultdict(list)
    for op in graph.operators:
        if op.phase != APPLY:
            for name in {*op.inputs, *op.outputs}:
                touching[name].append(op)
    places = {n: Place(0, 1) for n in graph.inputs if graph.value(n).role == "batch"}
    work = [op for name in places for op in touching[name]]
    while work:
        op = work.pop()
        for name, place in _tied(op, places, is_cut, (joins or {}).get(op.name)):
            if name not in places:
                places[name] = place
                work += touching[name]
    return places


def _tied(
    op: Operator, places: Mapping[str, Place], is_cut: Callable[[int], bool], join: Join | None
) -> Iterable[tuple[str, Place]]:
    """The places of all values of an operator that hold the examples, given some of them."""
    if join is not None and (outer := join.outer(places)) is not None:
        return join.places(outer)
    factors = factors_of_examples(op, places)
    found: dict[str, Place] = {}
    for over in factors:
        if over is None or not is_cut(over.size(op)):
            return ()
        for name, dims in with_dims(op):
            for d, before in dims_with(op, dims, over.factor)[:1]:
                if found.setdefault(name, place := Place(d, before * over.outer)) != place:
                    return ()
    return found.items()


class ExampleFactor(NamedTuple):
    """Where an operator holds the examples: in a factor of its rule, which may interleave them."""

    factor: int
    outer: int

    def size(self, op: Operator) -> int:
        """How many slices along the examples each of the runs has."""
        return op.rule.factors[self.factor].size // self.outer


def factors_of_examples(op: Operator, places: Mapping[str, Place]) -> set[ExampleFactor | None]:
    """The factors that run over examples; None if a dim of examples has no such factor."""
    return {
        _factor_at(op, dims[places[name].dim], places[name].outer)
        for name, dims in with_dims(op)
        if name in places
    }


def _factor_at(op: Operator, dim: tuple[int, ...], outer: int) -> ExampleFactor | None:
    """The factor of a dim that begins after `outer` slices, or contains this point."""
    before = 1
    for factor in dim:
        size = op.rule.factors[factor].size
        rest, remainder = divmod(outer, before)
        if remainder:
            return None
        if rest < size:
            return None if size % rest else ExampleFactor(factor, rest)
        before *= size
    return None


def dims_with(op: Operator, dims: Dims, factor: int) -> list[tuple[int, int]]:
    """The dims with a factor, and for each the product of the factors that come before it."""
    found = []
    for d, dim in enumerate(dims):
        if factor in dim:
            sizes = [op.rule.factors[f].size for f in dim[: dim.index(factor)]]
            found.append((d, math.prod(sizes)))
    return found


def with_dims(op: Operator) -> list[tuple[str, Dims]]:
    """Each operand and result with the factors of its dims."""
    rule = op.rule
    return [
        *zip(op.inputs, rule.operands, strict=True),
        *zip(op.outputs, rule.results, strict=True),
    ]
