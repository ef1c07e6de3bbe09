"""What it costs to make copies of a value and to read them: the tables of edges, each made once.

A graph of many layers asks the same over and over: how a value of some shape goes from the specs it
is made in to those that its readers ask for. Equal questions get the same answer here, and the very
same arrays; so building a problem, and the problem itself, grow with the different layers only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from shardspec import Spec

from autoshard.base.arrays import Array, frozen
from autoshard.graph.graph_fields import Value
from autoshard.space.conversion import Converter, spec_set
from autoshard.space.copy_sets import CopySet, copy_sets, making, own_copies, serving
from autoshard.space.strategy_tables import Column, largest_part

MOST_TABLES = 1 << 12
"""That are kept of a mesh from one problem to the next [chosen: those of a few models]."""

T = TypeVar("T")
Copies = tuple[tuple[Spec, ...], ...]
"""Per strategy of a node that is no operator: the specs in which it makes a value available."""


@dataclass(frozen=True, slots=True, eq=False)
class Available:
    """The copies that a node makes of a value, per strategy."""

    specs: tuple[Spec, ...]
    sets: tuple[CopySet, ...]
    """Positions in `specs` that are available together."""
    of_set: NDArray[np.intp]
    """Per strategy: which of the sets."""

    def copies(self) -> Copies:
        """Per strategy the specs."""
        return tuple(tuple(self.specs[i] for i in self.sets[of]) for of in self.of_set)


@dataclass(frozen=True, slots=True, eq=False)
class Relay:
    """A node that holds copies of a value."""

    available: Available
    copies: Copies
    making: Array
    """Shape (strategies of what it is made of, its strategies): seconds of one run."""
    usage: Array
    """Per strategy, bytes."""
    is_exact: bool
    """Whether it may hold all sets of copies that can be of use."""


@dataclass(frozen=True, slots=True, eq=False)
class ValueKind:
    """All that matters of a value; there is one object for all that are alike."""

    value: Value
    """Any one of its shape and dtype."""
    is_constant: bool
    """It depends on no input, and is never sent."""


def copy_tables_of(converter: Converter, with_memory: bool) -> CopyTables:
    """The tables of a mesh: parts of a model, and its microbatches, have most in common."""
    tables = _kept_tables(converter, with_memory)
    converter.forget_many()
    tables.forget_many()
    return tables


@lru_cache(maxsize=32)
def _kept_tables(converter: Converter, with_memory: bool) -> CopyTables:
    return CopyTables(converter, with_memory=with_memory)


class CopyTables:
    """Makes tables for one mesh; equal arguments give the same objects."""

    def __init__(self, converter: Converter, *, with_memory: bool) -> None:
        """Start without any.

        Args:
            converter: Prices the conversions.
            with_memory: Whether relays know which of their copies is the value itself.
        """
        self.converter = converter
        self.with_memory = with_memory
        self._known: dict[Hashable, object] = {}
        self._kinds: dict[Hashable, ValueKind] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made for a key before, or is made now."""
        if key not in self._known:
            self._known[key] = make()
        return cast(T, self._known[key])

    def forget_many(self) -> None:
        """Begin anew where there are many; not while a problem is built."""
        if len(self._known) > MOST_TABLES:
            self._known.clear()
            self._kinds.clear()

    def kind(self, value: Value, *, is_constant: bool) -> ValueKind:
        """The kind of a value, one object for all that are alike."""
        key = (value.shape, value.dtype, is_constant)
        return self._kinds.setdefault(key, ValueKind(value, is_constant))

    def made(self, part: Column) -> Available:
        """What a producer makes available: one spec a strategy."""

        def make() -> Available:
            specs = part.distinct.specs
            return Available(specs, tuple((i,) for i in range(len(specs))), part.index)

        return self.once(("made", part), make)

    def shared(self, kind: ValueKind, source: Available, asked: tuple[Column, ...]) -> Relay:
        """The relay between a value and several readers, with what each operand asks for."""

        def make() -> Relay:
            specs = tuple(
                dict.fromkeys((*source.specs, *(s for one in asked for s in one.distinct.specs)))
            )
            seconds = self._seconds(kind, specs, specs)
            sets, is_exact = copy_sets(specs, seconds, len(asked))
            return self._relay(kind, source, specs, sets, is_exact=is_exact)

        return self.once(("shared", kind, source, asked), make)

    def own(self, kind: ValueKind, source: Available, asked: Column) -> tuple[Relay, Array]:
        """The relay of one operand, and which of its copies each strategy of the reader takes."""

        def make() -> tuple[Relay, Array]:
            specs = asked.distinct.specs
            sets = tuple((i,) for i in range(len(specs)))
            relay = self._relay(kind, source, specs, sets, is_exact=True)
            of_strategy = relay.available.of_set  # sets of one copy have that copy's position
            match = of_strategy[:, None] == asked.index[None, :]
            return relay, frozen(np.where(match, 0.0, np.inf))

        return self.once(("own", kind, source, asked), make)

    def reading(self, kind: ValueKind, source: Available, asked: tuple[Column, ...]) -> Array:
        """Seconds for all operands of one reader, shape (strategies, strategies)."""

        def make() -> Array:
            cost = np.zeros((len(source.of_set), len(asked[0].index)))
            for position, one in enumerate(asked):
                seconds = self._seconds(kind, source.specs, one.distinct.specs)
                paid = serving(source.sets, seconds)[np.ix_(source.of_set, one.index)]
                # a reader that asks for the same spec twice pays once
                again = [_same(one, earlier) for earlier in asked[:position]]
                cost += np.where(np.any(again, axis=0), 0.0, paid) if again else paid
            return frozen(cost)

        return self.once(("reading", kind, source, asked), make)

    def times(self, seconds: Array, repeats: int) -> Array:
        """The table of all runs in a step."""
        if repeats == 1:
            return seconds
        # the key is an identity, so what it is of must live as long
        key = ("times", id(seconds), repeats)
        _, found = self.once(key, lambda: (seconds, frozen(seconds * repeats)))
        return found

    def _seconds(self, kind: ValueKind, src: tuple[Spec, ...], dst: tuple[Spec, ...]) -> Array:
        """The price of each conversion between distinct specs; `inf` to send a constant."""
        seconds = self.converter.seconds(kind.value, spec_set(src), spec_set(dst))
        return np.where(seconds > 0.0, np.inf, seconds) if kind.is_constant else seconds

    def _relay(
        self,
        kind: ValueKind,
        source: Available,
        specs: tuple[Spec, ...],
        sets: tuple[CopySet, ...],
        *,
        is_exact: bool,
    ) -> Relay:
        every = tuple(dict.fromkeys((*source.specs, *specs)))
        position = [every.index(spec) for spec in specs]
        moved = tuple(tuple(sorted(position[i] for i in held)) for held in sets)
        cost = making(moved, self._seconds(kind, every, every))[: len(source.specs)]
        cost = serving(source.sets, cost)[source.of_set]
        shape, mesh_shape = kind.value.shape, self.converter.mesh.shape
        sizes = [kind.value.itemsize * largest_part(spec, shape, mesh_shape) for spec in specs]
        usage = np.array([float(sum(sizes[i] for i in held)) for held in sets])
        of_set = np.arange(len(sets))
        if self.with_memory:
            of_set, own = own_copies(sets)
            usage = usage[of_set] - np.where(own < 0, 0.0, np.array(sizes, dtype=np.float64)[own])
            available = np.zeros((len(source.sets), len(every)), dtype=np.bool_)
            for i, held in enumerate(source.sets):
                available[i, held] = True
            there = available[source.of_set][:, np.array(position)[own]]
            cost = np.where((own < 0) | there, cost[:, of_set], np.inf)
        held_now = Available(specs, sets, of_set)
        return Relay(held_now, held_now.copies(), frozen(cost), frozen(usage), is_exact)


def _same(a: Column, b: Column) -> NDArray[np.bool_]:
    """Per strategy whether two uses ask for the same spec."""
    ids = {spec: index for index, spec in enumerate(a.distinct.specs + b.distinct.specs)}
    ids_a, ids_b = ([ids[spec] for spec in part.distinct.specs] for part in (a, b))
    same: NDArray[np.bool_] = np.array(ids_a)[a.index] == np.array(ids_b)[b.index]
    return same
