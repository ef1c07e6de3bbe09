"""A plan's layouts as `jax.sharding.PartitionSpec`s, for a program that uses plain `jax.jit`."""

from __future__ import annotations

from jax.sharding import PartitionSpec

from frontends.answer.plan import Plan
from frontends.errors import PlanError
from frontends.step.step import STATE


def partition_specs(plan: Plan) -> list[dict[str, PartitionSpec]]:
    """The layouts of a step's arguments by a plan: for each stage, those of what it reads.

    An argument that several stages read is in the dict of each; a stack of layers that a pipeline
    cuts is there by rows, as `params['w'][0]`. The axes have the names of the
    stage's mesh: `jax.make_mesh(stage.mesh.shape, stage.mesh.axis_names)` makes it.

    Args:
        plan: The plan of a JAX step.

    Returns:
        For each stage, by the name of an argument such as `params['head']`, its layout.

    Raises:
        PlanError: The plan is of format 1, which does not say what the arguments are.
    """
    stages = []
    for stage in plan.stages:
        if stage.sharding is None:
            raise PlanError(
                "layouts of arguments are known of plans of format 2 and newer; this one is of "
                "format 1: plan again"
            )
        graph, names = stage.sharding.graph, stage.mesh.axis_names
        stages.append(
            {
                stored.value: PartitionSpec(
                    *(
                        tuple(names[axis] for axis in axes) or None
                        for axes in stored.spec.plain_dims
                    )
                )
                for stored in stage.inputs
                if graph.value(stored.value).role in (*STATE, "batch")
                and not stored.value.startswith("early.")
            }
        )
    return stages
