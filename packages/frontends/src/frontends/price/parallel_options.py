"""The options for running a stage: a logical mesh of its devices, and how state is stored.

The search chooses among them; a user who knows better pins them (`ParallelPins`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import autoshard
from autoshard import Graph
from shardspec import Mesh, Partial, Spec
from stagecut import Submesh

from frontends.price.device_pool import DevicePool
from frontends.step.step import APPLY, BACKWARD

AXIS_NAMES = ("x", "y")
"""Names of the axes of a stage's mesh, which has one or two."""

Way = Literal["free", "zero2", "tensor", "zero", "zero-0", "zero-1", "zero-2", "zero-3"]
"""How state is stored. Where the search chooses the ways of parallelism (`WAYS`):

- `free`: in whatever layout is fastest.
- `zero2`: optimizer state is sharded over as many devices as possible (ZeRO-2).
- `tensor`: parameters and sums of gradients are sharded over the devices of a host at least, so
  that operators are split by more than examples (Megatron).
- `zero`: parameters and optimizer state are sharded over as many devices as possible (ZeRO-3).

Where the user has chosen data and tensor parallelism (`PINNED_WAYS`), each examples' part of the
devices computes on its own examples, and:

- `zero-0`: state is sharded over the tensor parallel devices only, as in Megatron.
- `zero-1`: optimizer state also over the data parallel devices (Rajbhandari et al., "ZeRO", 2020).
- `zero-2`: sums of gradients, too.
- `zero-3`: parameters, too.
"""

WAYS: tuple[Way, ...] = ("free", "zero2", "tensor", "zero")
"""In order, from the fastest to the one that takes the least memory."""

PINNED_WAYS: tuple[Way, ...] = ("zero-0", "zero-1", "zero-2", "zero-3")
"""The same, by the stage of ZeRO."""

_ZERO_SHARDS = {"optimizer_state": 1, "parameter": 3}
"""By role, the first stage of ZeRO that shards such values over data parallel devices."""


@dataclass(frozen=True, slots=True)
class ParallelPins:
    """The ways of parallelism that every stage must have; None where the search chooses."""

    dp: int | None = None
    """Data parallel ways: parts of a microbatch."""

    tp: int | None = None
    """Tensor parallel ways: neighbouring devices that share parameters. The devices of a stage that
    are not for one are for the other; with `zero` alone, all are data parallel."""

    zero: int | None = None
    """The stage of ZeRO, from 0 to 3."""

    mesh: tuple[int, ...] | None = None
    """The shape of the logical mesh, where the other three are None."""

    @property
    def has_ways(self) -> bool:
        """Whether data and tensor parallelism are given, and not just shapes of meshes."""
        return (self.dp, self.tp, self.zero) != (None, None, None)

    def split(self, n_devices: int) -> tuple[int, int] | None:
        """The data and tensor parallel ways of a stage; None if it cannot have so many devices."""
        dp, tp = self.dp, self.tp
        if dp is None:
            tp = tp or 1
            dp = n_devices // tp
        elif tp is None:
            tp = n_devices // dp
        return (dp, tp) if dp * tp == n_devices else None

    def shape(self, n_devices: int) -> tuple[int, ...] | None:
        """The shape of the mesh of a stage, without axes of length 1; None if there is none."""
        shape = self.split(n_devices) if self.has_ways else self.mesh
        if shape is None or math.prod(shape) != n_devices:
            return None
        return tuple(size for size in shape if size > 1) or (1,)

    def data_axes(self, mesh: Mesh) -> frozenset[int]:
        """The axes of a stage's mesh that are for data parallelism."""
        dp, tp = self.split(mesh.size) or (1, 1)
        axes = [axis for axis, size in enumerate(mesh.shape) if size > 1]
        return frozenset(axes if tp == 1 else axes[:-1] if dp > 1 else ())


NO_PINS = ParallelPins()
NO_BATCH: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a stage."""

    mesh: int
    """Index among `logical_meshes` of the submesh."""

    way: Way


def ways_of(n_devices: int, pins: ParallelPins = NO_PINS) -> tuple[Way, ...]:
    """The ways to try for a stage, from the fastest to the one that takes the least memory."""
    if pins.zero is not None:
        return (PINNED_WAYS[pins.zero],)
    ways = PINNED_WAYS if pins.has_ways else WAYS
    return ways if n_devices > 1 else ways[:1]


def looser_ways(way: Way) -> tuple[Way, ...]:
    """The ways before one whose best sharding is the best in this way, too, if it keeps its rules.

    `free` has no rules, and a sharding that keeps the rules of two ways was found for the earlier.
    """
    return WAYS[: WAYS.index(way)] if way in WAYS else ()


def options_of(
    submesh: Submesh, pool: DevicePool, pins: ParallelPins = NO_PINS
) -> Iterator[Option]:
    """The options for running a stage on a submesh; all meshes with the fastest way first."""
    meshes = range(len(logical_meshes(submesh, pool, pins)))
    for way in ways_of(math.prod(submesh), pins):
        yield from (Option(mesh, way) for mesh in meshes)


def logical_meshes(submesh: Submesh, pool: DevicePool, pins: ParallelPins = NO_PINS) -> list[Mesh]:
    """The meshes to try for a submesh: 1-D; hosts x devices; for one host, 2 x half its devices.

    If pins give the shape, only this one; none if the submesh cannot have it.
    """
    n_hosts, per_host = submesh
    size = n_hosts * per_host
    shapes: list[tuple[int, ...]] = [(size,)]
    if pins != NO_PINS:
        shape = pins.shape(size)
        shapes = [] if shape is None else [shape]
    elif n_hosts > 1 and per_host > 1:
        shapes.append((n_hosts, per_host))
    elif n_hosts == 1 and size >= 4 and size % 2 == 0:
        shapes.append((2, size // 2))
    devices = pool.devices_of(submesh)
    return [Mesh(shape, AXIS_NAMES[: len(shape)], devices) for shape in shapes]


def lean_specs(
    graph: Graph,
    mesh: Mesh,
    way: Way,
    pins: ParallelPins = NO_PINS,
    batch: Mapping[str, int] = NO_BATCH,
) -> dict[str, tuple[Spec, ...]]:
    """The specs that a way allows for state and sums of gradients, by value; any for the others.

    A value without a spec cannot have this way: a batch that its data parallel ways do not divide.

    Args:
        graph: The graph of a stage.
        mesh: Its mesh.
        way: The way.
        pins: What the user chose.
        batch: By value with examples, the dim along which they lie; used for pinned ways only.
    """
    if way == "free":
        return {}
    if way in PINNED_WAYS:
        return _pinned_specs(graph, mesh, PINNED_WAYS.index(way), pins.data_axes(mesh), batch)
    spread = ("parameter", "optimizer_state") if way == "zero" else ("optimizer_state",)
    allowed = {}
    for value in map(graph.value, graph.inputs):
        specs = autoshard.stored_specs(value.shape, mesh.shape)
        if value.role in spread:
            most = max(mesh.axis_size(spec.axes) for spec in specs)
            allowed[value.name] = tuple(s for s in specs if mesh.axis_size(s.axes) == most)
        elif way == "tensor" and value.role == "parameter":
            allowed[value.name] = _inside(specs, mesh)
    if way == "tensor":
        for value in map(graph.value, _sums_of_gradients(graph)):
            split = _inside(autoshard.stored_specs(value.shape, mesh.shape), mesh)
            allowed[value.name] = (*split, *_partial_elsewhere(split, mesh))
    return {name: specs for name, specs in allowed.items() if specs}


def _pinned_specs(
    graph: Graph, mesh: Mesh, zero: int, data: frozenset[int], batch: Mapping[str, int]
) -> dict[str, tuple[Spec, ...]]:
    """The specs of examples, state and sums of gradients, for a stage of ZeRO.

    Where products of matrices compute on examples, these are split over the data parallel devices
    and no others; operators between them follow.
    """
    tensor = frozenset(range(mesh.ndim)) - data
    none = frozenset[int]()
    allowed = {}
    for value in map(graph.value, graph.inputs):
        specs = autoshard.stored_specs(value.shape, mesh.shape)
        if value.role == "batch" and value.shape:
            wanted = Spec((tuple(sorted(data)), *((),) * (len(value.shape) - 1)))
            allowed[value.name] = tuple(spec for spec in specs if spec == wanted)
        elif value.role in _ZERO_SHARDS:
            over = data if zero >= _ZERO_SHARDS[value.role] else none
            allowed[value.name] = _split(specs, mesh, tensor, over)
    for value in map(graph.value, _sums_of_gradients(graph)):
        specs = autoshard.stored_specs(value.shape, mesh.shape)
        split = _split(specs, mesh, tensor, data if zero >= 2 else none)
        allowed[value.name] = split if zero >= 2 else (*split, *_partial_elsewhere(split, mesh))
    for value in map(graph.value, _of_products(graph)):
        if value.name in batch and value.name not in allowed:
            dim, axes = batch[value.name], tuple(sorted(data))
            specs = autoshard.stored_specs(value.shape, mesh.shape)
            split = tuple(spec for spec in specs if spec.plain_dims[dim] == axes)
            allowed[value.name] = (*split, *_partial_elsewhere(split, mesh))
    made = {name: specs for name, specs in allowed.items() if name in graph.producers}
    for name, specs in made.items():
        allowed[name] = tuple(spec for spec in specs if spec in _possible(graph, name, mesh))
    return {name: specs for name, specs in allowed.items() if specs or name not in made}


def _possible(graph: Graph, name: str, mesh: Mesh) -> set[Spec]:
    """The specs in which a value can leave its operator."""
    index, result = graph.producers[name]
    strategies = autoshard.enumerate_strategies(graph.operators[index].rule, mesh.shape)
    return {strategy.result_specs[result] for strategy in strategies}


def _of_products(graph: Graph) -> Iterator[str]:
    """Activations that enter a stage, and the results of products of matrices and convolutions."""
    yield from (name for name in graph.inputs if graph.value(name).role == "activation")
    for op in graph.operators:
        if len(op.inputs) == 2 and any(f.kind == "reduce" for f in op.rule.factors):
            yield from op.outputs


def _split(
    specs: Iterable[Spec], mesh: Mesh, tensor: frozenset[int], data: frozenset[int]
) -> tuple[Spec, ...]:
    """The specs over as many data parallel devices as possible, and of matrices tensor parallel."""
    every = tensor | data
    inside = [spec for spec in specs if every.issuperset(spec.axes)]

    def over(axes: frozenset[int], spec: Spec) -> int:
        return mesh.axis_size(tuple(axes.intersection(spec.axes)))

    most = max(over(data, spec) for spec in inside)
    inside = [spec for spec in inside if over(data, spec) == most]
    if len(inside[0].dims) >= 2:
        most = max(over(tensor, spec) for spec in inside)
        inside = [spec for spec in inside if over(tensor, spec) == most]
    return tuple(inside)


def _inside(specs: Iterable[Spec], mesh: Mesh) -> tuple[Spec, ...]:
    """The specs that shard over the last axis, whose devices are nearest to each other."""
    return tuple(spec for spec in specs if mesh.ndim - 1 in spec.axes)


def _partial_elsewhere(specs: Iterable[Spec], mesh: Mesh) -> Iterator[Spec]:
    """The specs with partial sums over the axes that they do not use."""
    for spec in specs:
        free = [axis for axis in range(mesh.ndim) if axis not in spec.axes]
        if free:
            yield Spec(spec.dims, tuple(Partial(axis) for axis in free))


def _sums_of_gradients(graph: Graph) -> Iterator[str]:
    """Values of backward that only apply reads: they are summed, and held all the time."""
    for op in graph.operators:
        if op.phase == BACKWARD:
            for name in op.outputs:
                read = graph.readers[name]
                if read and all(graph.operators[index].phase == APPLY for index in read):
                    yield name
