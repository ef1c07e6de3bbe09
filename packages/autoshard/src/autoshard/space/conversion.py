"""What it takes to convert a value between specs: tables of seconds, found once and for all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product

import numpy as np
from costmodel import Algorithms, MeshLinks, known_algorithms
from shardspec import Mesh, ReshardError, Spec, Step, reshard_whole_axes

from autoshard.base.arrays import Array, frozen
from autoshard.graph.graph_fields import Value
from autoshard.space.conversion_graph import SpecGraph, fewest_steps, shortest
from autoshard.space.strided_conversion import Reach, StridedMoves, padded_layouts, single_step

_TIGHT = 1 + 1e-12
"""As sums in another order differ in their last bits."""
MOST_ENTRIES = 1 << 23
"""Of all tables that a converter keeps from one problem to the next: 64 MB [chosen: a GPT on a mesh
of three axes has 1.8 million]."""


@dataclass(frozen=True, slots=True, eq=False)
class SpecSet:
    """Distinct specs of one value; compares by identity, so that tables are quick to look up."""

    specs: tuple[Spec, ...]
    are_plain: bool
    """Whether none is strided."""


@lru_cache(maxsize=4096)
def spec_set(specs: tuple[Spec, ...]) -> SpecSet:
    """The one `SpecSet` of these specs."""
    return SpecSet(specs, all(spec.is_plain for spec in specs))


@dataclass(frozen=True, slots=True, eq=False)
class _Prices:
    """Of the conversions of all values that split alike and have as many bytes."""

    weights: Array
    """Seconds of single collectives, shape (specs, specs)."""
    lengths: Array
    """Seconds of the fastest conversions, shape (specs, specs)."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A value that is there as `src` is made available as `dst`, by one step, once in one phase.

    All readers in that phase that ask for `dst` share it. `src` is how the value is made or stored,
    or the `dst` of an earlier conversion of the same value in the same phase.
    """

    phase: int
    value: str
    src: Spec
    dst: Spec


class Converter:
    """Prices conversions on one mesh.

    The ways to convert a value depend on its shape only through which splits are even, and their
    time only on bytes. So a graph of specs serves all values of one *canonical shape*, the smallest
    that splits like theirs, and a table of prices all of these that have as many bytes. Partial
    sums and all that is made of them are in one graph; other partial results, as maxima, have a
    graph of their own. Strided specs are in none: single steps lead from them to plain ones and
    back (see `strided_conversion`). So one converter serves all that is planned on a mesh: what it
    has been asked before changes no price, and no way.
    """

    def __init__(self, mesh: Mesh, links: MeshLinks, *, uneven: bool = False) -> None:
        self.mesh = mesh
        self.uneven = uneven
        self.links = links
        self._graphs: dict[tuple[tuple[int, ...], Spec | None], SpecGraph] = {}
        self._prices: dict[tuple[SpecGraph, int], _Prices] = {}
        self._seconds: dict[tuple[tuple[int, ...], int, SpecSet, SpecSet], Array] = {}
        self._strided = StridedMoves(mesh, links, uneven)
        self._reaches: dict[tuple[SpecGraph, tuple[int, ...], int, Spec], Reach] = {}

    def forget_many(self) -> None:
        """Begin anew where tables have many entries; what is found again is the same."""
        kept = sum(table.size for table in self._seconds.values())
        kept += sum(2 * of.lengths.size for of in self._prices.values())
        kept += sum(4 * of.first.size for of in self._reaches.values())
        if kept > MOST_ENTRIES:
            for known in (self._prices, self._seconds, self._reaches):
                known.clear()

    def seconds(self, value: Value, src: SpecSet, dst: SpecSet) -> Array:
        """Seconds from each spec of `src` (rows) to each of `dst`; infinite if there is no way."""
        are_plain = src.are_plain and dst.are_plain
        # a strided spec depends on more of the shape than which splits of it are even
        shape = self._canonical(value) if are_plain else value.shape
        key = (shape, value.n_bytes, src, dst)
        if key not in self._seconds:
            if are_plain:
                found = self._plain_seconds(value, src.specs, dst.specs)
            else:
                ends = product(src.specs, dst.specs)
                found = np.array([self._fastest(value, *pair)[0] for pair in ends])
                found = found.reshape(len(src.specs), len(dst.specs))
            self._seconds[key] = frozen(found)
        return self._seconds[key]

    def path(self, value: Value, src: Spec, dst: Spec) -> tuple[Spec, ...]:
        """The specs after `src` on the fastest way to `dst`, one collective or slice each.

        Raises:
            ReshardError: there is no way.
        """
        seconds, stops = self._fastest(value, src, dst)
        if math.isinf(seconds):
            raise ReshardError(
                f"collectives bring a value from one spec to another; '{value}' "
                f"does not get from {src} to {dst} on {self.mesh.shape}"
            )
        found: list[Spec] = []
        for before, after in pairwise((src, *stops)):
            if before.is_plain and after.is_plain:
                graph = self._graph(value, before)
                prices = self._priced(graph, value)
                start, goal = graph.number[before], graph.number[after]
                nodes = fewest_steps(prices.weights, prices.lengths, start, goal)
                found += (graph.specs[node] for node in nodes)
            else:
                found.append(after)
        return tuple(found)

    def steps(self, value: Value, src: Spec, dst: Spec) -> tuple[Step, ...]:
        """The collectives and slices on the fastest way from `src` to `dst`.

        Raises:
            ReshardError: there is no way.
        """
        hops = pairwise((src, *self.path(value, src, dst)))
        return tuple(step for hop in hops for step in steps_of(value.shape, self.mesh, *hop))

    def _plain_seconds(self, value: Value, src: tuple[Spec, ...], dst: tuple[Spec, ...]) -> Array:
        """The table of `seconds` between plain specs."""
        rows: dict[SpecGraph, list[int]] = {}
        for row, spec in enumerate(src):
            rows.setdefault(self._graph(value, spec), []).append(row)
        found = np.full((len(src), len(dst)), math.inf)
        for graph, of_graph in rows.items():
            columns = [column for column, spec in enumerate(dst) if spec in graph.number]
            starts = [graph.number[src[row]] for row in of_graph]
            goals = [graph.number[dst[column]] for column in columns]
            lengths = self._priced(graph, value).lengths[np.ix_(starts, goals)]
            found[np.ix_(of_graph, columns)] = lengths
        return found

    def _fastest(self, value: Value, src: Spec, dst: Spec) -> tuple[float, tuple[Spec, ...]]:
        """Seconds, and where strided and plain steps meet on the way, up to `dst`.

        Of ways that are as fast, the single step.
        """
        if src == dst:
            return 0.0, ()
        graph = self._graph(value, src)
        lengths = self._priced(graph, value).lengths
        start, goal = graph.number.get(src), graph.number.get(dst)
        if src.is_plain and dst.is_plain:
            return (math.inf if start is None or goal is None else float(lengths[start, goal])), (
                dst,
            )
        at_once = self._strided.seconds(value, src, dst)
        if not src.is_plain and dst.is_plain:
            if goal is None:
                return at_once, (dst,)
            way = self._reach(graph, value, src)
            seconds, at_once = float(way.there[goal]), float(way.first[goal])
            if at_once > seconds * _TIGHT:
                stop = int((way.first + lengths[:, goal]).argmin())
                return seconds, (graph.specs[stop], dst)
        elif src.is_plain:
            if start is None:
                return at_once, (dst,)
            way = self._reach(graph, value, dst)
            seconds, at_once = float(way.back[start]), float(way.last[start])
            if at_once > seconds * _TIGHT:
                stop = int((lengths[start] + way.last).argmin())
                return seconds, (graph.specs[stop], dst)
        else:
            there, back = self._reach(graph, value, src).there, self._reach(graph, value, dst).back
            stop = int((there + back).argmin())
            seconds = float((there + back)[stop])
            if at_once > seconds * _TIGHT:
                first = self._fastest(value, src, graph.specs[stop])[1]
                return seconds, first + self._fastest(value, graph.specs[stop], dst)[1]
        return min(seconds, at_once), (dst,)

    def _reach(self, graph: SpecGraph, value: Value, spec: Spec) -> Reach:
        """Between a strided spec and all of a graph."""
        key = (graph, value.shape, value.itemsize, spec)
        if key not in self._reaches:
            lengths = self._priced(graph, value).lengths
            self._reaches[key] = self._strided.reach(value, spec, graph.specs, lengths)
        return self._reaches[key]

    def _canonical(self, value: Value) -> tuple[int, ...]:
        n = self.mesh.size
        if self.uneven:  # a size that the mesh does not divide is padded in its own way
            return tuple(n if size and size % n == 0 else size for size in value.shape)
        return tuple(math.gcd(size, n) for size in value.shape)

    def _graph(self, value: Value, src: Spec) -> SpecGraph:
        """What has all that plain steps can make of a spec, and of what single steps make of it."""
        shape = self._canonical(value)
        whole = Spec(((),) * len(shape), src.partial)
        start = src if src.is_plain else whole
        for root in (None, whole, start):
            key = (shape, root)
            if key not in self._graphs:
                self._graphs[key] = SpecGraph(shape, self.mesh.shape, root, uneven=self.uneven)
            if start in self._graphs[key].number:
                break
        return self._graphs[key]

    def _priced(self, graph: SpecGraph, value: Value) -> _Prices:
        key = (graph, value.n_bytes)
        if key not in self._prices:
            weights = graph.weights(value.n_bytes, self.links)
            self._prices[key] = _Prices(weights, shortest(weights))
        return self._prices[key]


def converter_of(mesh_shape: tuple[int, ...], links: MeshLinks, uneven: bool = False) -> Converter:
    """One converter for all meshes that look alike: prices do not depend on which devices."""
    return _converter(mesh_shape, links, uneven, known_algorithms())


@lru_cache(maxsize=16)
def _converter(
    mesh_shape: tuple[int, ...], links: MeshLinks, uneven: bool, _known: Algorithms
) -> Converter:
    mesh = Mesh(mesh_shape, tuple(f"axis{i}" for i in range(len(mesh_shape))))
    return Converter(mesh, links, uneven=uneven)


@lru_cache(maxsize=1 << 14)
def steps_of(shape: tuple[int, ...], mesh: Mesh, src: Spec, dst: Spec) -> tuple[Step, ...]:
    """The steps of a conversion: one, unless it is from no path."""
    if src.is_plain and dst.is_plain:
        return reshard_whole_axes(*padded_layouts(shape, mesh, src, dst)).steps
    step = single_step(shape, mesh, src, dst, True)
    return () if step is None else (step,)
