"""The edge tables of a problem: seconds to make copies of a value and to read them, built once.

A graph of many layers needs the same tables again and again: how a value of some shape is converted
from the specs in which it is computed to those that its readers need. Here, equal queries return
the very same arrays. So the time to build a problem, and its size, grow only with the number of
different layers.
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
"""The most tables of a mesh that are kept from one problem to the next [chosen: those of a few
models]."""

T = TypeVar("T")
Copies = tuple[tuple[Spec, ...], ...]
"""For each strategy of a node that is not an operator: the specs in which a value is available."""


@dataclass(frozen=True, slots=True, eq=False)
class Available:
    """The specs in which a node makes a value available, for each of its strategies."""

    specs: tuple[Spec, ...]
    sets: tuple[CopySet, ...]
    """Positions in `specs` that are available together."""
    of_set: NDArray[np.intp]
    """For each strategy: which of the sets."""

    def copies(self) -> Copies:
        """The specs of each strategy."""
        return tuple(tuple(self.specs[i] for i in self.sets[of]) for of in self.of_set)


@dataclass(frozen=True, slots=True, eq=False)
class Relay:
    """A node that holds copies of a value."""

    available: Available
    copies: Copies
    making: Array
    """Seconds of one run to make the copies, shape (strategies of the source, its strategies)."""
    usage: Array
    """Bytes of the copies in each strategy."""
    is_exact: bool
    """Whether it may hold all sets of copies that can be useful."""


@dataclass(frozen=True, slots=True, eq=False)
class ValueKind:
    """All that the tables depend on in a value; values that are alike share one object."""

    value: Value
    """Any value of this shape and dtype."""
    is_constant: bool
    """Whether it depends on no input, and so is never sent."""


def copy_tables_of(converter: Converter, with_memory: bool) -> CopyTables:
    """The tables of a mesh, kept between problems.

    The parts of a model, and its microbatches, have most tables in common.

    Args:
        converter: As for `CopyTables`.
        with_memory: As for `CopyTables`.
    """
    tables = _kept_tables(converter, with_memory)
    converter.forget_many()
    tables.forget_many()
    return tables


@lru_cache(maxsize=32)
def _kept_tables(converter: Converter, with_memory: bool) -> CopyTables:
    return CopyTables(converter, with_memory=with_memory)


class CopyTables:
    """Builds the tables for one mesh; equal arguments give the same objects."""

    def __init__(self, converter: Converter, *, with_memory: bool) -> None:
        """Start without any tables.

        Args:
            converter: Prices the conversions.
            with_memory: Whether the strategies of relays say which copy, if any, is the value
                itself and so takes no memory.
        """
        self.converter = converter
        self.with_memory = with_memory
        self._known: dict[Hashable, object] = {}
        self._kinds: dict[Hashable, ValueKind] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The object for a key: `make()` at the first call, the same object from then on."""
        if key not in self._known:
            self._known[key] = make()
        return cast(T, self._known[key])

    def forget_many(self) -> None:
        """Drop all tables if there are many; must not be called while a problem is built."""
        if len(self._known) > MOST_TABLES:
            self._known.clear()
            self._kinds.clear()

    def kind(self, value: Value, *, is_constant: bool) -> ValueKind:
        """The kind of a value; the same object for all values that are alike."""
        key = (value.shape, value.dtype, is_constant)
        return self._kinds.setdefault(key, ValueKind(value, is_constant))

    def made(self, part: Column) -> Available:
        """The availability of a value that its producer returns: one spec for each strategy."""

        def make() -> Available:
            specs = part.distinct.specs
            return Available(specs, tuple((i,) for i in range(len(specs))), part.index)

        return self.once(("made", part), make)

    def shared(self, kind: ValueKind, source: Available, asked: tuple[Column, ...]) -> Relay:
        """The relay between a value and several readers.

        Args:
            kind: The kind of the value.
            source: The specs in which it is computed or stored.
            asked: For each use, the specs that the reader's strategies need.
        """

        def make() -> Relay:
            specs = tuple(
                dict.fromkeys((*source.specs, *(s for one in asked for s in one.distinct.specs)))
            )
            seconds = self._seconds(kind, specs, specs)
            sets, is_exact = copy_sets(specs, seconds, len(asked))
            return self._relay(kind, source, specs, sets, is_exact=is_exact)

        return self.once(("shared", kind, source, asked), make)

    def own(self, kind: ValueKind, source: Available, asked: Column) -> tuple[Relay, Array]:
        """The relay of a single operand, and the edge from it to the reader.

        The edge's table is 0 where the relay holds the copy that the reader's strategy needs, and
        infinite elsewhere.
        """

        def make() -> tuple[Relay, Array]:
            specs = asked.distinct.specs
            sets = tuple((i,) for i in range(len(specs)))
            relay = self._relay(kind, source, specs, sets, is_exact=True)
            of_strategy = relay.available.of_set  # sets of one copy have that copy's position
            match = of_strategy[:, None] == asked.index[None, :]
            return relay, frozen(np.where(match, 0.0, np.inf))

        return self.once(("own", kind, source, asked), make)

    def reading(self, kind: ValueKind, source: Available, asked: tuple[Column, ...]) -> Array:
        """Seconds of one run to convert a value for all operands of one reader that it is.

        Returns:
            Shape (strategies of the source, strategies of the reader).
        """

        def make() -> Array:
            cost = np.zeros((len(source.of_set), len(asked[0].index)))
            for position, one in enumerate(asked):
                seconds = self._seconds(kind, source.specs, one.distinct.specs)
                paid = serving(source.sets, seconds)[np.ix_(source.of_set, one.index)]
                # a reader that needs the same spec twice pays once
                again = [_same(one, earlier) for earlier in asked[:position]]
                cost += np.where(np.any(again, axis=0), 0.0, paid) if again else paid
            return frozen(cost)

        return self.once(("reading", kind, source, asked), make)

    def times(self, seconds: Array, repeats: int) -> Array:
        """The table of all runs in a step, given that of one run."""
        if repeats == 1:
            return seconds
        # the key is the identity of an array, which has to be kept alive as long as the key
        key = ("times", id(seconds), repeats)
        _, product = self.once(key, lambda: (seconds, frozen(seconds * repeats)))
        return product

    def _seconds(self, kind: ValueKind, src: tuple[Spec, ...], dst: tuple[Spec, ...]) -> Array:
        """Seconds of each conversion, shape (src, dst); infinite for one that sends a constant."""
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
            of_set, itself = own_copies(sets)
            saved = np.where(itself < 0, 0.0, np.array(sizes, dtype=np.float64)[itself])
            usage = usage[of_set] - saved
            in_source = np.zeros((len(source.sets), len(every)), dtype=np.bool_)
            for i, held in enumerate(source.sets):
                in_source[i, held] = True
            is_there = in_source[source.of_set][:, np.array(position)[itself]]
            cost = np.where((itself < 0) | is_there, cost[:, of_set], np.inf)
        available = Available(specs, sets, of_set)
        return Relay(available, available.copies(), frozen(cost), frozen(usage), is_exact)


def _same(a: Column, b: Column) -> NDArray[np.bool_]:
    """For each strategy, whether two uses need the same spec."""
    ids = {spec: index for index, spec in enumerate(a.distinct.specs + b.distinct.specs)}
    ids_a, ids_b = ([ids[spec] for spec in part.distinct.specs] for part in (a, b))
    same: NDArray[np.bool_] = np.array(ids_a)[a.index] == np.array(ids_b)[b.index]
    return same
