"""Shardings of the few layers that stand for many; equal searches are made once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import autoshard
from autoshard import Graph, Prepared, Sharding
from costmodel import Cluster
from shardspec import Spec
from stagecut import Submesh

from frontends.layers.collapse import Repeated
from frontends.price.parallel_options import WAYS, Option, lean_specs, logical_meshes

_Structure = tuple[str, tuple[tuple[int, Spec], ...]]
"""All that decides how a run of layers is sharded, besides where: what it computes, and what is
pinned, by the place of a value among `_names`."""


class Shardings:
    """Shardings of runs of layers, by what stands for them.

    Args:
        repeated: The step, and the same with fewer copies of equal layers.
        cluster: Where it is to run.
        pins: Specs that values must have, by name.
        tie: Whether repeated layers take the same strategies.
    """

    def __init__(
        self, repeated: Repeated, cluster: Cluster, pins: Mapping[str, Spec], *, tie: bool
    ) -> None:
        self.repeated, self.cluster, self.tie = repeated, cluster, tie
        self._pins = dict(pins)
        self._structures: dict[tuple[int, int], _Structure] = {}
        self._prepared: dict[tuple[tuple[int, int], Submesh, int], Prepared] = {}
        self._found: dict[
            tuple[_Structure, float, Submesh, Option], tuple[Graph, Sharding] | None
        ] = {}

    def find(
        self, first: int, last: int, submesh: Submesh, option: Option, *, gap: float = 0.0
    ) -> Sharding | None:
        """What stands for a run of layers, sharded one way; None if pins forbid it.

        Args:
            first: Layer.
            last: Included.
            submesh: Where.
            option: How.
            gap: As of `autoshard.Prepared.solve`.
        """
        prepared = self.prepare(first, last, submesh, option.mesh)
        graph = prepared.graph
        key = (self._structure(self._ends(first, last)), gap, submesh, option)
        if key not in self._found:
            pins: dict[str, tuple[Spec, ...]] = lean_specs(graph, prepared.mesh, option.way)
            pins |= self.pinned(graph)
            earlier = (replace(option, way=way) for way in WAYS[: WAYS.index(option.way)])
            same = (self._found.get((*key[:3], other)) for other in earlier)
            if good := [found for found in same if found is not None and _has(found[1], pins)]:
                self._found[key] = good[0]  # the best of all is the best of those
                return self.find(first, last, submesh, option, gap=gap)
            try:
                found = prepared.solve(pin=pins, compare=False, tie=self.tie, gap=gap)
            except autoshard.PinError:
                self._found[key] = None
            else:
                self._found[key] = (graph, found)
        known = self._found[key]
        return None if known is None else _renamed(known[1], known[0], graph)

    def prepare(self, first: int, last: int, submesh: Submesh, mesh: int) -> Prepared:
        """The problem of sharding what stands for a run of layers."""
        ends = self._ends(first, last)
        key = (ends, submesh, mesh)
        if key not in self._prepared:
            on = logical_meshes(submesh, self.cluster)[mesh]
            graph = self.repeated.short.stage(*ends)
            self._prepared[key] = autoshard.prepare(graph, on, self.cluster)
        return self._prepared[key]

    def alike(self, submesh: Submesh, option: Option) -> tuple[Submesh, Option] | None:
        """Fewer devices that do all that these can; None if the option uses every axis.

        An axis whose length divides no dim lies idle: three hosts of eight are as one host where
        nothing is cut in three.
        """
        n_hosts, per_host = submesh
        if n_hosts == 1 or self._pins:  # pins name axes
            return None
        mesh = logical_meshes(submesh, self.cluster)[option.mesh]
        if mesh.ndim == 1 and self._is_idle(n_hosts * per_host):
            return (1, 1), Option(0, WAYS[0])
        if mesh.ndim == 2 and self._is_idle(n_hosts):
            return (1, per_host), replace(option, mesh=0)
        return None

    def _is_idle(self, n: int) -> bool:
        """Whether no dim can be split over an axis of this length."""
        return not any(size >= n and size % n == 0 for size in self._sizes)

    @cached_property
    def _sizes(self) -> frozenset[int]:
        """Of all that may be split."""
        graph = self.repeated.short.step.graph
        dims = {size for value in graph.values for size in value.shape}
        return frozenset(dims.union(f.size for op in graph.operators for f in op.rule.factors))

    def pinned(self, graph: Graph) -> dict[str, tuple[Spec, ...]]:
        """The pins of a graph's values."""
        return {name: (spec,) for name, spec in self._pins.items() if name in graph.by_name}

    def _structure(self, ends: tuple[int, int]) -> _Structure:
        """Equal for runs that differ in names only, and are pinned alike."""
        if ends not in self._structures:
            graph = self.repeated.short.stage(*ends)
            pins = [(i, self._pins[n]) for i, n in enumerate(_names(graph)) if n in self._pins]
            self._structures[ends] = (autoshard.structural_hash(graph), tuple(pins))
        return self._structures[ends]

    def _ends(self, first: int, last: int) -> tuple[int, int]:
        _, low, high = self.repeated.shortened(first, last)
        return low, high


def _has(sharding: Sharding, pins: Mapping[str, tuple[Spec, ...]]) -> bool:
    """Whether all that is pinned has one of its specs; the graph's names may be another's."""
    made = dict(sharding.input_specs)
    for op, strategy in zip(sharding.graph.operators, sharding.strategies, strict=True):
        made.update(zip(op.outputs, strategy.result_specs, strict=True))
    return all(made.get(name) in specs for name, specs in pins.items())


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
