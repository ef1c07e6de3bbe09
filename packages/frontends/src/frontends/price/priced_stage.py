"""Turn a priced run of layers into a stage of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import autoshard
from autoshard import Graph, Sharding, Solution
from costmodel import Cluster, step_time
from pipesched import Schedule
from shardspec import Layout, Mesh

from frontends.plan.plan_fields import (
    Collective,
    Conversion,
    Stage,
    Stored,
    Transfer,
    placements_of,
)
from frontends.plan.schedule import each_copy, edge_of, most_waiting
from frontends.price.pricing import Priced
from frontends.program.chunks import levels_of_apply
from frontends.step.fusion import fused_in_apply
from frontends.step.step import APPLY, BACKWARD, FORWARD


def planned_stage(
    first: int,
    last: int,
    mesh: Mesh,
    priced: Priced,
    cluster: Cluster,
    in_flight: int,
    memory_bytes: int,
) -> Stage:
    """The stage of a plan that runs some layers as they are priced.

    Args:
        first: First layer.
        last: Last layer, included.
        mesh: The mesh that the stage runs on.
        priced: The sharding of the layers.
        cluster: The cluster, whose links connect the mesh.
        in_flight: The most microbatches that the stage holds.
        memory_bytes: Peak memory of a device.
    """
    graph, sharding = priced.graph, priced.sharding
    collectives = autoshard.collectives(graph, sharding)
    kinds = {(id(c.step), c.itemsize): c for c in collectives}  # repeated layers share steps
    links = cluster.links(mesh)
    sizes = {
        kind: (
            c.step.dst.local_bytes(c.itemsize),
            c.step.sent_bytes(c.itemsize),
            step_time(c.step, c.itemsize, links),
        )
        for kind, c in kinds.items()
    }
    phase_s = [c + k for c, k in zip(sharding.compute_s, sharding.communication_s, strict=True)]
    repeats = [phase.repeats for phase in graph.phases]
    return Stage(
        first_layer=first,
        last_layer=last,
        mesh=mesh,
        inputs=tuple(Stored(name, spec) for name, spec in sharding.input_specs),
        outputs=tuple(
            Stored(output.value, spec)
            for output, spec in zip(graph.outputs, sharding.output_specs, strict=True)
        ),
        placements=placements_of(sharding),
        conversions=tuple(Conversion(c.phase, c.value, c.src, c.dst) for c in sharding.conversions),
        collectives=tuple(
            Collective(
                phase=c.phase,
                value=c.value,
                kind=c.step.kind,
                axes=c.step.mesh_axes,
                group_size=c.step.group_size,
                n_bytes=n_bytes,
                sent_bytes=sent_bytes,
                repeats=c.repeats,
                time_s=time_s,
            )
            for c in collectives
            for n_bytes, sent_bytes, time_s in [sizes[id(c.step), c.itemsize]]
        ),
        forward_s=phase_s[FORWARD] / repeats[FORWARD],
        backward_s=phase_s[BACKWARD] / repeats[BACKWARD],
        apply_s=phase_s[APPLY],
        memory_bytes=memory_bytes,
        sharding=as_planned(sharding, mesh, in_flight),
    )


def as_planned(sharding: Sharding, mesh: Mesh, in_flight: int) -> Sharding:
    """A sharding as a plan keeps it: all that its price consists of, without the search's records.

    Args:
        sharding: The sharding of a stage.
        mesh: The mesh that the stage runs on.
        in_flight: The number of microbatches whose activations it holds at a time.
    """
    solution = Solution((), sharding.objective_s, sharding.lower_bound_s, "", 0.0)
    options = replace(sharding.options, in_flight=in_flight)
    return replace(sharding, mesh=mesh, options=options, solution=solution, alternatives=())


def with_waiting(
    stages: Sequence[Stage], transfers: Sequence[Transfer], schedule: Schedule
) -> list[Stage]:
    """The stages, with the memory of values from stages of the same rank that wait to be read."""
    n_bytes = [stage.memory_bytes for stage in stages]
    schedule = each_copy(schedule)
    for transfer in transfers:
        stage, edge = stages[transfer.destination], edge_of(transfer, stages)
        if edge is None or stage.sharding is None:
            continue
        if n_waiting := most_waiting(schedule, edge):
            value = stage.sharding.graph.value(transfer.value)
            layout = Layout(value.shape, stage.mesh, transfer.dst_spec)
            n_bytes[transfer.destination] += n_waiting * layout.local_bytes(value.itemsize)
    return [replace(stage, memory_bytes=n) for stage, n in zip(stages, n_bytes, strict=True)]


def with_levels(stages: Sequence[Stage], graph: Graph) -> list[Stage]:
    """The stages, with the memory of values that one level of apply computes for a later one.

    Prices assume that apply is one program, in which XLA fuses chains of elementwise operators. If
    apply is cut into levels, as for clipping by the global norm, chains are cut, too, and values
    between levels need memory.

    Args:
        stages: All stages of a plan.
        graph: The graph of the whole step.
    """
    stage_of = {p.operator: index for index, s in enumerate(stages) for p in s.placements}
    levels = levels_of_apply(graph, stage_of)
    if not any(levels.values()):
        return list(stages)
    result = []
    for stage in stages:
        if stage.sharding is None:
            result.append(stage)
            continue
        program, n_bytes = stage.sharding.graph, stage.memory_bytes
        converted = {c.value for c in stage.conversions if c.phase == APPLY}
        fused = fused_in_apply(program, converted)
        produced = {
            name: (levels[op.name], spec)
            for op, placement in zip(program.operators, stage.placements, strict=True)
            for name, spec in zip(op.outputs, placement.results, strict=True)
            if name in fused
        }
        for name, (level, spec) in produced.items():
            readers = (program.operators[index].name for index in program.readers[name])
            if any(levels[reader] > level for reader in readers):
                value = program.value(name)
                n_bytes += Layout(value.shape, stage.mesh, spec).local_bytes(value.itemsize)
        result.append(replace(stage, memory_bytes=n_bytes))
    return result
