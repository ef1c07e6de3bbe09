"""Compile what a plan runs: chunks, and the zeros that sums begin with, on each stage's devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from autoshard import Graph
from jax.sharding import NamedSharding
from shardspec import Mesh, Spec

from frontends.answer.plan import Plan
from frontends.base.boundary import doing
from frontends.jax.base import _compat
from frontends.jax.lower.lower import jax_mesh, lower_chunk, partition_spec
from frontends.jax.trace.trace import Trace
from frontends.plan.plan_fields import Stored
from frontends.program.chunks import Chunk
from frontends.program.program import Program
from frontends.program.register_allocation import Shards
from frontends.search.plan_options import Progress


class Submeshes:
    """The devices of every stage, and how values lie on them.

    Raises:
        DeviceError: JAX has fewer devices than the plan uses.
    """

    def __init__(self, plan: Plan, graph: Graph) -> None:
        self._graph = graph
        self.meshes = tuple(stage.mesh for stage in plan.stages)
        self.jax_meshes = tuple(jax_mesh(mesh) for mesh in self.meshes)
        self.devices = tuple(jax.devices())
        self.id_of = {device: i for i, device in enumerate(self.devices)}
        self._indices = cache(_local_indices)

    def processes(self, mesh: Mesh) -> frozenset[int]:
        """The processes that have devices of a mesh."""
        return frozenset(self.devices[device].process_index for device in mesh.device_ids)

    def is_local(self, stage: int) -> bool:
        """Whether this process runs the stage."""
        return jax.process_index() in self.processes(self.meshes[stage])

    def sharding(self, stage: int, spec: Spec) -> NamedSharding:
        """Where a value with this spec lies; partial sums have a leading dim more."""
        return NamedSharding(self.jax_meshes[stage], partition_spec(spec, self.meshes[stage]))

    def abstract(self, stage: int, slot: Stored) -> jax.ShapeDtypeStruct:
        """Shape, type and place of a value as a chunk takes or gives it."""
        value = self._graph.value(slot.value)
        axes = tuple(partial.axis for partial in slot.spec.partial)
        stacked = (self.meshes[stage].axis_size(axes),) if axes else ()
        where = self.sharding(stage, slot.spec)
        return jax.ShapeDtypeStruct(
            (*stacked, *value.shape), jnp.dtype(value.dtype), sharding=where
        )

    def put(self, whole: np.ndarray[Any, Any], where: NamedSharding) -> jax.Array:
        """Place an array that every process has; each device is given its own part only."""
        indices = self._indices(where, whole.shape)
        parts = jax.device_put([whole[index] for index in indices.values()], list(indices))
        return jax.make_array_from_single_device_arrays(whole.shape, where, parts)

    def empty(self, stage: int, slot: Stored) -> jax.Array:
        """An array without elements, where it belongs: XLA lays results of size zero anywhere."""
        target = self.abstract(stage, slot)
        indices = self._indices(target.sharding, target.shape)
        part = np.zeros(target.sharding.shard_shape(target.shape), target.dtype)
        parts = jax.device_put([part] * len(indices), list(indices))
        return jax.make_array_from_single_device_arrays(
            target.shape, target.sharding, parts, dtype=target.dtype
        )

    def shards(self, array: jax.Array) -> Shards:
        """The shards that this process has, by device id, without a copy."""
        return {self.id_of[s.device]: np.asarray(s.data) for s in array.addressable_shards}

    def assemble(self, target: jax.ShapeDtypeStruct, shards: Shards) -> jax.Array:
        """An array from the shards that this process has."""
        devices = [self.devices[device] for device in shards]
        parts = jax.device_put(list(shards.values()), devices)
        return jax.make_array_from_single_device_arrays(
            target.shape, target.sharding, parts, dtype=target.dtype
        )


def _local_indices(where: NamedSharding, shape: tuple[int, ...]) -> Mapping[Any, Any]:
    return dict(where.addressable_devices_indices_map(shape))


def compile_chunks(
    program: Program,
    trace: Trace,
    submeshes: Submeshes,
    dying: Mapping[int, frozenset[int]],
    progress: Progress | None = None,
) -> list[Any]:
    """A compiled program for each chunk of this process; two are compiled at a time.

    Args:
        program: Whose chunks to compile; those of other processes are None in the result.
        trace: Where the operators' equations are.
        submeshes: Where they run.
        dying: By chunk, which of its reads nobody needs after it. A result of equal shape is
            written over them, as sums are over the totals that they are added to.
        progress: Told how many chunks are compiled.
    """
    chunks, graph = program.chunks, program.step.graph

    def lowered(index: int) -> Any:
        chunk = chunks[index]
        mesh, jmesh = submeshes.meshes[chunk.stage], submeshes.jax_meshes[chunk.stage]
        function = lower_chunk(chunk, trace, graph, mesh, jmesh)
        totals, reads, writes = (
            [submeshes.abstract(chunk.stage, slot) for slot in slots]
            for slots in (chunk.totals, chunk.reads, chunk.writes)
        )
        donated = list(range(len(totals)))
        results = Counter(map(_place, writes))
        for position in sorted(dying.get(index, ())):  # state first
            place = _place(reads[position])
            if results[place]:  # JAX warns of what cannot be used
                results[place] -= 1
                donated.append(len(totals) + position)
        return jax.jit(function, donate_argnums=tuple(donated)).lower(*totals, *reads)

    def compiled(index: int, lowered: Any) -> Any:
        platform = submeshes.jax_meshes[chunks[index].stage].devices.flat[0].platform
        with doing(f"compiling {chunks[index]}"):
            return lowered.compile(_compat.compiler_options(platform))

    mine = [index for index, chunk in enumerate(chunks) if submeshes.is_local(chunk.stage)]
    programs: list[Any] = [None] * len(chunks)
    with ThreadPoolExecutor(max_workers=2) as pool:  # XLA compiles outside Python's lock
        waiting = []
        for index in mine:  # here: JAX's configuration may be of this thread alone
            with doing(f"compiling {chunks[index]}"):
                waiting.append((index, pool.submit(compiled, index, lowered(index))))
        for done, (index, result) in enumerate(waiting):
            programs[index] = result.result()
            if progress is not None:
                progress("compiling", done + 1, len(mine))
    return programs


def _place(abstract: jax.ShapeDtypeStruct) -> tuple[Any, ...]:
    return abstract.shape, abstract.dtype, abstract.sharding


def compile_zeros(chunk: Chunk, submeshes: Submeshes) -> Callable[[], Sequence[jax.Array]]:
    """Makes the totals of a chunk, which are nothing yet."""
    totals = [submeshes.abstract(chunk.stage, slot) for slot in chunk.totals]
    make = jax.jit(
        lambda: tuple(jnp.zeros(total.shape, total.dtype) for total in totals),
        out_shardings=tuple(total.sharding for total in totals),
    )
    with doing(f"compiling the sums of {chunk}"):
        compiled = make.lower().compile()
    place = placer(chunk.stage, chunk.totals, submeshes)
    return lambda: place(compiled())


def placer(
    stage: int, slots: Sequence[Stored], submeshes: Submeshes
) -> Callable[[Sequence[jax.Array]], Sequence[jax.Array]]:
    """Puts those of a program's results that have no elements where they belong."""
    empty = [i for i, slot in enumerate(slots) if submeshes.abstract(stage, slot).size == 0]
    if not empty:
        return lambda results: results

    def place(results: Sequence[jax.Array]) -> Sequence[jax.Array]:
        placed = list(results)
        for i in empty:
            placed[i] = submeshes.empty(stage, slots[i])
        return placed

    return place
