"""Lowers a chunk to the program that every device of its stage runs, with explicit collectives.

A program is a list of calls on local shards and of collectives over axes of the stage's mesh. It is
the same for all devices: a device's coordinates matter only when the program runs. Conversions are
the steps that shardspec plans, so a program communicates exactly what the plan says.
"""

from __future__ import annotations

from collections.abc import Sequence

import shardspec
import torch
from autoshard import Graph, Operator
from shardspec import Layout, Mesh, Spec

from frontends.plan.plan_fields import Conversion, ShardedOperator, Stored
from frontends.program.chunks import Chunk
from frontends.step.step import SUM
from frontends.torch.base.blame import described, planning
from frontends.torch.base.flat import TensorType
from frontends.torch.lower.attention_parts import AttentionLowering, AttentionParts
from frontends.torch.lower.local import (
    LocalCall,
    add_copies,
    differing_axes,
    local_shape,
    local_slice,
)
from frontends.torch.lower.nodes import Communicate, Compute, LocalProgram, Node, with_last
from frontends.torch.trace.trace import Trace


def lower_chunk(chunk: Chunk, trace: Trace, graph: Graph, mesh: Mesh) -> LocalProgram:
    """Return the program of a chunk.

    Args:
        chunk: The chunk, from `build_chunks`.
        trace: Has the operators' calls.
        graph: The layered graph that the chunk is a part of.
        mesh: The stage's mesh.
    """
    operators = {op.name: op for op in graph.operators}
    registers: dict[Stored, int] = {}
    kinds: list[TensorType] = []
    nodes: list[Node] = []

    def new(name: str, spec: Spec) -> int:
        value = graph.value(name)
        dtype = getattr(torch, value.dtype)
        kinds.append(TensorType(local_shape(value.shape, spec, mesh), dtype))
        return len(kinds) - 1

    def convert(conversion: Conversion) -> None:
        name, shape = conversion.value, graph.value(conversion.value).shape
        source = registers[Stored(name, conversion.src)]
        for step in _steps(shape, mesh, conversion.src, conversion.dst):
            result = new(name, step.dst.spec)
            if step.is_local:
                axes = differing_axes((step.src.spec, step.dst.spec))
                call, key = local_slice(step, mesh), ("slice", step.dim, step.mesh_axes, mesh.shape)
                nodes.append(Compute(call, (source,), (result,), axes, None, name, key))
            else:
                nodes.append(Communicate(conversion.phase, step, (source,), (result,)))
            source = result
        registers[Stored(name, conversion.dst)] = source

    def run(placement: ShardedOperator) -> None:
        operator = operators[placement.operator]
        operands = tuple(map(Stored, operator.inputs, placement.operands))
        stored = tuple(map(Stored, operator.outputs, placement.results))
        call = trace.calls.get(operator.name)
        read = tuple(registers[slot] for slot in operands)
        if call is None and operator.kind != SUM:  # an identity returns its operand
            registers.update(zip(stored, read, strict=True))
            return
        results = tuple(new(slot.value, slot.spec) for slot in stored)
        registers.update(zip(stored, results, strict=True))
        if call is None:
            (spec,) = placement.results
            axes = differing_axes((*placement.operands, spec))
            key = "sum", len(read), spec
            nodes.append(Compute(add_copies(spec), read, results, axes, None, operator.name, key))
            return
        shapes = tuple(
            [graph.value(name).shape for name in names]
            for names in (operator.inputs, operator.outputs)
        )
        origin = trace.origins.get(operator.name)
        with planning(call.target, origin, lambda: values_of(operator, graph, trace)):
            local_shapes = [
                local_shape(shape, spec, mesh)
                for shape, spec in zip(shapes[0], placement.operands, strict=True)
            ]
            parts = AttentionParts.of(call, local_shapes, placement.operands, mesh)
            if parts is not None:
                unread = [name in graph.unread for name in operator.outputs]
                lowering = AttentionLowering(parts, operator.phase, operator.name, kinds)
                nodes.extend(lowering.lower(read, results, unread))
                return
            local = LocalCall(
                call, (shapes[0], shapes[1]), placement.operands, placement.results, mesh
            )
        axes = differing_axes(placement.operands, local.axes)
        nodes.append(Compute(local, read, results, axes, local.plain, operator.name, local.key))

    for slot in chunk.reads:
        registers[slot] = new(slot.value, slot.spec)
    for action in chunk.actions:
        if isinstance(action, Conversion):
            convert(action)
        else:
            run(action)
    totals = tuple(registers[slot] for slot in chunk.totals)
    writes = tuple(registers[slot] for slot in chunk.writes)
    reads = tuple(range(len(chunk.reads)))
    program = LocalProgram((), reads, totals, writes, len(kinds), tuple(kinds))
    return with_last(program, nodes, len(kinds))


def values_of(operator: Operator, graph: Graph, trace: Trace) -> list[str]:
    """Return descriptions of an operator's operands, for a message."""
    origins = trace.origins
    producers = {n: (o.inputs, origins.get(o.name)) for o in graph.operators for n in o.outputs}

    def kind(name: str) -> tuple[tuple[int, ...], str]:
        return graph.value(name).shape, graph.value(name).dtype

    return described(operator.inputs, kind, producers, origins.get(operator.name))


def _steps(shape: tuple[int, ...], mesh: Mesh, src: Spec, dst: Spec) -> Sequence[shardspec.Step]:
    return shardspec.reshard_whole_axes(Layout(shape, mesh, src), Layout(shape, mesh, dst)).steps
