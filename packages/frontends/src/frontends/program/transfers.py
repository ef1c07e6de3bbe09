"""Plan the transfers between stages with crossmesh."""

from __future__ import annotations

import crossmesh
from costmodel import Cluster
from shardspec import Layout

from frontends.program.program import LoweredPlan


def plan_transfers(program: LoweredPlan, cluster: Cluster) -> tuple[crossmesh.TransferPlan, ...]:
    """A transfer plan for each transfer of the plan; the same in all processes."""
    plan, graph = program.plan, program.step.graph
    planned = []
    for transfer in plan.transfers:
        value = graph.value(transfer.value)
        source = plan.stages[transfer.source].mesh
        destination = plan.stages[transfer.destination].mesh
        hosts = {d: cluster.host(d) for mesh in (source, destination) for d in mesh.device_ids}
        planned.append(
            crossmesh.plan(
                Layout(value.shape, source, transfer.src_spec),
                Layout(value.shape, destination, transfer.dst_spec),
                value.dtype,
                hosts,
            )
        )
    return tuple(planned)
