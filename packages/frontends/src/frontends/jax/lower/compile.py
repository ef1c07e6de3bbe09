"""Compile what a plan runs on each stage's devices: chunks, and zeros for their totals."""

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
from frontends.program.program import LoweredPlan
from frontends.program.register_allocation import Shards
from frontends.search.plan_options import Progress


class Submeshes:
    """The devices of every stage, and the shardings of values on them.

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
        """The sharding of a value with this spec; a partial sum has one more, leading dim."""
        return NamedSharding(self.jax_meshes[stage], partition_spec(spec, self.meshes[stage]))

    def abstract(self, stage: int, slot: Stored) -> jax.ShapeDtypeStruct:
        """Shape, dtype and sharding of a value as a chunk reads or returns it."""
        value = self._graph.value(slot.value)
        axes = tuple(partial.axis for partial in slot.spec.partial)
        stacked = (self.meshes[stage].axis_size(axes),) if axes else ()
        sharding = self.sharding(stage, slot.spec)
        return jax.ShapeDtypeStruct(
            (*stacked, *value.shape), jnp.dtype(value.dtype), sharding=sharding
        )

    def put(self, whole: np.ndarray[Any, Any], sharding: NamedSharding) -> jax.Array:
        """Shard an array that every process has; each device is sent its own part only."""
        indices = self._indices(sharding, whole.shape)
        parts = jax.device_put([whole[index] for index in indices.values()], list(indices))
        return jax.make_array_from_single_device_arrays(whole.shape, sharding, parts)

    def empty(self, stage: int, slot: Stored) -> jax.Array:
        """An array without elements in its sharding; XLA places results of size zero anywhere."""
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


def _local_indices(sharding: NamedSharding, shape: tuple[int, ...]) -> Mapping[Any, Any]:
    """The part of an array that each device of this process has."""
    return dict(sharding.addressable_devices_indices_map(shape))


def compile_chunks(
    program: LoweredPlan,
    trace: Trace,
    submeshes: Submeshes,
    dying: Mapping[int, frozenset[int]],
    progress: Progress | None = None,
) -> list[Any]:
    """A compiled program for each chunk of this process; two are compiled at a time.

    Args:
        program: Its chunks are compiled.
        trace: Has the equations of the operators.
        submeshes: The devices of the stages.
        dying: By chunk, the positions of those of its reads that nothing needs after it. Results of
            equal shape are written over them, just as sums are written over the totals that they
            are added to.
        progress: Called with the number of chunks compiled so far.

    Returns:
        One entry for each chunk; None for chunks of other processes.
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
        for position in sorted(dying.get(index, ())):  # state comes first
            place = _place(reads[position])
            if results[place]:  # JAX warns of donated arrays that no result can use
                results[place] -= 1
                donated.append(len(totals) + position)
        return jax.jit(function, donate_argnums=tuple(donated)).lower(*totals, *reads)

    def compiled(index: int, lowered: Any) -> Any:
        platform = submeshes.jax_meshes[chunks[index].stage].devices.flat[0].platform
        with doing(f"compiling {chunks[index]}"):
            return lowered.compile(_compat.compiler_options(platform))

    local = [index for index, chunk in enumerate(chunks) if submeshes.is_local(chunk.stage)]
    programs: list[Any] = [None] * len(chunks)
    with ThreadPoolExecutor(max_workers=2) as pool:  # XLA releases Python's lock while it compiles
        waiting = []
        for index in local:  # lowered in this thread, as JAX's configuration may be thread-local
            with doing(f"compiling {chunks[index]}"):
                waiting.append((index, pool.submit(compiled, index, lowered(index))))
        for done, (index, result) in enumerate(waiting):
            programs[index] = result.result()
            if progress is not None:
                progress("compiling", done + 1, len(local))
    return programs


def _place(abstract: jax.ShapeDtypeStruct) -> tuple[Any, ...]:
    """What a result has in common with an operand that it can be written over."""
    return abstract.shape, abstract.dtype, abstract.sharding


def compile_zeros(chunk: Chunk, submeshes: Submeshes) -> Callable[[], Sequence[jax.Array]]:
    """A function that makes the totals of a chunk, which start at zero."""
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
    """A function that replaces results without elements by arrays in the right sharding."""
    empty = [i for i, slot in enumerate(slots) if submeshes.abstract(stage, slot).size == 0]
    if not empty:
        return lambda results: results

    def place(results: Sequence[jax.Array]) -> Sequence[jax.Array]:
        placed = list(results)
        for i in empty:
            placed[i] = submeshes.empty(stage, slots[i])
        return placed

    return place
