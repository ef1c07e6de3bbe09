"""What it takes to convert a value between specs: tables of seconds, found once and for all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from costmodel import MeshLinks
from shardspec import Layout, Mesh, ReshardError, Spec, Step, reshard_whole_axes

from autoshard.graph import Value
from autoshard.moves import SpecGraph, fewest_steps, shortest
from autoshard.problem import Array


@dataclass(frozen=True, slots=True, eq=False)
class SpecSet:
    """Distinct specs of one value; compares by identity, so that tables are quick to look up."""

    specs: tuple[Spec, ...]


@lru_cache(maxsize=4096)
def spec_set(specs: tuple[Spec, ...]) -> SpecSet:
    """The one `SpecSet` of these specs."""
    return SpecSet(specs)


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
    that splits like theirs, and a table of prices all of these that have as many bytes.
    """

    def __init__(self, mesh: Mesh, links: MeshLinks, *, uneven: bool = False) -> None:
        self.mesh = mesh
        self.uneven = uneven
        self.links = links
        self._graphs: dict[tuple[int, ...], SpecGraph] = {}
        self._prices: dict[tuple[tuple[int, ...], int], _Prices] = {}
        self._seconds: dict[tuple[tuple[int, ...], int, SpecSet, SpecSet], Array] = {}

    def seconds(self, value: Value, src: SpecSet, dst: SpecSet) -> Array:
        """Seconds from each spec of `src` (rows) to each of `dst`; infinite if there is no way."""
        key = (self._canonical(value), value.n_bytes, src, dst)
        if key not in self._seconds:
            graph = self._graph(value)
            rows, columns = graph.include(src.specs), graph.include(dst.specs)
            self._seconds[key] = self._priced(value).lengths[np.ix_(rows, columns)]
        return self._seconds[key]

    def path(self, value: Value, src: Spec, dst: Spec) -> tuple[Spec, ...]:
        """The specs after `src` on the fastest way to `dst`, one collective or slice each.

        Raises:
            ReshardError: there is no way.
        """
        graph = self._graph(value)
        start, goal = graph.include((src, dst))
        prices = self._priced(value)
        if math.isinf(prices.lengths[start, goal]):
            raise ReshardError(
                f"collectives over whole axes bring a value from one spec to another; '{value}' "
                f"does not get from {src} to {dst} on {self.mesh.shape}"
            )
        nodes = fewest_steps(prices.weights, prices.lengths, start, goal)
        return tuple(graph.specs[node] for node in nodes)

    def steps(self, value: Value, src: Spec, dst: Spec) -> tuple[Step, ...]:
        """The collectives and slices on the fastest way from `src` to `dst`.

        Raises:
            ReshardError: there is no way.
        """
        steps: list[Step] = []
        for hop in pairwise((src, *self.path(value, src, dst))):
            steps += reshard_whole_axes(*padded_layouts(value.shape, self.mesh, *hop)).steps
        return tuple(steps)

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


def padded_layouts(shape: tuple[int, ...], mesh: Mesh, *specs: Spec) -> tuple[Layout, ...]:
    """The layouts of a tensor in some specs, padded so that all of them are even.

    Examples:
        >>> specs = (Spec.parse("S0"), Spec.parse("R"))
        >>> [layout.shape for layout in padded_layouts((10,), Mesh((4,), ("x",)), *specs)]
        [(12,), (12,)]
    """
    padded = []
    for dim, size in enumerate(shape):
        n = math.lcm(*(mesh.axis_size(spec.sharding_of(dim)) for spec in specs))
        padded.append(-(-size // n) * n)
    return tuple(Layout(tuple(padded), mesh, spec) for spec in specs)
