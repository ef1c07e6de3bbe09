"""The price of running some layers on some devices: autoshard's best sharding of them.

Memory is no constraint of a search here, which makes it quick: each run of layers is sharded in
some ways, from the fastest to the leanest (`WAYS`), and whoever slices takes the fastest that fits
with as many microbatches as the stage turns out to hold.

At level O2 (Rhino's name) repeated layers are tied, and all stages are priced by one sharding of
the whole model a way and a mesh, layer by layer; only the stages that are taken are searched on
their own. At O3 every stage is that anybody asks for, and nothing is tied.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from operator import le
from typing import Literal, get_args

import autoshard
from autoshard import Graph, MemoryRule, Sharding
from costmodel import Cluster
from shardspec import Mesh, Spec
from stagecut import StageCost, Submesh

from frontends.errors import PlanError
from frontends.layers.collapse import Repeated, all_layers, without_repeats
from frontends.layers.expand import (
    DifferentCopiesError,
    LayerSeconds,
    expand,
    layer_seconds,
    local_elements,
    with_memory,
)
from frontends.layers.layers import LayeredStep
from frontends.price.bounds import Bounds
from frontends.price.parallel_options import WAYS, Option, logical_meshes, options_of
from frontends.price.sharding_cache import Shardings
from frontends.step.stage_memory import footprint, held
from frontends.step.step import APPLY, FORWARD

Level = Literal["O2", "O3"]
"""How thoroughly to search: fast, or everything."""

_LIMITED_STEPS = 10
"""Budget of a search under a memory limit, which comes last; about a second each [chosen]."""

_PRICE_GAP = 1e-4
"""Relative gap of the search of the whole that layers are priced by [chosen: far less than such
prices are off; a stage that is taken is searched on its own, and to the end]."""

_MARGIN = 1.1
"""By how much too high the memory of layers in the whole may be, for the whole of them [chosen]."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A run of layers, sharded over one logical mesh."""

    graph: Graph
    sharding: Sharding
    cost: StageCost


@dataclass(frozen=True, slots=True)
class _Totals:
    """Of the layers before each one (and of all, at the end), by one sharding of the whole."""

    time_s: tuple[float, ...]
    once_s: tuple[float, ...]
    fixed_bytes: tuple[float, ...]
    activation_bytes: tuple[float, ...]
    temporary_bytes: tuple[int, ...]
    """Of each layer: what is held on top while one of its operators runs, at most."""


class Pricer:
    """Prices runs of layers; equal runs on equal submeshes are priced once.

    Args:
        layered: The step.
        cluster: Where it is to run.
        memory_bytes: Limit of one device.
        level: See `Level`.
        memory_rule: How the limit is kept where no way fits; see `autoshard.MemoryRule`.
        pins: Specs that values must have, by name.
        mesh_shape: The shape of the logical mesh that a run is sharded on; by default the best.
    """

    def __init__(
        self,
        layered: LayeredStep,
        cluster: Cluster,
        memory_bytes: int,
        *,
        level: Level = "O2",
        memory_rule: MemoryRule = "limit",
        pins: Mapping[str, Spec] | None = None,
        mesh_shape: tuple[int, ...] | None = None,
    ) -> None:
        if level not in get_args(Level):
            raise PlanError(f"a level is one of {', '.join(get_args(Level))}; got {level!r}")
        if memory_rule not in get_args(MemoryRule):
            raise PlanError(
                f"a memory rule is one of {', '.join(get_args(MemoryRule))}; got {memory_rule!r}"
            )
        self.layered, self.cluster, self.memory_bytes = layered, cluster, memory_bytes
        self.level, self.memory_rule, self.pins = level, memory_rule, dict(pins or {})
        self.mesh_shape = mesh_shape
        self.microbatches = layered.step.microbatches
        self.bounds = Bounds(layered, cluster, memory_bytes)
        self.repeated: Repeated = (
            without_repeats(layered, self.pins) if level == "O2" else all_layers(layered)
        )
        self.shardings = Shardings(self.repeated, cluster, self.pins, tie=level == "O2")
        self._totals: dict[tuple[Submesh, Option], _Totals | None] = {}
        self._expanded: dict[
            tuple[int, int, Submesh, Option], tuple[Sharding, autoshard.Footprint] | None
        ] = {}
        self._layer_seconds: dict[tuple[Hashable, ...], list[LayerSeconds]] = {}

    def sharing(self, share: float) -> Pricer:
        """The same where a stage may take so much of a device's memory."""
        other = copy(self)
        other.memory_bytes = int(self.memory_bytes * share)
        other.bounds = Bounds(self.layered, self.cluster, other.memory_bytes)
        return other

    def costs(
        self, first: int, last: int, submesh: Submesh, held: int = 1
    ) -> tuple[StageCost, ...] | None:
        """What each way to run layers `first` to `last` costs; None if none fits the memory.

        Args:
            first: Layer.
            last: Included.
            submesh: Where.
            held: The most microbatches that the stage may hold: leaner ways are not looked at where
                a faster one has room for as many.
        """
        if self.bounds.least_bytes(first, last) > self.memory_bytes * math.prod(submesh):
            return None
        found: list[StageCost] = []
        for option in options_of(submesh, self.cluster):
            roomy = [c for c in found if c.peak_bytes(held) <= self.memory_bytes]
            if option.way != "free" and option.mesh == 0 and roomy:
                break
            cost = self._cost(first, last, submesh, option)
            if cost is not None and cost.peak_bytes(1) <= self.memory_bytes:
                found.append(cost)
        return tuple(_undominated(found)) or None

    def fastest(self, first: int, last: int, submesh: Submesh) -> list[StageCost]:
        """What layers cost on each mesh in the way that is fastest, if memory had no limit."""
        free = (o for o in options_of(submesh, self.cluster) if o.way == WAYS[0])
        costs = (self._cost(first, last, submesh, option) for option in free)
        return [cost for cost in costs if cost is not None]

    def price(
        self,
        first: int,
        last: int,
        submesh: Submesh,
        held: int = 1,
        *,
        split: bool = False,
        try_hard: bool = True,
    ) -> Priced | None:
        """The best sharding of layers `first` to `last`; None if none fits the memory.

        Args:
            first: Layer.
            last: Included.
            submesh: Where.
            held: Microbatches that the stage holds.
            split: Whether its backward is split in two programs.
            try_hard: Search under the memory limit, where no quick way fits.
        """
        if self.bounds.held_bytes(first, last, held) > self.memory_bytes * math.prod(submesh):
            return None
        leanest: Sharding | None = None
        likely = self._likely(first, last, submesh, held)
        for _, options in groupby(likely, key=lambda option: option.way):
            # the fastest that fits is taken, so that slower ones need not be looked at
            for option in sorted(options, key=lambda o: self._about_s(first, last, submesh, o)):
                exact = self._exact(first, last, submesh, option)
                if exact is None:
                    continue
                found = with_memory(exact[0], held, exact[1], split=split)
                if found.peak_bytes <= self.memory_bytes:
                    return Priced(found.graph, found, stage_cost(found.graph, found, held))
                if leanest is None or found.peak_bytes < leanest.peak_bytes:
                    leanest = found
        if not try_hard or leanest is None:
            return None
        limited = self._limited(first, last, submesh, held, leanest, split)
        if limited is None:
            return None
        return Priced(limited.graph, limited, stage_cost(limited.graph, limited, held))

    def _likely(self, first: int, last: int, submesh: Submesh, held: int) -> list[Option]:
        """The options that fit, by what is known of layers in the whole; then the leanest."""
        meshes = logical_meshes(submesh, self.cluster)
        options = [
            option
            for option in options_of(submesh, self.cluster)
            if self.mesh_shape in (None, meshes[option.mesh].shape)
        ]
        if not options:
            return []

        def seems_to_fit(option: Option) -> bool:
            if (submesh, option) not in self._totals:
                return True
            cost = self._cost(first, last, submesh, option)
            return cost is not None and cost.peak_bytes(held) <= self.memory_bytes

        likely = [option for option in options if seems_to_fit(option)]
        leanest = (option for option in options if option.way == options[-1].way)
        return list(dict.fromkeys((*likely, *leanest)))

    def baseline(self, name: autoshard.Baseline) -> tuple[Mesh, Sharding]:
        """The whole step as a baseline shards it, over all devices.

        Raises:
            AutoshardError: It cannot be so, or does not fit.
        """
        cluster, last = self.cluster, self.layered.n_layers - 1
        whole = (cluster.n_hosts, cluster.devices_per_host)
        meshes, graph = logical_meshes(whole, cluster), self.layered.step.graph
        prepared = self.shardings.prepare(0, last, whole, len(meshes) - 1)
        stored = self._stored_bytes(autoshard.baseline_inputs(graph, meshes[-1], name), meshes[-1])
        if stored > self.memory_bytes:
            raise self._too_large(f"at least {stored}")
        pins = self.shardings.pinned(prepared.graph)
        found = prepared.solve(restrict=name, pin=pins, compare=False, tie=self.level == "O2")
        if self.level == "O2":  # what is far too large need not be looked at whole
            totals = self._totals_of(found)
            about = totals.fixed_bytes[-1] + totals.activation_bytes[-1]
            about += max(totals.temporary_bytes)
            if about > _MARGIN * self.memory_bytes:
                raise self._too_large(f"about {math.ceil(about)}")
        found = with_memory(self._back(found, 0, last), 1)
        if found.peak_bytes > self.memory_bytes and prepared.graph is self.layered.stage(0, last):
            limit = self.memory_bytes
            found = prepared.solve(
                restrict=name, pin=pins, compare=False, memory_bytes=limit, steps=_LIMITED_STEPS
            )
            found = with_memory(found, 1)
        if found.peak_bytes > self.memory_bytes:
            raise self._too_large(str(found.peak_bytes))
        return meshes[-1], found

    def _stored_bytes(self, stored: Mapping[str, tuple[Spec, ...]], mesh: Mesh) -> int:
        """Of the whole step's state, on a device, in the smallest of the specs it may have."""
        values = map(self.layered.step.graph.value, stored.keys() & self.layered.updated)
        return sum(
            value.itemsize
            * min(local_elements(s, value.shape, mesh.shape) for s in stored[value.name])
            for value in values
        )

    def _too_large(self, n_bytes: str) -> autoshard.InfeasibleError:
        return autoshard.InfeasibleError(
            f"it takes {n_bytes} bytes a device, and {self.memory_bytes} are there"
        )

    def _cost(self, first: int, last: int, submesh: Submesh, option: Option) -> StageCost | None:
        """Of one way: by the layers of the whole (O2), or searched for these alone."""
        if self.level == "O3":
            exact = self._exact(first, last, submesh, option)
            if exact is None:
                return None
            sharding, _ = exact
            return replace(stage_cost(sharding.graph, sharding), option=option)
        totals = self._totals_by(submesh, option)
        if totals is None:
            return None

        def of(before: tuple[float, ...]) -> float:
            return max(0.0, before[last + 1] - before[first])

        return StageCost(
            time_s=max(of(totals.time_s), self.bounds.bound_s(first, last, submesh)),
            fixed_bytes=math.ceil(of(totals.fixed_bytes)),
            activation_bytes=math.ceil(of(totals.activation_bytes)),
            once_s=of(totals.once_s),
            temporary_bytes=max(totals.temporary_bytes[first : last + 1]),
            option=option,
        )

    def _totals_by(self, submesh: Submesh, option: Option) -> _Totals | None:
        if (submesh, option) not in self._totals:
            fewer = self.shardings.alike(submesh, option)
            self._totals[submesh, option] = (
                self._by_layers(submesh, option) if fewer is None else self._totals_by(*fewer)
            )
        return self._totals[submesh, option]

    def _by_layers(self, submesh: Submesh, option: Option) -> _Totals | None:
        """One sharding of the whole short step, and what each layer has of it."""
        whole = (0, self.layered.n_layers - 1, submesh)
        found = self.shardings.find(*whole, option, gap=_PRICE_GAP)
        if found is None:
            return None
        for way in WAYS[: WAYS.index(option.way)]:  # a faster way may be as lean
            other = replace(option, way=way)
            totals = self._totals.get((submesh, other))
            if totals is not None and found is self.shardings.find(*whole, other, gap=_PRICE_GAP):
                return totals
        return self._totals_of(found)

    def _totals_of(self, found: Sharding) -> _Totals:
        """What each layer has of a sharding of the whole short step."""
        short, last = self.repeated.short, self.layered.n_layers - 1
        seconds = layer_seconds(short, found, 0)
        fixed, saved = [0.0] * short.n_layers, [0.0] * short.n_layers
        graph = found.graph
        on_top = [0] * (len(graph.operators) + 1)
        for one in held(found):
            if one.value in graph.producers:
                op = graph.operators[graph.producers[one.value][0]]
                layer = short.layer_of[op.name]
            else:
                layer = short.home[one.value]
            if one.kind == "activation":
                saved[layer] += one.n_bytes
            elif one.kind in ("parameter", "optimizer_state", "input", "gradient"):
                fixed[layer] += one.n_bytes
            else:
                on_top[one.first] += one.n_bytes
                on_top[one.last] -= one.n_bytes
        temporary = [0] * short.n_layers
        for op, n_bytes in zip(graph.operators, accumulate(on_top), strict=False):
            layer = short.layer_of[op.name]
            temporary[layer] = max(temporary[layer], n_bytes)
        layers, _, _ = self.repeated.shortened(0, last)
        repeats = self.microbatches
        return _Totals(
            _sums([sum(seconds[k].total_s[:APPLY]) / repeats for k in layers]),
            _sums([seconds[k].total_s[APPLY] for k in layers]),
            _sums([fixed[k] for k in layers]),
            _sums([saved[k] for k in layers]),
            tuple(temporary[k] for k in layers),
        )

    def _exact(
        self, first: int, last: int, submesh: Submesh, option: Option
    ) -> tuple[Sharding, autoshard.Footprint] | None:
        """A run of layers sharded on its own, and what it holds; None if it cannot be."""
        key = (first, last, submesh, option)
        if key not in self._expanded:
            found = self.shardings.find(first, last, submesh, option)
            self._expanded[key] = None
            if found is not None:
                seconds = self._seconds(first, last, submesh, option, found)
                whole = self._back(found, first, last, seconds)
                over_time = footprint(whole)
                self._expanded[key] = with_memory(whole, 1, over_time), over_time
        return self._expanded[key]

    def _about_s(self, first: int, last: int, submesh: Submesh, option: Option) -> float:
        """What a step takes by an option; exactly, if equal layers can do what stands for them."""
        found = self.shardings.find(first, last, submesh, option)
        if found is None:
            return math.inf
        return self._seconds(first, last, submesh, option, found).objective_s

    def _seconds(
        self, first: int, last: int, submesh: Submesh, option: Option, found: Sharding
    ) -> LayerSeconds:
        """What a run of layers takes by an option, layer by layer as what stands for them."""
        layers, *ends = self.repeated.shortened(first, last)
        key = (*ends, submesh, option)
        if key not in self._layer_seconds:
            self._layer_seconds[key] = layer_seconds(self.repeated.short, found, ends[0])
        return LayerSeconds.of(self._layer_seconds[key], layers)

    def _back(
        self, found: Sharding, first: int, last: int, seconds: LayerSeconds | None = None
    ) -> Sharding:
        """The sharding of the layers themselves, of that of what stands for them."""
        graph = self.layered.stage(first, last)
        try:
            return expand(self.repeated, found, first, last, graph, seconds)
        except DifferentCopiesError:  # then each layer is looked at
            prepared = autoshard.prepare(graph, found.mesh, self.cluster)
            pins = self.shardings.pinned(graph)
            return prepared.solve(restrict=found.options.restrict, pin=pins, compare=False)

    def _limited(
        self,
        first: int,
        last: int,
        submesh: Submesh,
        held: int,
        leanest: Sharding,
        split: bool,
    ) -> Sharding | None:
        """By a search under the limit, where all quick ways take more.

        What stands for the layers gets as much less memory as it takes less in the leanest way.
        """
        mesh = next(
            i for i, m in enumerate(logical_meshes(submesh, self.cluster)) if m == leanest.mesh
        )
        prepared = self.shardings.prepare(first, last, submesh, mesh)
        options = autoshard.Options(in_flight=held)
        prepared = autoshard.prepare(prepared.graph, prepared.mesh, self.cluster, options)
        limit = self.memory_bytes
        if len(prepared.graph.operators) < len(leanest.graph.operators):
            way = WAYS[-1] if math.prod(submesh) > 1 else WAYS[0]
            few = self.shardings.find(first, last, submesh, Option(mesh, way))
            if few is None:
                return None
            limit = int(limit * with_memory(few, held, split=split).peak_bytes / leanest.peak_bytes)
        try:
            found = prepared.solve(
                memory_bytes=limit,
                memory_rule=self.memory_rule,
                pin=self.shardings.pinned(prepared.graph),
                compare=False,
                tie=self.level == "O2",
                steps=_LIMITED_STEPS,
            )
            whole = expand(self.repeated, found, first, last, self.layered.stage(first, last))
        except (autoshard.InfeasibleError, autoshard.PinError, DifferentCopiesError):
            return None
        whole = with_memory(whole, held, split=split)
        return whole if whole.peak_bytes <= self.memory_bytes else None


def stage_cost(graph: Graph, sharding: Sharding, in_flight: int = 1) -> StageCost:
    """What stagecut needs to know.

    Args:
        graph: What the stage runs.
        sharding: How.
        in_flight: Microbatches whose activations are in the sharding's peak.
    """
    totals = [c + k for c, k in zip(sharding.compute_s, sharding.communication_s, strict=True)]
    return StageCost(
        time_s=sum(totals[:APPLY]) / graph.phases[FORWARD].repeats,
        fixed_bytes=max(0, math.ceil(sharding.peak_bytes - in_flight * sharding.activation_bytes)),
        activation_bytes=math.ceil(sharding.activation_bytes),
        once_s=totals[APPLY],
    )


def _undominated(costs: Sequence[StageCost]) -> list[StageCost]:
    """Without those that another one is no worse than in everything; of equals the first stays."""
    kept: list[StageCost] = []
    for cost in costs:
        numbers = _numbers(cost)
        if not any(all(map(le, _numbers(other), numbers)) for other in kept):
            kept = [k for k in kept if not all(map(le, numbers, _numbers(k)))] + [cost]
    return kept


def _numbers(cost: StageCost) -> tuple[float, ...]:
    held = cost.fixed_bytes + cost.temporary_bytes
    return cost.time_s, cost.once_s, held, cost.activation_bytes


def _sums(items: list[float]) -> tuple[float, ...]:
    return (0.0, *accumulate(items))
