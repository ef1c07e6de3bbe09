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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Literal, get_args

import autoshard
from autoshard import Graph, MemoryRule, Prepared, Sharding
from costmodel import Cluster, Link
from shardspec import Mesh, Spec
from stagecut import StageCost, Submesh

from frontends.errors import PlanError
from frontends.expand import DifferentCopiesError, expand, layer_seconds, with_memory
from frontends.layers import LayeredStep
from frontends.repeat import Repeated, all_layers, without_repeats
from frontends.step import APPLY, FORWARD

AXIS_NAMES = ("x", "y")
"""Of the meshes of stages, which have one or two axes."""

Level = Literal["O2", "O3"]
"""How thoroughly to search: fast, or everything."""

Way = Literal["free", "zero2", "zero"]
"""How state is stored: as is fastest; optimizer state over as many devices as can be; all of it."""

WAYS: tuple[Way, ...] = get_args(Way)
"""From the fastest to the leanest."""

_LIMITED_STEPS = 10
"""Budget of a search under a memory limit, which comes last; about a second each [chosen]."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a stage: which of its logical meshes, and how state is stored."""

    mesh: int
    way: Way


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
    temporary_bytes: int


class Pricer:
    """Prices runs of layers; equal runs on equal submeshes are priced once.

    Args:
        layered: The step.
        cluster: Where it is to run.
        memory_bytes: Limit of one device.
        level: See `Level`.
        memory_rule: How the limit is kept where no way fits; see `autoshard.MemoryRule`.
        pins: Specs that values must have, by name.
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
    ) -> None:
        if level not in get_args(Level):
            raise PlanError(f"a level is one of {', '.join(get_args(Level))}; got {level!r}")
        if memory_rule not in get_args(MemoryRule):
            raise PlanError(
                f"a memory rule is one of {', '.join(get_args(MemoryRule))}; got {memory_rule!r}"
            )
        self.layered, self.cluster, self.memory_bytes = layered, cluster, memory_bytes
        self.level, self.memory_rule, self.pins = level, memory_rule, dict(pins or {})
        self.microbatches = layered.step.microbatches
        self.repeated: Repeated = (
            without_repeats(layered, self.pins) if level == "O2" else all_layers(layered)
        )
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._structures: dict[tuple[int, int], str] = {}
        self._short_graphs: dict[tuple[int, int], Graph] = {}
        self._prepared: dict[tuple[tuple[int, int], Submesh, int], Prepared] = {}
        self._shardings: dict[tuple[str, Submesh, Option], tuple[Graph, Sharding] | None] = {}
        self._totals: dict[tuple[Submesh, Option], _Totals | None] = {}
        self._expanded: dict[tuple[int, int, Submesh, Option], Sharding | None] = {}

    def graph(self, first: int, last: int) -> Graph:
        """The program of layers `first` to `last`, both included."""
        if (first, last) not in self._graphs:
            self._graphs[first, last] = self.layered.stage(first, last)
        return self._graphs[first, last]

    def options(self, submesh: Submesh) -> Iterator[Option]:
        """The ways to run a stage on a submesh, the fastest of each logical mesh first."""
        meshes = range(len(logical_meshes(submesh, self.cluster)))
        for way in WAYS if math.prod(submesh) > 1 else WAYS[:1]:
            yield from (Option(mesh, way) for mesh in meshes)

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
        if self._least_bytes(first, last) > self.memory_bytes * math.prod(submesh):
            return None
        found: list[StageCost] = []
        for option in self.options(submesh):
            roomy = [c for c in found if c.peak_bytes(held) <= self.memory_bytes]
            if option.way != "free" and option.mesh == 0 and roomy:
                break
            cost = self._cost(first, last, submesh, option)
            if cost is not None and cost.peak_bytes(1) <= self.memory_bytes:
                found.append(cost)
        return tuple(found) or None

    def price(
        self, first: int, last: int, submesh: Submesh, held: int = 1, option: Option | None = None
    ) -> Priced | None:
        """The best sharding of layers `first` to `last`; None if none fits the memory.

        Args:
            first: Layer.
            last: Included.
            submesh: Where.
            held: Microbatches that the stage holds.
            option: Try this one first, and others only if it does not fit.
        """
        options = list(self.options(submesh))
        fitting: list[Sharding] = []
        leanest: Sharding | None = None
        if option is not None:
            options = [option, *(o for o in options if o != option)]
        for each in options:
            if fitting and (option is not None or each.way != "free"):
                break
            found = self._exact(first, last, submesh, each)
            if found is None:
                continue
            found = with_memory(found, held)
            if found.peak_bytes <= self.memory_bytes:
                fitting.append(found)
            elif leanest is None or found.peak_bytes < leanest.peak_bytes:
                leanest = found
        if not fitting and leanest is not None:
            limited = self._limited(first, last, submesh, held, leanest)
            fitting = [limited] if limited is not None else []
        if not fitting:
            return None
        best = min(fitting, key=lambda sharding: sharding.objective_s)
        return Priced(best.graph, best, stage_cost(best.graph, best, held))

    def baseline(self, name: autoshard.Baseline) -> tuple[Mesh, Sharding]:
        """The whole step as a baseline shards it, over all devices.

        Raises:
            AutoshardError: It cannot be so, or does not fit.
        """
        cluster, last = self.cluster, self.layered.n_layers - 1
        whole = (cluster.n_hosts, cluster.devices_per_host)
        meshes = logical_meshes(whole, cluster)
        prepared = self._prepare(0, last, whole, len(meshes) - 1)
        found = prepared.solve(restrict=name, compare=False, tie=self.level == "O2")
        found = self._back(found, 0, last)
        if found.peak_bytes > self.memory_bytes and prepared.graph is self.graph(0, last):
            limit = self.memory_bytes
            found = prepared.solve(
                restrict=name, compare=False, memory_bytes=limit, steps=_LIMITED_STEPS
            )
        if found.peak_bytes > self.memory_bytes:
            raise autoshard.InfeasibleError(
                f"it takes {found.peak_bytes} bytes a device, and {self.memory_bytes} are there"
            )
        return meshes[-1], found

    def bound_s(self, first: int, last: int, submesh: Submesh) -> float:
        """Time of one microbatch that no sharding beats: all work split evenly, nothing sent."""
        if self._least_bytes(first, last) > self.memory_bytes * math.prod(submesh):
            return math.inf
        work, launch = self._work_before
        work_s, launch_s = work[last + 1] - work[first], launch[last + 1] - launch[first]
        total_s = work_s / math.prod(submesh) + launch_s
        return max(0.0, total_s / self.microbatches * (1 - 1e-9))  # sums may round differently

    def step_bound_s(self) -> float:
        """Time of one step that no plan beats: the devices are never idle and nothing is sent."""
        return sum(self._work_s(self.layered.step.graph)) / self.cluster.n_devices

    def state_bytes(self, graph: Graph) -> int:
        """Bytes of parameters and optimizer state, which the devices hold between steps."""
        state = ("parameter", "optimizer_state")
        values = (graph.value(name) for name in graph.inputs)
        return sum(value.n_bytes for value in values if value.role in state)

    def boundary_s(self, layer: int) -> float:
        """Time to bring one microbatch into a stage that begins at `layer`, and its gradient back.

        Counted as if it were not overlapped, over the slowest link that the cluster has between
        stages. Alpa leaves it out (§5.2), since its clusters have fast networks.
        """
        return self._boundaries_s[layer]

    def link_between_stages(self) -> Link:
        """The link that a transfer between stages has to take at worst."""
        return self.cluster.inter_host if self.cluster.n_hosts > 1 else self.cluster.intra_host

    @cached_property
    def _boundaries_s(self) -> list[float]:
        """Per layer, and one past the last."""
        graph, link = self.layered.step.graph, self.link_between_stages()
        change = [0.0] * (self.layered.n_layers + 2)
        for op in graph.operators:
            if op.phase == APPLY:
                continue
            made = self.layered.layer_of[op.name]
            for name in op.outputs:
                layers = [made, *self.layered.readers_of.get(name, ())]
                seconds = link.latency_s + graph.value(name).n_bytes / link.bandwidth_bytes_per_s
                change[min(layers) + 1] += seconds  # crosses each cut between the two
                change[max(layers) + 1] -= seconds
        return [max(0.0, total) for total in accumulate(change)]

    @cached_property
    def _work_before(self) -> tuple[list[float], list[float]]:
        """Seconds of work and of launches for microbatches, of all layers before each one."""
        work, launch = [0.0], [0.0]
        for operators in self.layered.operators_of:
            graph = self.layered.step.graph
            inside = map(graph.operators.__getitem__, operators)
            every = (op for op in inside if op.phase != APPLY)
            its_work, its_launch = self._work_of(graph, every)
            work.append(work[-1] + its_work)
            launch.append(launch[-1] + its_launch)
        return work, launch

    def _work_s(self, graph: Graph) -> tuple[float, float]:
        """Seconds that one device needs for all that a graph computes in a step, and launches."""
        return self._work_of(graph, iter(graph.operators))

    def _work_of(
        self, graph: Graph, operators: Iterator[autoshard.Operator]
    ) -> tuple[float, float]:
        device = self.cluster.device
        fastest = max(rate for _, rate in device.flops_per_s)
        work_s = launch_s = 0.0
        for op in operators:
            repeats = graph.phases[op.phase].repeats
            n_bytes = sum(graph.value(name).n_bytes for name in (*op.inputs, *op.outputs))
            one_s = max(op.flops / fastest, n_bytes / device.memory_bandwidth_bytes_per_s)
            work_s += one_s * repeats
            launch_s += device.launch_s * repeats
        return work_s, launch_s

    @cached_property
    def _state_before(self) -> list[int]:
        """Bytes of state that the layers before each one keep."""
        graph, found = self.layered.step.graph, [0]
        for names in self.layered.kept_in:
            found.append(found[-1] + sum(graph.value(name).n_bytes for name in names))
        return found

    def _least_bytes(self, first: int, last: int) -> int:
        return self._state_before[last + 1] - self._state_before[first]

    def _cost(self, first: int, last: int, submesh: Submesh, option: Option) -> StageCost | None:
        """Of one way: by the layers of the whole (O2), or searched for these alone."""
        if self.level == "O3":
            sharding = self._exact(first, last, submesh, option)
            if sharding is None:
                return None
            return replace(stage_cost(sharding.graph, sharding), option=option)
        if (submesh, option) not in self._totals:
            self._totals[submesh, option] = self._by_layers(submesh, option)
        totals = self._totals[submesh, option]
        if totals is None:
            return None

        def of(before: tuple[float, ...]) -> float:
            return max(0.0, before[last + 1] - before[first])

        return StageCost(
            time_s=max(of(totals.time_s), self.bound_s(first, last, submesh)),
            fixed_bytes=math.ceil(of(totals.fixed_bytes)),
            activation_bytes=math.ceil(of(totals.activation_bytes)),
            once_s=of(totals.once_s),
            temporary_bytes=totals.temporary_bytes,
            option=option,
        )

    def _by_layers(self, submesh: Submesh, option: Option) -> _Totals | None:
        """One sharding of the whole short step, and what each layer has of it."""
        short, last = self.repeated.short, self.layered.n_layers - 1
        found = self._short_sharding(0, last, submesh, option)
        if found is None:
            return None
        seconds = layer_seconds(short, found, 0)
        fixed = [0.0] * short.n_layers
        saved = [0.0] * short.n_layers
        graph = found.graph
        for one in autoshard.held(found):
            if one.value in graph.producers:
                op = graph.operators[graph.producers[one.value][0]]
                layer = short.layer_of[op.name]
            else:
                layer = short.home[one.value]
            if one.kind == "activation":
                saved[layer] += one.n_bytes
            elif one.kind in ("parameter", "optimizer_state", "input", "gradient"):
                fixed[layer] += one.n_bytes
        temporary = max(0.0, found.peak_bytes - sum(fixed) - sum(saved))
        layers, _, _ = self.repeated.shortened(0, last)
        repeats = self.microbatches
        return _Totals(
            _sums([sum(seconds[k].total_s[:APPLY]) / repeats for k in layers]),
            _sums([seconds[k].total_s[APPLY] for k in layers]),
            _sums([fixed[k] for k in layers]),
            _sums([saved[k] for k in layers]),
            math.ceil(temporary),
        )

    def _exact(self, first: int, last: int, submesh: Submesh, option: Option) -> Sharding | None:
        """A run of layers sharded on its own; None if it cannot be."""
        key = (first, last, submesh, option)
        if key not in self._expanded:
            found = self._short_sharding(first, last, submesh, option)
            self._expanded[key] = None if found is None else self._back(found, first, last)
        return self._expanded[key]

    def _back(self, found: Sharding, first: int, last: int) -> Sharding:
        """The sharding of the layers themselves, of that of what stands for them."""
        graph = self.graph(first, last)
        try:
            return expand(self.repeated, found, first, last, graph)
        except DifferentCopiesError:  # then each layer is looked at
            prepared = autoshard.prepare(graph, found.mesh, self.cluster)
            restrict = found.options.restrict
            return prepared.solve(restrict=restrict, pin=self._pinned(graph), compare=False)

    def _prepare(self, first: int, last: int, submesh: Submesh, mesh: int) -> Prepared:
        """The problem of sharding what stands for a run of layers."""
        ends = self._ends(first, last)
        key = (ends, submesh, mesh)
        if key not in self._prepared:
            on = logical_meshes(submesh, self.cluster)[mesh]
            self._prepared[key] = autoshard.prepare(self._short_graph(ends), on, self.cluster)
        return self._prepared[key]

    def _short_graph(self, ends: tuple[int, int]) -> Graph:
        if ends not in self._short_graphs:
            short = self.repeated.short
            is_whole = short is self.layered
            self._short_graphs[ends] = self.graph(*ends) if is_whole else short.stage(*ends)
        return self._short_graphs[ends]

    def _structure(self, ends: tuple[int, int]) -> str:
        """Equal for runs that differ in names only."""
        if ends not in self._structures:
            self._structures[ends] = autoshard.structural_hash(self._short_graph(ends))
        return self._structures[ends]

    def _short_sharding(
        self, first: int, last: int, submesh: Submesh, option: Option
    ) -> Sharding | None:
        """What stands for a run of layers, sharded one way; None if pins forbid it."""
        prepared = self._prepare(first, last, submesh, option.mesh)
        graph = prepared.graph
        key = (self._structure(self._ends(first, last)), submesh, option)
        if key not in self._shardings:
            pins: dict[str, tuple[Spec, ...]] = _lean(graph, prepared.mesh, option.way)
            pins |= self._pinned(graph)
            try:
                found = prepared.solve(pin=pins, compare=False, tie=self.level == "O2")
            except autoshard.PinError:
                self._shardings[key] = None
            else:
                self._shardings[key] = (graph, found)
        known = self._shardings[key]
        return None if known is None else _renamed(known[1], known[0], graph)

    def _ends(self, first: int, last: int) -> tuple[int, int]:
        _, low, high = self.repeated.shortened(first, last)
        return low, high

    def _pinned(self, graph: Graph) -> dict[str, tuple[Spec, ...]]:
        return {name: (spec,) for name, spec in self.pins.items() if name in graph.by_name}

    def _limited(
        self, first: int, last: int, submesh: Submesh, held: int, leanest: Sharding
    ) -> Sharding | None:
        """By a search under the limit, where all quick ways take more.

        What stands for the layers gets as much less memory as it takes less in the leanest way.
        """
        mesh = next(
            i for i, m in enumerate(logical_meshes(submesh, self.cluster)) if m == leanest.mesh
        )
        prepared = self._prepare(first, last, submesh, mesh)
        options = autoshard.Options(in_flight=held)
        prepared = autoshard.prepare(prepared.graph, prepared.mesh, self.cluster, options)
        limit = self.memory_bytes
        if len(prepared.graph.operators) < len(leanest.graph.operators):
            way = WAYS[-1] if math.prod(submesh) > 1 else WAYS[0]
            few = self._short_sharding(first, last, submesh, Option(mesh, way))
            if few is None:
                return None
            limit = int(limit * with_memory(few, held).peak_bytes / leanest.peak_bytes)
        try:
            found = prepared.solve(
                memory_bytes=limit,
                memory_rule=self.memory_rule,
                pin=self._pinned(prepared.graph),
                compare=False,
                tie=self.level == "O2",
                steps=_LIMITED_STEPS,
            )
            whole = expand(self.repeated, found, first, last, self.graph(first, last))
        except (autoshard.InfeasibleError, autoshard.PinError, DifferentCopiesError):
            return None
        whole = with_memory(whole, held)
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


def logical_meshes(submesh: Submesh, cluster: Cluster) -> list[Mesh]:
    """The meshes that a submesh is tried as: flat, hosts by devices, and a host cut in two."""
    n_hosts, per_host = submesh
    size = n_hosts * per_host
    shapes: list[tuple[int, ...]] = [(size,)]
    if n_hosts > 1 and per_host > 1:
        shapes.append((n_hosts, per_host))
    elif n_hosts == 1 and size >= 4 and size % 2 == 0:
        shapes.append((2, size // 2))
    devices = tuple(
        host * cluster.devices_per_host + i for host in range(n_hosts) for i in range(per_host)
    )
    return [Mesh(shape, AXIS_NAMES[: len(shape)], devices) for shape in shapes]


def _lean(graph: Graph, mesh: Mesh, way: Way) -> dict[str, tuple[Spec, ...]]:
    """How a way stores state: over as many devices as the shapes allow, in any dims."""
    roles = {"free": (), "zero2": ("optimizer_state",), "zero": ("parameter", "optimizer_state")}
    found = {}
    for value in map(graph.value, graph.inputs):
        if value.role in roles[way]:
            specs = autoshard.stored_specs(value.shape, mesh.shape)
            most = max(mesh.axis_size(spec.axes) for spec in specs)
            found[value.name] = tuple(s for s in specs if mesh.axis_size(s.axes) == most)
    return found


def _sums(items: list[float]) -> tuple[float, ...]:
    return (0.0, *accumulate(items))


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
