"""Cache of the shardings of the short step; equal searches run once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import autoshard
from autoshard import Graph, Prepared, Sharding, Strategy
from shardspec import Mesh, Spec
from stagecut import Submesh

from frontends.layers.collapse import Repeated
from frontends.price.batch_dims import batch_dims
from frontends.price.device_pool import DevicePool
from frontends.price.parallel_options import (
    NO_PINS,
    WAYS,
    Option,
    ParallelPins,
    Way,
    lean_specs,
    logical_meshes,
    looser_ways,
)
from frontends.price.pins import OperandSpecs

_Structure = tuple[str, tuple[tuple[int, Spec | OperandSpecs], ...]]
"""Everything but the mesh that decides how a run of layers is sharded: the structure of its graph,
and its pins, by the index of a value among `_names`."""

Allowed = dict[str, tuple[Spec, ...] | tuple[Strategy, ...]]
"""By value, the specs that it may have; by operator, the strategies."""


class Shardings:
    """Shardings of runs of layers, in terms of the short layers that stand for them.

    Args:
        repeated: The step, and the same with fewer copies of equal layers.
        pool: The devices to plan for.
        pins: Specs that values must have, by name.
        parallel: Ways of parallelism that the user chose.
        tie: Whether repeated layers have to take the same strategies.
    """

    def __init__(
        self,
        repeated: Repeated,
        pool: DevicePool,
        pins: Mapping[str, Spec | OperandSpecs],
        parallel: ParallelPins = NO_PINS,
        *,
        tie: bool,
    ) -> None:
        self.repeated, self.pool, self.tie = repeated, pool, tie
        self.parallel = parallel
        self._pins = dict(pins)
        self.misfit = ""
        """Why the pins forbid an option, if they forbade any."""

        self._structures: dict[tuple[int, int], _Structure] = {}
        self._prepared: dict[tuple[tuple[int, int], Submesh, int], Prepared] = {}
        self._found: dict[
            tuple[_Structure, float, Submesh, Option], tuple[Graph, Sharding] | None
        ] = {}

    def find(
        self, first: int, last: int, submesh: Submesh, option: Option, *, gap: float = 0.0
    ) -> Sharding | None:
        """The best sharding of the short layers that stand for a run; None if pins forbid it.

        Args:
            first: First layer of the run.
            last: Last layer, included.
            submesh: The submesh that the run is on.
            option: The logical mesh, and how state is stored.
            gap: See `autoshard.Prepared.solve`.
        """
        prepared = self.prepare(first, last, submesh, option.mesh)
        graph = prepared.graph
        key = (self._structure(self._ends(first, last)), gap, submesh, option)
        if key not in self._found:
            pins = self.allowed(graph, prepared.mesh, option.way)
            if not all(pins.values()):
                name = next(name for name, allowed in pins.items() if not allowed)
                shape = "x".join(map(str, prepared.mesh.shape))
                self.misfit = f"{name!r} cannot be on a mesh of {shape} as its pin and the ways ask"
                self._found[key] = None
                return None
            earlier = (replace(option, way=way) for way in looser_ways(option.way))
            same = (self._found.get((*key[:3], other)) for other in earlier)
            if good := [known for known in same if known is not None and _has(known[1], pins)]:
                # The best sharding with fewer constraints keeps these, too, so it is the best here.
                self._found[key] = good[0]
                return self.find(first, last, submesh, option, gap=gap)
            try:
                sharding = prepared.solve(pin=pins, compare=False, tie=self.tie, gap=gap)
            except autoshard.PinError as error:
                self.misfit = str(error)
                self._found[key] = None
            else:
                self._found[key] = (graph, sharding)
        known = self._found[key]
        return None if known is None else _renamed(known[1], known[0], graph)

    def prepare(self, first: int, last: int, submesh: Submesh, mesh: int) -> Prepared:
        """The sharding problem of the short layers that stand for a run."""
        ends = self._ends(first, last)
        key = (ends, submesh, mesh)
        if key not in self._prepared:
            on = logical_meshes(submesh, self.pool, self.parallel)[mesh]
            graph = self.repeated.short.stage(*ends)
            self._prepared[key] = autoshard.prepare(graph, on, self.pool.cluster)
        return self._prepared[key]

    def alike(self, submesh: Submesh, option: Option) -> tuple[Submesh, Option] | None:
        """A smaller submesh with the same shardings; None if every axis of the option is usable.

        An axis whose length divides no dim is idle: if no dim can be split in three, three hosts of
        eight devices are as good as one.
        """
        n_hosts, per_host = submesh
        if n_hosts == 1 or self._pins or self.parallel != NO_PINS:  # pins name axes
            return None
        mesh = logical_meshes(submesh, self.pool)[option.mesh]
        if mesh.ndim == 1 and self._is_idle(n_hosts * per_host):
            fewer, option = self.pool.fewer(submesh, 1, 1), Option(0, WAYS[0])
        elif mesh.ndim == 2 and self._is_idle(n_hosts):
            fewer, option = self.pool.fewer(submesh, 1, per_host), replace(option, mesh=0)
        else:
            return None
        return None if fewer is None else (fewer, option)

    def _is_idle(self, n: int) -> bool:
        """Whether no dim can be split over an axis of this length."""
        return not any(size >= n and size % n == 0 for size in self._sizes)

    @cached_property
    def _batch(self) -> dict[str, int]:
        """The dim of each value along which examples lie, if the user's ways need to know it."""
        if not self.parallel.has_ways:
            return {}
        return batch_dims(self.repeated.short.step.graph)

    @cached_property
    def _sizes(self) -> frozenset[int]:
        """The sizes of all dims and factors."""
        graph = self.repeated.short.step.graph
        dims = {size for value in graph.values for size in value.shape}
        return frozenset(dims.union(f.size for op in graph.operators for f in op.rule.factors))

    def pinned(self, graph: Graph, mesh: Mesh) -> Allowed:
        """The pins of a graph's values and operators."""
        pinned: Allowed = {}
        for name, pin in self._pins.items():
            if isinstance(pin, Spec):
                if name in graph.by_name:
                    pinned[name] = (pin,)
            elif name in graph.producers:  # not where another stage makes it
                op = graph.operators[graph.producers[name][0]]
                pinned[op.name] = pin.strategies(op.rule, mesh.shape)
        return pinned

    def allowed(self, graph: Graph, mesh: Mesh, way: Way) -> Allowed:
        """What a graph's values and operators may have in a way; anything if they are left out."""
        allowed: Allowed = {**lean_specs(graph, mesh, way, self.parallel, self._batch)}
        operators = {op.name: op for op in graph.operators}
        for name, pin in self.pinned(graph, mesh).items():
            strategies = tuple(one for one in pin if isinstance(one, Strategy))
            for place, result in enumerate(operators[name].outputs if strategies else ()):
                if result in allowed:  # an operator has one entry, so its results' go into that
                    specs = allowed.pop(result)
                    strategies = tuple(s for s in strategies if s.result_specs[place] in specs)
            allowed[name] = strategies if pin and isinstance(pin[0], Strategy) else pin
        return allowed

    def _structure(self, ends: tuple[int, int]) -> _Structure:
        """A key that is equal for runs with the same pins that differ in names only."""
        if ends not in self._structures:
            graph = self.repeated.short.stage(*ends)
            pins = [(i, self._pins[n]) for i, n in enumerate(_names(graph)) if n in self._pins]
            self._structures[ends] = (autoshard.structural_hash(graph), tuple(pins))
        return self._structures[ends]

    def _ends(self, first: int, last: int) -> tuple[int, int]:
        _, low, high = self.repeated.shortened(first, last)
        return low, high


def _has(sharding: Sharding, pins: Allowed) -> bool:
    """Whether every pinned value has one of its specs.

    The sharding may be that of an equal graph with other names; then the answer is False.
    """
    produced = dict(sharding.input_specs)
    for op, strategy in zip(sharding.graph.operators, sharding.strategies, strict=True):
        produced.update(zip(op.outputs, strategy.result_specs, strict=True))
    return all(produced.get(name) in specs for name, specs in pins.items())


def _renamed(sharding: Sharding, old: Graph, new: Graph) -> Sharding:
    """The sharding of `old` for a graph that differs in names only."""
    if old is new:
        return sharding
    name = dict(zip(_names(old), _names(new), strict=True))
    return replace(
        sharding,
        graph=new,
        input_specs=tuple((name[value], spec) for value, spec in sharding.input_specs),
        conversions=tuple(replace(c, value=name[c.value]) for c in sharding.conversions),
    )


def _names(graph: Graph) -> list[str]:
    return [*graph.inputs, *(name for op in graph.operators for name in op.outputs)]
