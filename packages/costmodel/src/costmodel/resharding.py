"""Time of the steps of a resharding plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from costmodel.collectives import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    reduce_scatter_time,
)
from costmodel.link import Link, MeshLinks, slowest

if TYPE_CHECKING:
    from shardspec import ReshardPlan, Step


def step_time(step: Step, itemsize: int, links: Sequence[Link]) -> float:
    """Time of one step of a plan: its collective over its axes, at the links of these axes.

    Args:
        step: A step over several axes is one collective in groups of their product.
        itemsize: Bytes of one element.
        links: What `Cluster.links` returns for the mesh of the step. Any other sequence, one link
            for each mesh axis, does too: several axes then get the slowest of their links, which is
            too slow where the groups of one axis share a network card.

    Returns:
        Seconds; 0.0 for a slice, which every device takes from what it has.
    """
    kind = step.kind
    if kind == "slice":
        return 0.0
    axes = step.axes
    if isinstance(links, MeshLinks):
        link = links.over(axes)
    else:
        link = slowest(links[axis] for axis in axes)
    n = step.src.mesh.axis_size(axes)
    if kind == "reduce_scatter":
        return reduce_scatter_time(n, step.src.local_bytes(itemsize), link)
    time = _OUTPUT_PRICED[kind]
    return time(n, step.dst.local_bytes(itemsize), link)


_OUTPUT_PRICED = {
    "all_gather": all_gather_time,
    "all_reduce": all_reduce_time,
    "all_to_all": all_to_all_time,
}


def reshard_time(plan: ReshardPlan, itemsize: int, links: Sequence[Link]) -> float:
    """Time of all steps of a plan, one after the other; the arguments are those of `step_time`."""
    return sum((step_time(step, itemsize, links) for step in plan.steps), 0.0)
