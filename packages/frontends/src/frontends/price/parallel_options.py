"""The ways to run a stage: logical meshes of its devices, and how state is stored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import autoshard
from autoshard import Graph
from costmodel import Cluster
from shardspec import Mesh, Partial, Spec
from stagecut import Submesh

from frontends.step.step import APPLY, BACKWARD

AXIS_NAMES = ("x", "y")
"""Of the meshes of stages, which have one or two axes."""

Way = Literal["free", "zero2", "tensor", "zero"]
"""How state is stored: as is fastest; optimizer state over as many devices as can be (ZeRO-2);
parameters and sums of gradients split over the devices of a host at least, so that operators are
split and not only examples (Megatron); parameters over as many devices as can be (ZeRO-3)."""

WAYS: tuple[Way, ...] = get_args(Way)
"""From the fastest to the leanest."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a stage: which of its logical meshes, and how state is stored."""

    mesh: int
    way: Way


def options_of(submesh: Submesh, cluster: Cluster) -> Iterator[Option]:
    """The ways to run a stage on a submesh, the fastest of each logical mesh first."""
    meshes = range(len(logical_meshes(submesh, cluster)))
    for way in WAYS if math.prod(submesh) > 1 else WAYS[:1]:
        yield from (Option(mesh, way) for mesh in meshes)


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


def lean_specs(graph: Graph, mesh: Mesh, way: Way) -> dict[str, tuple[Spec, ...]]:
    """What a way asks of state and of sums of gradients: the specs that each may have."""
    if way == "free":
        return {}
    spread = ("parameter", "optimizer_state") if way == "zero" else ("optimizer_state",)
    found = {}
    for value in map(graph.value, graph.inputs):
        specs = autoshard.stored_specs(value.shape, mesh.shape)
        if value.role in spread:
            most = max(mesh.axis_size(spec.axes) for spec in specs)
            found[value.name] = tuple(s for s in specs if mesh.axis_size(s.axes) == most)
        elif way == "tensor" and value.role == "parameter":
            found[value.name] = _inside(specs, mesh)
    if way == "tensor":
        for value in map(graph.value, _sums_of_gradients(graph)):
            split = _inside(autoshard.stored_specs(value.shape, mesh.shape), mesh)
            found[value.name] = (*split, *_partial_elsewhere(split, mesh))
    return {name: specs for name, specs in found.items() if specs}


def _inside(specs: Iterable[Spec], mesh: Mesh) -> tuple[Spec, ...]:
    """Those split over the last axis, whose devices are nearest to each other."""
    return tuple(spec for spec in specs if mesh.ndim - 1 in spec.axes)


def _partial_elsewhere(specs: Iterable[Spec], mesh: Mesh) -> Iterator[Spec]:
    """The same with partial sums over the axes that they leave free."""
    for spec in specs:
        free = [axis for axis in range(mesh.ndim) if axis not in spec.axes]
        if free:
            yield Spec(spec.dims, tuple(Partial(axis) for axis in free))


def _sums_of_gradients(graph: Graph) -> Iterator[str]:
    """What microbatches make and apply only reads: it is summed, and held all the time."""
    for op in graph.operators:
        if op.phase == BACKWARD:
            for name in op.outputs:
                read = graph.readers[name]
                if read and all(graph.operators[index].phase == APPLY for index in read):
                    yield name
