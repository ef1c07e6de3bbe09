"""Execute instructions with torch: lowered chunks, and shards in a process's memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from shardspec import Mesh, Spec

from frontends.base.present import present
from frontends.plan.plan_fields import Stored, Transfer
from frontends.program.program import Program
from frontends.program.register_allocation import Shards as Arrays
from frontends.torch.base.calls import Tensor
from frontends.torch.lower.bucketing import overlapped
from frontends.torch.lower.in_place import in_place, owned_reads
from frontends.torch.lower.local import Coordinates, differing_axes, like, local_shape, place_along
from frontends.torch.lower.lower import Communicate, LocalProgram, collectives_of, lower_chunk
from frontends.torch.run.execute import executable
from frontends.torch.run.lockstep import Collectives, LockStep, Shards
from frontends.torch.run.process_group import Grouped
from frontends.torch.trace.trace import Trace

Executed = tuple[str, tuple[tuple[int, ...], ...], int]
"""Kind of a collective, its groups by position in the mesh, and the bytes that a device got."""


class Sliceable(Protocol):
    """A tensor, or what reads parts of one from a file."""

    def __getitem__(self, region: Any, /) -> Tensor:
        """The part between some bounds, a slice for each dim."""


class TorchEngine:
    """Values are lists of shards; what it makes is described by `register_allocation.Engine`.

    Args:
        program: What runs.
        trace: Where the operators' calls are.
        rank: Of this process, which is its device; None if all devices are in this process.
    """

    def __init__(self, program: Program, trace: Trace, rank: int | None) -> None:
        self._plan, self._chunks, self._rank = program.plan, program.chunks, rank
        self._graph = graph = program.step.graph
        self.executed: dict[tuple[int, int], Counter[Executed]] = {}
        """By stage and phase, the collectives that ran while `is_recording`."""

        self.is_recording = False
        self.given: Mapping[int, Collection[int]] = {}
        """By chunk, the places of reads that are given away to it, if they are state."""

        self.programs: list[LocalProgram | None] = [
            lower_chunk(chunk, trace, graph, self._plan.stages[chunk.stage].mesh)
            if self.is_local(chunk.stage)
            else None
            for chunk in self._chunks
        ]
        self._executables: dict[int, Callable[[list[Shards]], list[Shards]]] = {}
        self._collectives = [self._connect(stage) for stage in range(len(self._plan.stages))]

    def is_local(self, stage: int) -> bool:
        """Whether this process runs the stage."""
        return (self._rank or 0) in self.processes(self._plan.stages[stage].mesh)

    def processes(self, mesh: Mesh) -> frozenset[int]:
        """The processes that have devices of a mesh."""
        return frozenset((0,) if self._rank is None else mesh.device_ids)

    def _connect(self, stage: int) -> Collectives | None:
        mesh = self._plan.stages[stage].mesh
        if self._rank is None:
            return LockStep(mesh)
        if not self.is_local(stage):
            return None
        mine = zip(self._chunks, self.programs, strict=True)
        programs = [p for chunk, p in mine if p is not None and chunk.stage == stage]
        return Grouped(mesh, self._rank, [s.mesh_axes for s in collectives_of(programs)])

    def collectives(self, stage: int) -> Collectives:
        """Of a stage of this process."""
        return present(self._collectives[stage], "only stages of this process run in it")

    def placer(self, stage: int, name: str, spec: Spec) -> Callable[[Sliceable], Shards]:
        """From a whole tensor to the shards of this process, which are parts of it."""
        mesh, shape = self._plan.stages[stage].mesh, self._graph.value(name).shape
        part = local_shape(shape, spec, mesh)

        def region(coordinates: Coordinates) -> tuple[slice, ...]:
            found = []
            for size, axes in zip(part, spec.plain_dims, strict=True):
                start = size * place_along(mesh, axes, coordinates)
                found.append(slice(start, start + size))
            return tuple(found)

        coordinates = self.collectives(stage).coordinates
        first_of = like(coordinates, differing_axes([spec]))
        regions = {i: region(coordinates[i]) for i in set(first_of.values())}

        def place(whole: Sliceable) -> Shards:
            made = {i: whole[region] for i, region in regions.items()}
            return [made[first_of[i]] for i in range(len(coordinates))]

        return place

    def loader(self, stage: int, slot: Stored, microbatch: int) -> Callable[[Tensor], Shards]:
        """Places a microbatch's part of an argument."""
        place = self.placer(stage, slot.value, slot.spec)
        shape = self._graph.value(slot.value).shape
        if not shape:  # a number that belongs to all examples
            return place
        size = shape[0]
        return lambda whole: place(whole.narrow(0, microbatch * size, size))

    def empty(self, stage: int, slot: Stored) -> Shards:
        """New shards of a value, to be filled; devices that hold the same share one."""
        value, mesh = self._graph.value(slot.value), self._plan.stages[stage].mesh
        shape, dtype = local_shape(value.shape, slot.spec, mesh), getattr(torch, value.dtype)
        coordinates = self.collectives(stage).coordinates
        first_of = like(coordinates, differing_axes([slot.spec]))
        own = {i: torch.empty(shape, dtype=dtype) for i in set(first_of.values())}
        return [own[first_of[i]] for i in range(len(coordinates))]

    def zeros(self, chunk: int) -> Callable[[], list[Shards]]:
        """Makes the totals of a chunk."""
        stage, slots = self._chunks[chunk].stage, self._chunks[chunk].totals
        mesh, coordinates = self._plan.stages[stage].mesh, self.collectives(stage).coordinates
        made = [
            (
                local_shape(self._graph.value(slot.value).shape, slot.spec, mesh),
                getattr(torch, self._graph.value(slot.value).dtype),
                like(coordinates, differing_axes([slot.spec])),
            )
            for slot in slots
        ]

        def make() -> list[Shards]:
            totals = []
            for shape, dtype, first_of in made:
                own = {i: torch.zeros(shape, dtype=dtype) for i in set(first_of.values())}
                totals.append([own[first_of[i]] for i in range(len(coordinates))])
            return totals

        return make

    def program(self, chunk: int) -> Callable[[list[Shards]], list[Shards]]:
        """Runs a chunk."""
        if chunk not in self._executables:
            self._executables[chunk] = self._executable(chunk)
        return self._executables[chunk]

    def _executable(self, chunk: int) -> Callable[[list[Shards]], list[Shards]]:
        program = present(self.programs[chunk], "only chunks of this process run in it")
        found = self._chunks[chunk]
        mesh = self._plan.stages[found.stage].mesh
        positions = Mesh(mesh.shape, mesh.axis_names)

        def record(node: Communicate, result: Tensor) -> None:
            if self.is_recording:
                counted = self.executed.setdefault((found.stage, node.phase), Counter())
                n_bytes, step = result.numel() * result.element_size(), node.step
                counted[step.kind, positions.groups(step.mesh_axes), n_bytes] += 1

        axes = [differing_axes([slot.spec]) for slot in found.totals]
        program, collectives = overlapped(program), self.collectives(found.stage)
        if len(collectives.devices) == 1:
            program = in_place(program, self._owned(chunk, program))
        return executable(program, collectives, axes, record)

    def _owned(self, chunk: int, program: LocalProgram) -> list[int]:
        """The reads of a chunk that are state which it gives a new value, and need no more."""
        found, alias = self._chunks[chunk], {o.value: o.alias for o in self._graph.outputs}
        pairs = [
            (program.reads[place], program.writes[place])
            for place, (old, new) in enumerate(zip(found.reads, found.writes, strict=False))
            if place in self.given.get(chunk, ()) and alias.get(new.value) == old.value
        ]
        return owned_reads(program, pairs)

    def sharder(self, stage: int, slot: Stored) -> Callable[[Shards], Arrays]:
        """Sees the shards of a value as arrays."""
        devices = self.collectives(stage).devices
        return lambda shards: {d: _as_array(t) for d, t in zip(devices, shards, strict=True)}

    def assembler(self, stage: int, slot: Stored) -> Callable[[Arrays], Shards]:
        """Sees arrays as the shards of a value; devices with one array share one tensor."""
        devices = self.collectives(stage).devices
        dtype = getattr(torch, self._graph.value(slot.value).dtype)

        def assemble(arrays: Arrays) -> Shards:
            made = {id(array): _as_tensor(array, dtype) for array in arrays.values()}
            return [made[id(arrays[device])] for device in devices]

        return assemble

    def mover(self, transfer: Transfer) -> None:
        """Nothing: the devices of a process share its memory, which crossmesh hands on."""

    def whole(self, stage: int, slot: Stored, shards: Sequence[Tensor]) -> Tensor:
        """A value from the shards of all its devices, all of which are in this process."""
        mesh = self._plan.stages[stage].mesh
        return assemble(mesh, slot.spec, dict(zip(mesh.device_ids, shards, strict=True)))


def assemble(mesh: Mesh, spec: Spec, shards: Mapping[int, Tensor]) -> Tensor:
    """The whole tensor from its shards on all devices of a mesh; it is no partial sum."""
    layout = [tuple(mesh.coordinates(device)) for device in shards]
    found = dict(zip(layout, shards.values(), strict=True))
    first = next(iter(found.values()))
    sizes = [n * mesh.axis_size(a) for n, a in zip(first.shape, spec.plain_dims, strict=True)]
    if list(first.shape) == sizes:
        return first
    whole = first.new_empty(sizes)
    for coordinates, shard in found.items():
        part = whole
        for dim, axes in enumerate(spec.plain_dims):
            start = shard.shape[dim] * place_along(mesh, axes, coordinates)
            part = part.narrow(dim, start, shard.shape[dim])
        part.copy_(shard)
    return whole


def _as_array(tensor: Tensor) -> np.ndarray:
    carrier = _carrier(tensor.dtype)
    if carrier is None:
        return tensor.detach().numpy()
    return tensor.view(carrier).detach().numpy().view(f"V{tensor.itemsize}")


def _as_tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    carrier = _carrier(dtype)
    if carrier is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"i{dtype.itemsize}")).view(dtype)


def _carrier(dtype: torch.dtype) -> torch.dtype | None:
    """The integers by which the bytes of a type that numpy lacks come to numpy and back.

    There they are raw bytes, `V2` for two: so crossmesh takes them for what its plan says, and adds
    as that. It makes arrays like those that it is given; where a process has nothing to give, of
    ml_dtypes' type, or raw bytes.
    """
    if hasattr(np, str(dtype).removeprefix("torch.")):
        return None
    return {1: torch.int8, 2: torch.int16}[dtype.itemsize]
