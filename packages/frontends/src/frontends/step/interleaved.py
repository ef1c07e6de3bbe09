"""Put the examples first in dims that interleave them.

PyTorch's attention transposes a batch (B, T, E) to (T, B, E) and multiplies it as a matrix of
`T * B` rows; a loss of two batches concatenates them. Such a dim interleaves the examples: it has
`outer` runs, each of which goes through all of them. Neither a microbatch nor the share of a device
is then a slice of it.

But to most operators the order of rows means nothing: a product, a norm or a sum is the same for
rows in another order. So these values are kept in the order (examples, runs) in place of (runs,
examples). Operators that treat rows alike run on that order as they are. Operators that make or
undo such dims (a reshape, or a join of pieces) do so in the new order, with a transposition. All
others, and what the step returns, get the old order back. Where all values interleave no examples,
nothing changes.

This module decides; `frontends.jax.trace.reorder` and `frontends.torch.trace.reorder` do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoshard import Graph, Operator

from frontends.step.examples import (
    ExampleFactor,
    Join,
    Place,
    dims_with,
    factors_of_examples,
    places_of_examples,
    with_dims,
)
from frontends.step.step import APPLY

Shape = tuple[int, ...]

_RESHAPE = "reshape"
"""Kind of an operator that returns the elements of its operand in another shape."""


@dataclass(frozen=True, slots=True)
class Transposition:
    """A reshape, a permutation of dims, and another reshape."""

    apart: Shape
    """The shape before the permutation."""

    order: tuple[int, ...]
    """For each dim of the permuted value, the dim that it is of `apart`."""

    result: Shape

    @property
    def permuted(self) -> Shape:
        """The shape after the permutation."""
        return tuple(self.apart[d] for d in self.order)

    @property
    def is_reshape(self) -> bool:
        """Whether the elements keep their order."""
        sizes = [d for d in self.order if self.apart[d] != 1]
        return sizes == sorted(sizes)


@dataclass(frozen=True, slots=True)
class Reordering:
    """What happens to the operators of a step in which some values interleave the examples."""

    places: Mapping[str, Place]
    """By value that interleaves the examples: where."""

    kept: frozenset[str]
    """Operators that run on values in the new order as they are."""

    reshapes: Mapping[str, Transposition]
    """By reshape: what makes its result from its operand, in the new order if they have one."""

    joins: Mapping[str, tuple[Join, int]]
    """By operator that joins or cuts pieces along a dim that interleaves the examples: how, and how
    many runs of examples each piece has."""

    def to_new(self, name: str, shape: Shape) -> Transposition:
        """What puts the examples of a value first."""
        dim, outer = self.places[name]
        return _swap(shape, dim, outer)

    def to_old(self, name: str, shape: Shape) -> Transposition:
        """What puts a value back into the order that it has in the step."""
        dim, outer = self.places[name]
        return _swap(shape, dim, shape[dim] // outer)


def _swap(shape: Shape, dim: int, outer: int) -> Transposition:
    apart = (*shape[:dim], outer, shape[dim] // outer, *shape[dim + 1 :])
    order = [*range(len(apart))]
    order[dim : dim + 2] = dim + 1, dim
    return Transposition(apart, tuple(order), shape)


def pieces_apart(shape: Shape, dim: int, count: int, outer: int) -> Shape:
    """The shape of a joined value in the new order with its pieces in a dim of their own.

    Args:
        shape: The value's shape.
        dim: The dim along which values are joined.
        count: How many pieces it has; they are in dim `dim + 1` of the result.
        outer: How many runs of examples each piece has.
    """
    rest = shape[dim] // (count * outer)
    return (*shape[:dim], rest, count, outer, *shape[dim + 1 :])


def reordering_of(graph: Graph, examples: int, joins: Mapping[str, Join]) -> Reordering | None:
    """Decide what happens to each operator; None if no value interleaves the examples.

    Args:
        graph: The step on the whole batch, with rules for microbatches.
        examples: The number of examples; leaves of the batch have multiples of it.
        joins: By operator, the join that it is.
    """
    places = places_of_examples(graph, lambda n: n % examples == 0, joins)
    interleaved = {name: place for name, place in places.items() if place.outer != 1}
    if interleaved.keys().isdisjoint(graph.producers):
        return None
    kept: set[str] = set()
    reshapes: dict[str, Transposition] = {}
    joined: dict[str, tuple[Join, int]] = {}
    for op in graph.operators:
        names = {*op.inputs, *op.outputs}
        if op.phase == APPLY or interleaved.keys().isdisjoint(names):
            continue
        join = joins.get(op.name)
        if join is not None and (outer := join.outer(places)) is not None:
            if all(places.get(name) == place for name, place in join.places(outer)):
                joined[op.name] = join, outer
            continue
        factors = factors_of_examples(op, places)
        over = factors.pop() if len(factors) == 1 else None
        if over is None:
            continue
        if op.kind == _RESHAPE:
            if move := _reshape(graph, op, over, places):
                reshapes[op.name] = move
        elif not interleaved.keys().isdisjoint(op.inputs) and _treats_alike(op, over, places):
            kept.add(op.name)
    return Reordering(interleaved, frozenset(kept), reshapes, joined)


def _treats_alike(op: Operator, over: ExampleFactor, places: Mapping[str, Place]) -> bool:
    """Whether an operator does the same to each row along the examples, wherever that is."""
    if op.rule.factors[over.factor].kind == "whole":
        return False
    for name, dims in with_dims(op):
        found = dims_with(op, dims, over.factor)
        expected = [(places[name].dim, 1)] if name in places else []
        if found != expected or any(dims[d][0] != over.factor for d, _ in found):
            return False
    return True


def _reshape(
    graph: Graph, op: Operator, over: ExampleFactor, places: Mapping[str, Place]
) -> Transposition | None:
    """What a reshape does to an operand in the new order, if the result has that order, too."""
    (operand,), (result,) = op.inputs, op.outputs
    sizes = {number: factor.size for number, factor in enumerate(op.rule.factors)}
    n = len(sizes)
    parts = {n: over.outer, n + 1: sizes[over.factor] // over.outer}
    sizes |= parts

    def ordered(name: str, dims: tuple[tuple[int, ...], ...]) -> list[int]:
        numbers: list[int] = []
        for d, dim in enumerate(dims):
            of_dim = [p for f in dim for p in (parts if f == over.factor else (f,))]
            of_dim = [number for number in of_dim if sizes[number] != 1]
            if name in places and places[name].dim == d:
                before = 1
                for at, number in enumerate(of_dim):
                    if before == places[name].outer:
                        of_dim = of_dim[at:] + of_dim[:at]
                        break
                    before *= sizes[number]
            numbers += of_dim
        return numbers

    before = ordered(operand, op.rule.operands[0])
    after = ordered(result, op.rule.results[0])
    if sorted(before) != sorted(after):
        return None
    order = tuple(before.index(number) for number in after)
    return Transposition(
        tuple(sizes[number] for number in before), order, graph.value(result).shape
    )
