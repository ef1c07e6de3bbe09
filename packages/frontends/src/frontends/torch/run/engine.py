"""Executes instructions with torch: runs lowered chunks on shards in a process's memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from autoshard import Permutation, opposite_pairs
from shardspec import Mesh, Spec

from frontends.base.present import present
from frontends.plan.plan_fields import Stored, Transfer
from frontends.program.program import LoweredPlan
from frontends.program.register_allocation import Shards as Arrays
from frontends.run.verify import in_order
from frontends.torch.base.calls import Tensor
from frontends.torch.lower.bucketing import overlapped
from frontends.torch.lower.in_place import in_place, memory_of, owned_reads
from frontends.torch.lower.local import Coordinates, differing_axes, like, local_shape, place_along
from frontends.torch.lower.lower import lower_chunk
from frontends.torch.lower.nodes import Communicate, LocalProgram, collectives_of
from frontends.torch.lower.regions import in_regions
from frontends.torch.run.compiled import RegionRunner, can_compile
from frontends.torch.run.execute import executable
from frontends.torch.run.lockstep import Collectives, LockStep, Shards
from frontends.torch.run.process_group import Grouped
from frontends.torch.trace.trace import Trace

Executed = tuple[str, tuple[tuple[int, ...], ...], int]
"""Kind of a collective, its groups as positions in the mesh, and the bytes a device received."""


class Sliceable(Protocol):
    """A tensor, or an object that reads parts of one from a file."""

    def __getitem__(self, region: Any, /) -> Tensor:
        """Return the part within a region: a slice for each dim."""


class TorchEngine:
    """Implements `register_allocation.Engine`, which documents the methods; values are `Shards`.

    Args:
        program: The program to run.
        trace: Has the operators' calls.
        rank: The rank of this process, which is also its device; None if all devices are in this
            process.
        is_compiled: Whether calls run in compiled regions.
    """

    def __init__(
        self, program: LoweredPlan, trace: Trace, rank: int | None, is_compiled: bool = False
    ) -> None:
        self._plan, self._chunks, self._rank = program.plan, program.chunks, rank
        self.graph = graph = program.step.graph
        """The step's graph."""

        self.executed: dict[tuple[int, int], Counter[Executed]] = {}
        """By stage and phase, the collectives that ran while `is_recording`."""

        self.is_recording = False
        self.given: Mapping[int, Collection[int]] = {}
        """By chunk, the indices of reads of state that the chunk may overwrite."""

        self.programs: list[LocalProgram | None] = [
            lower_chunk(chunk, trace, graph, self._plan.stages[chunk.stage].mesh)
            if self.is_local(chunk.stage)
            else None
            for chunk in self._chunks
        ]
        self.runners: list[RegionRunner] | None = [] if is_compiled else None
        """What runs the regions of this process; None if calls run one by one."""

        self._executables: dict[int, Callable[[list[Shards]], list[Shards]]] = {}
        self._collectives = [self._connect(stage) for stage in range(len(self._plan.stages))]

    def is_local(self, stage: int) -> bool:
        """Return whether this process runs the stage."""
        return (self._rank or 0) in self.processes(self._plan.stages[stage].mesh)

    def processes(self, mesh: Mesh) -> frozenset[int]:
        """Return the processes that have devices of a mesh."""
        return frozenset((0,) if self._rank is None else mesh.device_ids)

    def _connect(self, stage: int) -> Collectives | None:
        mesh = self._plan.stages[stage].mesh
        if self._rank is None:
            return LockStep(mesh)
        if not self.is_local(stage):
            return None
        pairs = zip(self._chunks, self.programs, strict=True)
        programs = [p for chunk, p in pairs if p is not None and chunk.stage == stage]
        return Grouped(mesh, self._rank, [s.mesh_axes for s in collectives_of(programs)])

    def collectives(self, stage: int) -> Collectives:
        """Return what runs collectives of a stage; the stage is one of this process."""
        return present(self._collectives[stage], "only stages of this process run in it")

    def placer(self, stage: int, name: str, spec: Spec) -> Callable[[Sliceable], Shards]:
        """Return a function from a whole tensor to this process's shards, which are views of it."""
        mesh, shape = self._plan.stages[stage].mesh, self.graph.value(name).shape
        part = local_shape(shape, spec, mesh)

        def region(coordinates: Coordinates) -> tuple[slice, ...]:
            slices = []
            for size, axes in zip(part, spec.plain_dims, strict=True):
                start = size * place_along(mesh, axes, coordinates)
                slices.append(slice(start, start + size))
            return tuple(slices)

        coordinates = self.collectives(stage).coordinates
        first_of = like(coordinates, differing_axes([spec]))
        regions = {i: region(coordinates[i]) for i in set(first_of.values())}

        def place(whole: Sliceable) -> Shards:
            parts = {i: whole[region] for i, region in regions.items()}
            return [parts[first_of[i]] for i in range(len(coordinates))]

        return place

    def loader(self, stage: int, slot: Stored, microbatch: int) -> Callable[[Tensor], Shards]:
        """Return a function from an argument for the batch to the shards of a microbatch."""
        place = self.placer(stage, slot.value, slot.spec)
        shape = self.graph.value(slot.value).shape
        if not shape:  # a number that belongs to all examples
            return place
        size = shape[0]
        return lambda whole: place(whole.narrow(0, microbatch * size, size))

    def empty(self, stage: int, slot: Stored) -> Shards:
        """Return uninitialized shards of a value; devices with equal shards share a tensor."""
        value, mesh = self.graph.value(slot.value), self._plan.stages[stage].mesh
        shape, dtype = local_shape(value.shape, slot.spec, mesh), getattr(torch, value.dtype)
        coordinates = self.collectives(stage).coordinates
        first_of = like(coordinates, differing_axes([slot.spec]))
        tensors = {i: torch.empty(shape, dtype=dtype) for i in set(first_of.values())}
        return [tensors[first_of[i]] for i in range(len(coordinates))]

    def zeros(self, chunk: int) -> Callable[[], list[Shards]]:
        """Return a function that returns the totals of a chunk, zero-initialized."""
        stage, slots = self._chunks[chunk].stage, self._chunks[chunk].totals
        mesh, coordinates = self._plan.stages[stage].mesh, self.collectives(stage).coordinates
        forms = [
            (
                local_shape(self.graph.value(slot.value).shape, slot.spec, mesh),
                getattr(torch, self.graph.value(slot.value).dtype),
                like(coordinates, differing_axes([slot.spec])),
            )
            for slot in slots
        ]

        def make() -> list[Shards]:
            totals = []
            for shape, dtype, first_of in forms:
                tensors = {i: torch.zeros(shape, dtype=dtype) for i in set(first_of.values())}
                totals.append([tensors[first_of[i]] for i in range(len(coordinates))])
            return totals

        return make

    def program(self, chunk: int) -> Callable[[list[Shards]], list[Shards]]:
        """Return a function that runs a chunk, from totals and reads to totals and writes."""
        if chunk not in self._executables:
            self._executables[chunk] = self._executable(chunk)
        return self._executables[chunk]

    def _executable(self, chunk: int) -> Callable[[list[Shards]], list[Shards]]:
        program = present(self.programs[chunk], "only chunks of this process run in it")
        totals, stage = self._chunks[chunk].totals, self._chunks[chunk].stage
        mesh = self._plan.stages[stage].mesh
        positions = Mesh(mesh.shape, mesh.axis_names)

        def record(node: Communicate, result: Tensor) -> None:
            if self.is_recording:
                counted = self.executed.setdefault((stage, node.phase), Counter())
                n_bytes, step = result.numel() * result.element_size(), node.step
                groups = positions.groups(step.mesh_axes)
                if isinstance(step, Permutation) and step.to_opposite:
                    groups = opposite_pairs(groups)
                counted[step.kind, in_order(groups), n_bytes] += 1

        axes = [differing_axes([slot.spec]) for slot in totals]
        program, collectives = overlapped(program), self.collectives(stage)
        memory = memory_of(program)
        if len(collectives.devices) == 1:
            program = in_place(program, self._owned(chunk, program))
        runners: list[RegionRunner] = []
        if self.runners is not None:
            runners = self.runners
            program = in_regions(program, memory, can_compile)
        return executable(program, collectives, axes, record, runners)

    def _owned(self, chunk: int, program: LocalProgram) -> list[int]:
        """Return the reads of a chunk that it may overwrite: state that it updates."""
        reads, writes = self._chunks[chunk].reads, self._chunks[chunk].writes
        alias = {o.value: o.alias for o in self.graph.outputs}
        pairs = [
            (program.reads[place], program.writes[place])
            for place, (old, new) in enumerate(zip(reads, writes, strict=False))
            if place in self.given.get(chunk, ()) and alias.get(new.value) == old.value
        ]
        return owned_reads(program, pairs)

    def sharder(self, stage: int, slot: Stored) -> Callable[[Shards], Arrays]:
        """Return a function from the shards of a value to numpy arrays, by device."""
        devices = self.collectives(stage).devices
        return lambda shards: {d: _as_array(t) for d, t in zip(devices, shards, strict=True)}

    def assembler(self, stage: int, slot: Stored) -> Callable[[Arrays], Shards]:
        """Return a function from numpy arrays to shards; devices with one array share a tensor."""
        devices = self.collectives(stage).devices
        dtype = getattr(torch, self.graph.value(slot.value).dtype)

        def assemble(arrays: Arrays) -> Shards:
            tensors = {id(array): _as_tensor(array, dtype) for array in arrays.values()}
            return [tensors[id(arrays[device])] for device in devices]

        return assemble

    def mover(self, transfer: Transfer) -> None:
        """Return None: devices of a process share memory, so crossmesh does all transfers."""

    def whole(self, stage: int, slot: Stored, shards: Sequence[Tensor]) -> Tensor:
        """Return a whole value from its shards; all its devices are in this process."""
        mesh = self._plan.stages[stage].mesh
        return assemble(mesh, slot.spec, dict(zip(mesh.device_ids, shards, strict=True)))


def assemble(mesh: Mesh, spec: Spec, shards: Mapping[int, Tensor]) -> Tensor:
    """Return a whole tensor.

    Args:
        mesh: The mesh.
        spec: The tensor's spec, without partial sums.
        shards: Its shards on all devices of the mesh.
    """
    layout = [tuple(mesh.coordinates(device)) for device in shards]
    by_coordinates = dict(zip(layout, shards.values(), strict=True))
    first = next(iter(by_coordinates.values()))
    sizes = [n * mesh.axis_size(a) for n, a in zip(first.shape, spec.plain_dims, strict=True)]
    if list(first.shape) == sizes:
        return first
    whole = first.new_empty(sizes)
    for coordinates, shard in by_coordinates.items():
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
    """Return the integer type to carry the bytes of a type that numpy lacks; None if it has it.

    In numpy the values are raw bytes, `V2` for two: crossmesh treats them as the type in its plan,
    and adds them as such. It returns arrays like those that it gets; in a process that sends
    nothing, arrays of ml_dtypes' type, or raw bytes.
    """
    if hasattr(np, str(dtype).removeprefix("torch.")):
        return None
    return {1: torch.int8, 2: torch.int16}[dtype.itemsize]
