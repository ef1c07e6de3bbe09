"""What it takes to convert a value between specs: tables of seconds, found once and for all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product

import numpy as np
from costmodel import MeshLinks
from shardspec import Mesh, ReshardError, Spec, Step, reshard_whole_axes

from autoshard.graph import Value
from autoshard.moves import SpecGraph, fewest_steps, shortest
from autoshard.problem import Array
from autoshard.strided import Reach, StridedMoves, padded_layouts, single_step

_TIGHT = 1 + 1e-12
"""As sums in another order differ in their last bits."""


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
    that splits like theirs, and a table of prices all of these that have as many bytes. Strided
    specs are no part of it: single steps lead from them to plain ones and back (see `strided`), so
    that what is asked of them changes no price of the others.
    """

    def __init__(self, mesh: Mesh, links: MeshLinks, *, uneven: bool = False) -> None:
        self.mesh = mesh
        self.uneven = uneven
        self.links = links
        self._graphs: dict[tuple[int, ...], SpecGraph] = {}
        self._prices: dict[tuple[tuple[int, ...], int], _Prices] = {}
        self._seconds: dict[tuple[tuple[int, ...], int, SpecSet, SpecSet], Array] = {}
        self._strided = StridedMoves(mesh, links, uneven)
        self._reaches: dict[tuple[tuple[int, ...], int, Spec], Reach] = {}

    def seconds(self, value: Value, src: SpecSet, dst: SpecSet) -> Array:
        """Seconds from each spec of `src` (rows) to each of `dst`; infinite if there is no way."""
        are_plain = src.are_plain and dst.are_plain
        # a strided spec depends on more of the shape than which splits of it are even
        shape = self._canonical(value) if are_plain else value.shape
        key = (shape, value.n_bytes, src, dst)
        if key not in self._seconds:
            if are_plain:
                graph = self._graph(value)
                rows, columns = graph.include(src.specs), graph.include(dst.specs)
                self._seconds[key] = self._priced(value).lengths[np.ix_(rows, columns)]
            else:
                ends = product(src.specs, dst.specs)
                found = np.array([self._fastest(value, *pair)[0] for pair in ends])
                self._seconds[key] = found.reshape(len(src.specs), len(dst.specs))
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
                graph, prices = self._graph(value), self._priced(value)
                start, goal = graph.include((before, after))
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

    def _fastest(self, value: Value, src: Spec, dst: Spec) -> tuple[float, tuple[Spec, ...]]:
        """Seconds, and where strided and plain steps meet on the way, up to `dst`.

        Of ways that are as fast, the single step.
        """
        graph = self._graph(value)
        if src.is_plain and dst.is_plain:
            start, goal = graph.include((src, dst))
            return float(self._priced(value).lengths[start, goal]), (dst,)
        if src == dst:
            return 0.0, ()
        if dst.is_plain:
            (goal,) = graph.include((dst,))
            way = self._reach(value, src)
            seconds, at_once = float(way.there[goal]), float(way.first[goal])
            if at_once > seconds * _TIGHT:
                stop = int((way.first + self._priced(value).lengths[:, goal]).argmin())
                return seconds, (graph.specs[stop], dst)
        elif src.is_plain:
            (start,) = graph.include((src,))
            way = self._reach(value, dst)
            seconds, at_once = float(way.back[start]), float(way.last[start])
            if at_once > seconds * _TIGHT:
                stop = int((self._priced(value).lengths[start] + way.last).argmin())
                return seconds, (graph.specs[stop], dst)
        else:
            self._reach(value, dst)  # first, as it may add to the plain specs
            through = self._reach(value, src).there + self._reach(value, dst).back
            stop = int(through.argmin())
            seconds, at_once = float(through[stop]), self._strided.seconds(value, src, dst)
            if at_once > seconds * _TIGHT:
                first = self._fastest(value, src, graph.specs[stop])[1]
                return seconds, first + self._fastest(value, graph.specs[stop], dst)[1]
        return min(seconds, at_once), (dst,)

    def _reach(self, value: Value, spec: Spec) -> Reach:
        """Between a strided spec and all plain ones of the value."""
        graph = self._graph(value)
        # all that can be made of it, too, is there
        graph.include((Spec(((),) * len(value.shape), spec.partial),))
        key = (value.shape, value.itemsize, spec)
        if key not in self._reaches or len(self._reaches[key].first) < len(graph.specs):
            lengths = self._priced(value).lengths
            self._reaches[key] = self._strided.reach(value, spec, graph.specs, lengths)
        return self._reaches[key]

    def _canonical(self, value: Value) -> tuple[int, ...]:
        n = self.mesh.size
        if self.uneven:  # a size that the mesh does not divide is padded in its own way
            return tuple(n if size and size % n == 0 else size for size in value.shape)
        return tuple(math.gcd(size, n) for size in value.shape)

    def _graph(self, value: Value) -> SpecGraph:
        shape = self._canonical(value)
        if shape not in self._graphs:
            self._graphs[shape] = SpecGraph(shape, self.mesh.shape, uneven=self.uneven)
        return self._graphs[shape]

    def _priced(self, value: Value) -> _Prices:
        graph = self._graph(value)
        key = (self._canonical(value), value.n_bytes)
        # specs that came later, as partial maxima do, are not in older tables
        if key not in self._prices or len(self._prices[key].lengths) < len(graph.specs):
            weights = graph.weights(value.n_bytes, self.links)
            self._prices[key] = _Prices(weights, shortest(weights))
        return self._prices[key]


@lru_cache(maxsize=16)
def converter_of(mesh_shape: tuple[int, ...], links: MeshLinks, uneven: bool = False) -> Converter:
    """One converter for all meshes that look alike: prices do not depend on which devices."""
    mesh = Mesh(mesh_shape, tuple(f"axis{i}" for i in range(len(mesh_shape))))
    return Converter(mesh, links, uneven=uneven)


@lru_cache(maxsize=1 << 14)
def steps_of(shape: tuple[int, ...], mesh: Mesh, src: Spec, dst: Spec) -> tuple[Step, ...]:
    """The steps of a conversion: one, unless it is from no path."""
    if src.is_plain and dst.is_plain:
        return reshard_whole_axes(*padded_layouts(shape, mesh, src, dst)).steps
    step = single_step(shape, mesh, src, dst, True)
    return () if step is None else (step,)
