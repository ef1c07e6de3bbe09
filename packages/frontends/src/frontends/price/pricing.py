"""The price of running some layers on some devices: autoshard's best sharding of them.

To be quick, the searches here have no memory constraint: each run of layers is sharded in several
ways, from the fastest to the leanest (`WAYS`), and the slicing takes the fastest one that fits with
as many microbatches as the stage turns out to hold.

At level O2 (Rhino's name) repeated layers are tied. For each way and mesh, one sharding of the
whole model gives the price of each layer, and the price of a stage is the sum over its layers; only
stages that a plan consists of are searched on their own. At O3 every requested stage is searched on
its own, and layers are not tied.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import groupby
from operator import le
from typing import Literal, get_args

import autoshard
from autoshard import Graph, MemoryRule, Sharding
from shardspec import Mesh, Spec
from shardspec.amounts import bytes_text
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
from frontends.price.device_pool import DevicePool
from frontends.price.layer_totals import LayerTotals, layer_totals
from frontends.price.parallel_options import (
    NO_PINS,
    Option,
    ParallelPins,
    Way,
    logical_meshes,
    looser_ways,
    options_of,
    ways_of,
)
from frontends.price.pins import OperandSpecs
from frontends.price.sharding_cache import Allowed, Shardings
from frontends.step.stage_memory import footprint
from frontends.step.step import APPLY, FORWARD

Level = Literal["O2", "O3"]
"""How thoroughly to search: O2 is fast, O3 searches every stage."""

_LIMITED_STEPS = 10
"""Budget of a search under a memory limit, which is the last resort: about a second each
[chosen]."""

_PRICE_GAP = 1e-3
"""Relative gap of the searches of the whole model from which layers are priced [chosen: far less
than the error of such prices; the stages of a plan are searched on their own, with no gap]."""

_MARGIN = 1.1
"""Factor by which the sum of the layers' memory may exceed that of the whole model [chosen]."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A run of layers, sharded over one logical mesh."""

    graph: Graph
    sharding: Sharding
    cost: StageCost


@dataclass(slots=True)
class Shortage:
    """Whether the memory limit has kept a pricer from something."""

    is_met: bool = False

    def unless(self, fits: bool) -> bool:
        """Pass on whether something fits the limit, and remember if it does not."""
        self.is_met = self.is_met or not fits
        return fits


class Pricer:
    """Prices runs of layers; equal runs on equal submeshes are priced once.

    Args:
        layered: The step.
        pool: The devices to plan for, with their memory limits.
        level: See `Level`.
        memory_rule: How to keep the limit if no way fits; see `autoshard.MemoryRule`.
        pins: Specs that values must have, by name.
        parallel: Ways of parallelism that the user chose, and the shape of the logical mesh.
    """

    def __init__(
        self,
        layered: LayeredStep,
        pool: DevicePool,
        *,
        level: Level = "O2",
        memory_rule: MemoryRule = "limit",
        pins: Mapping[str, Spec | OperandSpecs] | None = None,
        parallel: ParallelPins = NO_PINS,
    ) -> None:
        if level not in get_args(Level):
            raise PlanError(f"a level is one of {', '.join(get_args(Level))}; got {level!r}")
        if memory_rule not in get_args(MemoryRule):
            raise PlanError(
                f"a memory rule is one of {', '.join(get_args(MemoryRule))}; got {memory_rule!r}"
            )
        self.layered, self.pool = layered, pool
        self.level, self.memory_rule, self.pins = level, memory_rule, dict(pins or {})
        self.parallel = parallel
        self.microbatches = layered.step.microbatches
        self.bounds = Bounds(layered, pool)
        self.shortage = Shortage()
        self.repeated: Repeated = (
            without_repeats(layered, self.pins) if level == "O2" else all_layers(layered)
        )
        self.shardings = Shardings(self.repeated, pool, self.pins, parallel, tie=level == "O2")
        self._totals: dict[tuple[Submesh, Option], LayerTotals | None] = {}
        self._expanded: dict[
            tuple[int, int, Submesh, Option], tuple[Sharding, autoshard.Footprint] | None
        ] = {}
        self._layer_seconds: dict[tuple[Hashable, ...], list[LayerSeconds]] = {}

    def sharing(self, share: float) -> Pricer:
        """The same pricer, with this share of the memory limit."""
        other = copy(self)
        other.pool = self.pool.sharing(share)
        other.bounds = self.bounds.sharing(other.pool)
        return other

    def costs(
        self, first: int, last: int, submesh: Submesh, held: int = 1
    ) -> tuple[StageCost, ...] | None:
        """The cost of layers `first` to `last` for each way and mesh; None if none fits the memory.

        Args:
            first: First layer.
            last: Last layer, included.
            submesh: The submesh that they run on.
            held: The most microbatches that the stage may hold. If a faster way has room for as
                many, leaner ways are not priced.
        """
        fits, limit = self.shortage.unless, self.pool.limit(submesh)
        if not fits(self.bounds.least_bytes(first, last) <= limit * math.prod(submesh)):
            return None
        costs: list[StageCost] = []
        fastest, *_ = self._ways(submesh)
        for option in self.options(submesh):
            roomy = [c for c in costs if fits(c.peak_bytes(held) <= limit)]
            if option.way != fastest and option.mesh == 0 and roomy:
                break
            cost = self.cost(first, last, submesh, option)
            if cost is not None and fits(cost.peak_bytes(1) <= limit):
                costs.append(cost)
        return tuple(undominated(costs)) or None

    def options(self, submesh: Submesh) -> Iterator[Option]:
        """The options for running a stage on a submesh; none if the user's ways do not fit it."""
        return options_of(submesh, self.pool, self.parallel)

    def _meshes(self, submesh: Submesh) -> list[Mesh]:
        return logical_meshes(submesh, self.pool, self.parallel)

    def _ways(self, submesh: Submesh) -> tuple[Way, ...]:
        return ways_of(math.prod(submesh), self.parallel)

    def fastest(self, first: int, last: int, submesh: Submesh) -> list[StageCost]:
        """The cost of layers on each mesh in the fastest way, without a memory limit."""
        free = (o for o in self.options(submesh) if o.way == self._ways(submesh)[0])
        costs = (self.cost(first, last, submesh, option) for option in free)
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
            first: First layer.
            last: Last layer, included.
            submesh: The submesh that they run on.
            held: Number of microbatches that the stage holds.
            split: Whether its backward is split into two programs.
            try_hard: Whether to search under the memory limit if no way without fits.
        """
        fits, limit = self.shortage.unless, self.pool.limit(submesh)
        if not fits(self.bounds.held_bytes(first, last, held) <= limit * math.prod(submesh)):
            return None
        leanest: Sharding | None = None
        likely = self._likely(first, last, submesh, held)
        for _, options in groupby(likely, key=lambda option: option.way):
            # The fastest one that fits is the answer, so the slower ones are not expanded.
            for option in sorted(options, key=lambda o: self._about_s(first, last, submesh, o)):
                exact = self._exact(first, last, submesh, option)
                if exact is None:
                    continue
                sharding = with_memory(exact[0], held, exact[1], split=split)
                if fits(sharding.peak_bytes <= limit):
                    cost = stage_cost(sharding.graph, sharding, held)
                    return Priced(sharding.graph, sharding, cost)
                if leanest is None or sharding.peak_bytes < leanest.peak_bytes:
                    leanest = sharding
        if not try_hard or leanest is None:
            return None
        limited = self._limited(first, last, submesh, held, leanest, split)
        if limited is None:
            return None
        return Priced(limited.graph, limited, stage_cost(limited.graph, limited, held))

    def _likely(self, first: int, last: int, submesh: Submesh, held: int) -> list[Option]:
        """The options that seem to fit, by the layers of the whole model; then the leanest ones."""
        options = list(self.options(submesh))
        if not options:
            return []

        def seems_to_fit(option: Option) -> bool:
            if (submesh, option) not in self._totals:
                return True
            cost = self.cost(first, last, submesh, option)
            return cost is not None and self.shortage.unless(
                cost.peak_bytes(held) <= self.pool.limit(submesh)
            )

        likely = [option for option in options if seems_to_fit(option)]
        leanest = (option for option in options if option.way == options[-1].way)
        return list(dict.fromkeys((*likely, *leanest)))

    def baseline(self, name: autoshard.Baseline) -> tuple[Mesh, Sharding]:
        """The whole step as a baseline shards it, over all devices.

        Raises:
            AutoshardError: The baseline is impossible for this step, or does not fit the memory.
        """
        whole, last = self.pool.whole, self.layered.n_layers - 1
        memory_bytes = self.pool.limit(whole)
        meshes, graph = self._meshes(whole), self.layered.step.graph
        if not meshes:
            raise autoshard.InfeasibleError(
                f"the mesh has the shape {self.parallel.mesh}, and there are "
                f"{self.pool.n_devices} devices"
            )
        prepared = self.shardings.prepare(0, last, whole, len(meshes) - 1)
        stored = self._stored_bytes(
            graph, autoshard.baseline_inputs(graph, meshes[-1], name), meshes[-1]
        )
        if stored > memory_bytes:
            raise self._too_large(stored, "at least ")
        pins = self.shardings.pinned(prepared.graph, prepared.mesh)
        sharding = prepared.solve(restrict=name, pin=pins, compare=False, tie=self.level == "O2")
        if self.level == "O2":  # one that is far too large need not be expanded
            totals = layer_totals(self.repeated, sharding, self.microbatches)
            about = totals.peak_bytes
            if about > _MARGIN * memory_bytes:
                raise self._too_large(math.ceil(about), "about ")
        sharding = with_memory(self._back(sharding, 0, last), 1)
        is_whole = prepared.graph is self.layered.stage(0, last)
        if sharding.peak_bytes > memory_bytes and is_whole:
            sharding = prepared.solve(
                restrict=name,
                pin=pins,
                compare=False,
                memory_bytes=memory_bytes,
                steps=_LIMITED_STEPS,
            )
            sharding = with_memory(sharding, 1)
        if sharding.peak_bytes > memory_bytes:
            raise self._too_large(sharding.peak_bytes)
        return meshes[-1], sharding

    def _stored_bytes(
        self, graph: Graph, stored: Mapping[str, tuple[Spec, ...]] | Allowed, mesh: Mesh
    ) -> int:
        """Bytes of a graph's state on a device, each in the smallest of its possible specs."""
        values = map(graph.value, stored.keys() & self.layered.updated & {*graph.inputs})
        return sum(
            value.itemsize
            * min(
                local_elements(spec, value.shape, mesh.shape)
                for spec in stored[value.name]
                if isinstance(spec, Spec)
            )
            for value in values
        )

    def _too_large(self, n_bytes: int, how: str = "") -> autoshard.InfeasibleError:
        self.shortage.unless(False)
        return autoshard.InfeasibleError(
            f"it takes {how}{bytes_text(n_bytes)} a device, "
            f"{bytes_text(n_bytes - self.pool.least_limit)} more than there is"
        )

    def cost(self, first: int, last: int, submesh: Submesh, option: Option) -> StageCost | None:
        """The cost by one option: the sum over layers of the whole model (O2), or exact (O3).

        None if pins forbid the option.
        """
        if self.level == "O3":
            exact = self._exact(first, last, submesh, option)
            if exact is None:
                return None
            sharding, _ = exact
            return replace(stage_cost(sharding.graph, sharding), option=option)
        totals = self._totals_by(submesh, option)
        if totals is None:
            return None

        return StageCost(
            time_s=max(totals.time_s.of(first, last), self.bounds.least_s(first, last, submesh)),
            fixed_bytes=math.ceil(totals.fixed_bytes.of(first, last)),
            activation_bytes=math.ceil(totals.activation_bytes.of(first, last)),
            once_s=totals.once_s.of(first, last),
            temporary_bytes=totals.on_top(first, last),
            option=option,
        )

    def _totals_by(self, submesh: Submesh, option: Option) -> LayerTotals | None:
        if (submesh, option) not in self._totals:
            fewer = self.shardings.alike(submesh, option)
            self._totals[submesh, option] = (
                self._by_layers(submesh, option) if fewer is None else self._totals_by(*fewer)
            )
        return self._totals[submesh, option]

    def _by_layers(self, submesh: Submesh, option: Option) -> LayerTotals | None:
        """The layers' times and memory in the best sharding of the whole short step."""
        whole = (0, self.layered.n_layers - 1, submesh)
        sharding = self.shardings.find(*whole, option, gap=_PRICE_GAP)
        if sharding is None:
            return None
        for way in looser_ways(option.way):  # a faster way may have the same sharding
            other = replace(option, way=way)
            totals = self._totals.get((submesh, other))
            if totals is not None and sharding is self.shardings.find(
                *whole, other, gap=_PRICE_GAP
            ):
                return totals
        return layer_totals(self.repeated, sharding, self.microbatches)

    def _exact(
        self, first: int, last: int, submesh: Submesh, option: Option
    ) -> tuple[Sharding, autoshard.Footprint] | None:
        """A run of layers sharded on its own, and its footprint; None if pins forbid the option."""
        key = (first, last, submesh, option)
        if key not in self._expanded:
            short = self.shardings.find(first, last, submesh, option)
            self._expanded[key] = None
            if short is not None:
                seconds = self._seconds(first, last, submesh, option, short)
                whole = self._back(short, first, last, option.way, seconds)
                over_time = footprint(whole)
                self._expanded[key] = with_memory(whole, 1, over_time), over_time
        return self._expanded[key]

    def _about_s(self, first: int, last: int, submesh: Submesh, option: Option) -> float:
        """The time of a step by an option; exact if the short sharding can be expanded."""
        short = self.shardings.find(first, last, submesh, option)
        if short is None:
            return math.inf
        return self._seconds(first, last, submesh, option, short).objective_s

    def _seconds(
        self, first: int, last: int, submesh: Submesh, option: Option, short: Sharding
    ) -> LayerSeconds:
        """The time of a run of layers, each with that of the short layer that stands for it."""
        layers, *ends = self.repeated.shortened(first, last)
        key = (*ends, submesh, option)
        if key not in self._layer_seconds:
            self._layer_seconds[key] = layer_seconds(self.repeated.short, short, ends[0])
        return LayerSeconds.of(self._layer_seconds[key], layers)

    def _back(
        self,
        short: Sharding,
        first: int,
        last: int,
        way: Way = "free",
        seconds: LayerSeconds | None = None,
    ) -> Sharding:
        """The sharding of the whole layers, from that of the short ones."""
        graph = self.layered.stage(first, last)
        try:
            return expand(self.repeated, short, first, last, graph, seconds)
        except DifferentCopiesError:  # then search all layers
            prepared = autoshard.prepare(graph, short.mesh, self.pool.cluster)
            pins = self.shardings.allowed(graph, short.mesh, way)
            return prepared.solve(restrict=short.options.restrict, pin=pins, compare=False)

    def _limited(
        self,
        first: int,
        last: int,
        submesh: Submesh,
        held: int,
        leanest: Sharding,
        split: bool,
    ) -> Sharding | None:
        """The best sharding under the memory limit, if all ways without a limit take more.

        The limit for the short layers is scaled by the ratio of their memory to that of the whole
        layers in the leanest way.
        """
        mesh = next(i for i, m in enumerate(self._meshes(submesh)) if m == leanest.mesh)
        prepared = self.shardings.prepare(first, last, submesh, mesh)
        options = autoshard.Options(in_flight=held)
        prepared = autoshard.prepare(prepared.graph, prepared.mesh, self.pool.cluster, options)
        limit, leanest_way = self.pool.limit(submesh), self._ways(submesh)[-1]
        pins = self.shardings.pinned(prepared.graph, prepared.mesh)
        if self.parallel.has_ways:
            pins = self.shardings.allowed(prepared.graph, prepared.mesh, leanest_way)
            graph = self.layered.stage(first, last)
            kept = self.shardings.allowed(graph, prepared.mesh, leanest_way)
            if self._stored_bytes(graph, kept, prepared.mesh) > limit:
                return None
        if len(prepared.graph.operators) < len(leanest.graph.operators):
            few = self.shardings.find(first, last, submesh, Option(mesh, leanest_way))
            if few is None:
                return None
            limit = int(limit * with_memory(few, held, split=split).peak_bytes / leanest.peak_bytes)
        try:
            short = prepared.solve(
                memory_bytes=limit,
                memory_rule=self.memory_rule,
                pin=pins,
                compare=False,
                tie=self.level == "O2",
                steps=_LIMITED_STEPS,
            )
            whole = expand(self.repeated, short, first, last, self.layered.stage(first, last))
        except (autoshard.InfeasibleError, autoshard.PinError, DifferentCopiesError):
            return None
        whole = with_memory(whole, held, split=split)
        return whole if whole.peak_bytes <= self.pool.limit(submesh) else None


def stage_cost(graph: Graph, sharding: Sharding, in_flight: int = 1) -> StageCost:
    """The cost of a stage in the form that stagecut takes.

    Args:
        graph: The graph of the stage.
        sharding: Its sharding.
        in_flight: The number of microbatches whose activations are in the sharding's peak.
    """
    totals = [c + k for c, k in zip(sharding.compute_s, sharding.communication_s, strict=True)]
    return StageCost(
        time_s=sum(totals[:APPLY]) / graph.phases[FORWARD].repeats,
        fixed_bytes=max(0, math.ceil(sharding.peak_bytes - in_flight * sharding.activation_bytes)),
        activation_bytes=math.ceil(sharding.activation_bytes),
        once_s=totals[APPLY],
    )


def undominated(costs: Sequence[StageCost]) -> list[StageCost]:
    """The costs that no other one dominates; the first of equal ones stays."""
    kept: list[StageCost] = []
    for cost in costs:
        numbers = _numbers(cost)
        if not any(all(map(le, _numbers(other), numbers)) for other in kept):
            kept = [k for k in kept if not all(map(le, numbers, _numbers(k)))] + [cost]
    return kept


def _numbers(cost: StageCost) -> tuple[float, ...]:
    held = cost.fixed_bytes + cost.temporary_bytes
    return cost.time_s, cost.once_s, held, cost.activation_bytes
