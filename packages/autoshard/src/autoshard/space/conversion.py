"""Prices of converting a value between specs: tables of seconds, computed once and kept."""

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
"""Tolerance for comparing seconds: sums in a different order differ in their last bits."""
MOST_ENTRIES = 1 << 23
"""Entries of all tables that a converter keeps from one problem to the next: 64 MB [chosen: a GPT
on a mesh of three axes has 1.8 million]."""


@dataclass(frozen=True, slots=True, eq=False)
class SpecSet:
    """Distinct specs of one value; compares by identity, which makes tables fast to look up."""

    specs: tuple[Spec, ...]
    are_plain: bool
    """Whether none of them is strided."""


@lru_cache(maxsize=4096)
def spec_set(specs: tuple[Spec, ...]) -> SpecSet:
    """The `SpecSet` of these specs: the same object for equal specs."""
    return SpecSet(specs, all(spec.is_plain for spec in specs))


@dataclass(frozen=True, slots=True, eq=False)
class _Prices:
    """Prices of conversions, for all values that have the same graph of specs and size in bytes."""

    weights: Array
    """Seconds of single collectives, shape (specs, specs)."""
    lengths: Array
    """Seconds of the fastest conversions, shape (specs, specs)."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """One step that brings a value from the spec `src` to the spec `dst`, once in a phase.

    All readers in that phase that need `dst` share the result. `src` is the spec in which the value
    is computed or stored, or the `dst` of an earlier conversion of the value in the same phase.
    """

    phase: int
    value: str
    src: Spec
    dst: Spec


class Converter:
    """Prices conversions on one mesh.

    Which conversions of a value are possible depends on its shape only through which splits are
    even, and their time depends only on bytes. So one graph of specs serves all values of the same
    *canonical shape*, the smallest shape with the same even splits, and one table of prices serves
    those of them that have the same size in bytes. All specs with partial sums, and all that can be
    reached from them, are in one graph; other partial results, such as maxima, have separate
    graphs. Strided specs are in no graph: single steps lead from them to plain specs and back (see
    `strided_conversion`). One converter serves everything that is planned on a mesh, since neither
    prices nor paths depend on earlier queries.
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
        """Drop all tables if they have many entries; they are recomputed with equal values."""
        kept = sum(table.size for table in self._seconds.values())
        kept += sum(2 * of.lengths.size for of in self._prices.values())
        kept += sum(4 * of.first.size for of in self._reaches.values())
        if kept > MOST_ENTRIES:
            for known in (self._prices, self._seconds, self._reaches):
                known.clear()

    def seconds(self, value: Value, src: SpecSet, dst: SpecSet) -> Array:
        """Seconds from each spec of `src` (rows) to each of `dst`; infinite if there is no path.

        Equal arguments give the same array, which is read-only.
        """
        are_plain = src.are_plain and dst.are_plain
        # a strided spec depends on more of the shape than which splits of it are even
        shape = self._canonical(value) if are_plain else value.shape
        key = (shape, value.n_bytes, src, dst)
        if key not in self._seconds:
            if are_plain:
                table = self._plain_seconds(value, src.specs, dst.specs)
            else:
                ends = product(src.specs, dst.specs)
                table = np.array([self._fastest(value, *pair)[0] for pair in ends])
                table = table.reshape(len(src.specs), len(dst.specs))
            self._seconds[key] = frozen(table)
        return self._seconds[key]

    def path(self, value: Value, src: Spec, dst: Spec) -> tuple[Spec, ...]:
        """The specs after `src` on the fastest path to `dst`, one collective or slice apart.

        Raises:
            ReshardError: no collectives lead from `src` to `dst`.
        """
        seconds, stops = self._fastest(value, src, dst)
        if math.isinf(seconds):
            raise ReshardError(
                f"a value is converted by a sequence of collectives; none brings '{value}' "
                f"from {src} to {dst} on {self.mesh.shape}"
            )
        path: list[Spec] = []
        for before, after in pairwise((src, *stops)):
            if before.is_plain and after.is_plain:
                graph = self._graph(value, before)
                prices = self._priced(graph, value)
                start, goal = graph.number[before], graph.number[after]
                nodes = fewest_steps(prices.weights, prices.lengths, start, goal)
                path += (graph.specs[node] for node in nodes)
            else:
                path.append(after)
        return tuple(path)

    def steps(self, value: Value, src: Spec, dst: Spec) -> tuple[Step, ...]:
        """The collectives and slices on the fastest path from `src` to `dst`.

        Raises:
            ReshardError: no collectives lead from `src` to `dst`.
        """
        hops = pairwise((src, *self.path(value, src, dst)))
        return tuple(step for hop in hops for step in steps_of(value.shape, self.mesh, *hop))

    def _plain_seconds(self, value: Value, src: tuple[Spec, ...], dst: tuple[Spec, ...]) -> Array:
        """The table of `seconds` between plain specs."""
        rows: dict[SpecGraph, list[int]] = {}
        for row, spec in enumerate(src):
            rows.setdefault(self._graph(value, spec), []).append(row)
        table = np.full((len(src), len(dst)), math.inf)
        for graph, of_graph in rows.items():
            columns = [column for column, spec in enumerate(dst) if spec in graph.number]
            starts = [graph.number[src[row]] for row in of_graph]
            goals = [graph.number[dst[column]] for column in columns]
            lengths = self._priced(graph, value).lengths[np.ix_(starts, goals)]
            table[np.ix_(of_graph, columns)] = lengths
        return table

    def _fastest(self, value: Value, src: Spec, dst: Spec) -> tuple[float, tuple[Spec, ...]]:
        """Seconds of the fastest path, and the specs at which its legs end, the last one `dst`.

        A leg is one step to or from a strided spec, or a path between plain specs. A single step is
        preferred to a path that is as fast.
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
            reach = self._reach(graph, value, src)
            seconds, at_once = float(reach.there[goal]), float(reach.first[goal])
            if at_once > seconds * _TIGHT:
                stop = int((reach.first + lengths[:, goal]).argmin())
                return seconds, (graph.specs[stop], dst)
        elif src.is_plain:
            if start is None:
                return at_once, (dst,)
            reach = self._reach(graph, value, dst)
            seconds, at_once = float(reach.back[start]), float(reach.last[start])
            if at_once > seconds * _TIGHT:
                stop = int((lengths[start] + reach.last).argmin())
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
        """Seconds between a strided spec and all specs of a graph."""
        key = (graph, value.shape, value.itemsize, spec)
        if key not in self._reaches:
            lengths = self._priced(graph, value).lengths
            self._reaches[key] = self._strided.reach(value, spec, graph.specs, lengths)
        return self._reaches[key]

    def _canonical(self, value: Value) -> tuple[int, ...]:
        """The canonical shape of a value; see the class."""
        n = self.mesh.size
        if self.uneven:  # each size that the mesh does not divide is padded differently
            return tuple(n if size and size % n == 0 else size for size in value.shape)
        return tuple(math.gcd(size, n) for size in value.shape)

    def _graph(self, value: Value, src: Spec) -> SpecGraph:
        """The graph of all specs that can be reached from `src` by plain steps.

        If `src` is strided, these are all that can be reached after one single step.
        """
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
    """One converter for all meshes of the same shape and links, whichever devices they have."""
    return _converter(mesh_shape, links, uneven, known_algorithms())


@lru_cache(maxsize=16)
def _converter(
    mesh_shape: tuple[int, ...], links: MeshLinks, uneven: bool, _known: Algorithms
) -> Converter:
    mesh = Mesh(mesh_shape, tuple(f"axis{i}" for i in range(len(mesh_shape))))
    return Converter(mesh, links, uneven=uneven)


@lru_cache(maxsize=1 << 14)
def steps_of(shape: tuple[int, ...], mesh: Mesh, src: Spec, dst: Spec) -> tuple[Step, ...]:
    """The steps of a conversion: exactly one if the conversion is one hop of a converter's path."""
    if src.is_plain and dst.is_plain:
        return reshard_whole_axes(*padded_layouts(shape, mesh, src, dst)).steps
    step = single_step(shape, mesh, src, dst, True)
    return () if step is None else (step,)
