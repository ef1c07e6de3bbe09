"""Compile what a plan runs: chunks, sums over microbatches, transfers between stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import crossmesh
import jax
import jax.numpy as jnp
from autoshard import Graph
from costmodel import Cluster
from jax.sharding import NamedSharding
from shardspec import Layout, Spec

from frontends.chunks import Chunk
from frontends.jax.lower import jax_mesh, lower_chunk, partition_spec
from frontends.jax.trace import Trace
from frontends.plan import Plan, Stored

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many of it are done, and of how many."""


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


def compile_chunks(
    chunks: Sequence[Chunk],
    trace: Trace,
    graph: Graph,
    submeshes: Submeshes,
    progress: Progress | None = None,
) -> list[Any]:
    """A compiled program for each chunk; two are compiled at a time, outside Python's lock."""

    def build(chunk: Chunk) -> Any:
        mesh, jmesh = submeshes.meshes[chunk.stage], submeshes.jax_meshes[chunk.stage]
        function = lower_chunk(chunk, trace, graph, mesh, jmesh)
        operands = [submeshes.abstract(chunk.stage, slot) for slot in chunk.reads]
        return jax.jit(function).lower(*operands).compile()

    programs: list[Any] = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        for program in pool.map(build, chunks):
            programs.append(program)
            if progress is not None:
                progress("compiling", len(programs), len(chunks))
    return programs


def make_adder(stage: int, slots: Sequence[Stored], submeshes: Submeshes) -> Any:
    """A program that adds one microbatch's sums to the totals, shard by shard."""
    mesh = submeshes.meshes[stage]
    specs = [partition_spec(slot.spec, mesh) for slot in slots]
    add = jax.shard_map(
        lambda totals, parts: [t + p for t, p in zip(totals, parts, strict=True)],
        mesh=submeshes.jax_meshes[stage],
        in_specs=(specs, specs),
        out_specs=specs,
        check_vma=False,
    )
    return jax.jit(add, donate_argnums=0)


def make_transports(
    plan: Plan, graph: Graph, cluster: Cluster
) -> tuple[crossmesh.LocalTransport, ...]:
    """What carries each of the plan's transfers."""
    transports = []
    for transfer in plan.transfers:
        value = graph.value(transfer.value)
        source = plan.stages[transfer.source].mesh
        destination = plan.stages[transfer.destination].mesh
        hosts = {d: cluster.host(d) for mesh in (source, destination) for d in mesh.device_ids}
        planned = crossmesh.plan(
            Layout(value.shape, source, transfer.src_spec),
            Layout(value.shape, destination, transfer.dst_spec),
            value.dtype,
            hosts,
        )
        transports.append(crossmesh.LocalTransport(planned, share=True))
    return tuple(transports)
