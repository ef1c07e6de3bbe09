"""What it takes to convert a value between specs: tables of seconds, found once and for all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from costmodel import Link, MeshLinks, step_time
from numpy.typing import NDArray
from shardspec import Layout, Mesh, ReshardError, Spec, Step, reshard_whole_axes

from autoshard.graph import Value
from autoshard.problem import Array


@dataclass(frozen=True, slots=True, eq=False)
class SpecSet:
    """Distinct specs of one value; compares by identity, so that tables are quick to look up."""

    specs: tuple[Spec, ...]


@lru_cache(maxsize=4096)
def spec_set(specs: tuple[Spec, ...]) -> SpecSet:
    """The one `SpecSet` of these specs."""
    return SpecSet(specs)


class Converter:
    """Prices conversions on one mesh.

    The steps of a conversion depend on the shape only through which splits are even, and their time
    only on bytes. So plans are made for the smallest shape that splits like the real one, whose
    elements are taken to be as wide as it needs for the same bytes.

    `shardspec.reshard_whole_axes` moves few bytes, which is not always the fastest: sums over
    two axes, one of them inside a host, are better reduced inside first. So a conversion may go
    `via` a spec in which one axis has been reduced.
    """

    def __init__(self, mesh: Mesh, links: Sequence[Link]) -> None:
        self.mesh = mesh
        self.links = links
        self._steps: dict[tuple[str, tuple[int, ...], int, int], int] = {}
        self._examples: list[Step] = []
        self._plans: dict[tuple[tuple[int, ...], SpecSet, SpecSet], NDArray[np.intp]] = {}
        self._pairs: dict[tuple[tuple[int, ...], Spec, Spec], tuple[int, ...] | None] = {}
        self._seconds: dict[tuple[tuple[int, ...], int, SpecSet, SpecSet], Array] = {}

    def seconds(self, value: Value, src: SpecSet, dst: SpecSet) -> Array:
        """Seconds from each spec of `src` (rows) to each of `dst`; infinite if there is no way."""
        small, wide = self._canonical(value)
        key = (small, wide, src, dst)
        if key not in self._seconds:
            plans = self._plan(small, src, dst)
            # index -1 is "no way", -2 is "no step"
            times = [step_time(step, wide, self.links) for step in self._examples]
            table = np.array([*times, 0.0, math.inf])[plans].sum(axis=2)
            for row, spec in enumerate(src.specs):
                for middle in _one_axis_reduced(spec):
                    table[row] = np.minimum(table[row], self._through(value, spec, middle, dst))
            self._seconds[key] = table
        return self._seconds[key]

    def via(self, value: Value, src: Spec, dst: Spec) -> Spec | None:
        """Where the fastest way to `dst` stops first; `None` if it is one plan of shardspec's."""
        best = self.seconds(value, spec_set((src,)), spec_set((dst,)))[0, 0]
        for middle in _one_axis_reduced(src):
            through = self._through(value, src, middle, spec_set((dst,)))[0]
            if middle != dst and through == best and through < self._direct(value, src, dst):
                return middle
        return None

    def steps(self, value: Value, src: Spec, dst: Spec) -> tuple[Step, ...]:
        """What `reshard_whole_axes` does to bring a value from `src` to `dst`."""
        return reshard_whole_axes(
            *(Layout(value.shape, self.mesh, spec) for spec in (src, dst))
        ).steps

    def _through(self, value: Value, src: Spec, middle: Spec, dst: SpecSet) -> Array:
        rest: Array = self.seconds(value, spec_set((middle,)), dst)[0]
        return rest + self._direct(value, src, middle)

    def _direct(self, value: Value, src: Spec, dst: Spec) -> float:
        """Seconds of the plan that `reshard_whole_axes` makes."""
        small, wide = self._canonical(value)
        steps = self._pair(small, src, dst)
        if steps is None:
            return math.inf
        return sum(step_time(self._examples[step], wide, self.links) for step in steps)

    def _canonical(self, value: Value) -> tuple[tuple[int, ...], int]:
        """The smallest shape that splits like the value's, and the bytes of its elements."""
        small = tuple(math.gcd(size, self.mesh.size) for size in value.shape)
        return small, value.n_bytes // math.prod(small)

    def _plan(self, shape: tuple[int, ...], src: SpecSet, dst: SpecSet) -> NDArray[np.intp]:
        """Indices of steps, shape (sources, destinations, most steps of any plan)."""
        key = (shape, src, dst)
        if key not in self._plans:
            rows = [[self._pair(shape, a, b) for b in dst.specs] for a in src.specs]
            most = max((len(steps or ()) for row in rows for steps in row), default=0) or 1
            plans = np.full((len(src.specs), len(dst.specs), most), -2)
            for i, row in enumerate(rows):
                for j, steps in enumerate(row):
                    if steps is None:
                        plans[i, j, 0] = -1
                    else:
                        plans[i, j, : len(steps)] = steps
            self._plans[key] = plans
        return self._plans[key]

    def _pair(self, shape: tuple[int, ...], src: Spec, dst: Spec) -> tuple[int, ...] | None:
        """Indices into the known steps, or `None` if `dst` cannot be made from `src`."""
        if src == dst:
            return ()
        key = (shape, src, dst)
        if key not in self._pairs:
            try:
                plan = reshard_whole_axes(
                    Layout(shape, self.mesh, src), Layout(shape, self.mesh, dst)
                )
            except ReshardError:
                self._pairs[key] = None
            else:
                self._pairs[key] = tuple(map(self._index, plan.steps))
        return self._pairs[key]

    def _index(self, step: Step) -> int:
        key = (step.kind, step.mesh_axes, step.src.local_bytes(1), step.dst.local_bytes(1))
        if key not in self._steps:
            self._steps[key] = len(self._examples)
            self._examples.append(step)
        return self._steps[key]


@lru_cache(maxsize=16)
def converter_of(mesh_shape: tuple[int, ...], links: MeshLinks) -> Converter:
    """One converter for all meshes that look alike: prices do not depend on which devices."""
    return Converter(Mesh(mesh_shape, tuple(f"axis{i}" for i in range(len(mesh_shape)))), links)


def _one_axis_reduced(spec: Spec) -> Iterator[Spec]:
    """If several axes hold partial sums: what reducing one of them makes, whole or scattered."""
    if len(spec.partial) < 2:
        return
    for partial in spec.partial:
        rest = tuple(other for other in spec.partial if other != partial)
        yield Spec(spec.dims, rest)
        if partial.kind == "sum":
            for dim in range(len(spec.dims)):
                split = (*spec.dims[dim], partial.axis)
                yield Spec((*spec.dims[:dim], split, *spec.dims[dim + 1 :]), rest)
