"""Time of the steps of a resharding plan."""

from __future__ import annotations

from collections.abc import Sequence

from shardspec import ReshardPlan, Step

from costmodel.collectives import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    point_to_point_time,
    reduce_scatter_time,
)
from costmodel.link import Link, MeshLinks, slowest

_TIME = {
    "all_gather": all_gather_time,
    "all_reduce": all_reduce_time,
    "all_to_all": all_to_all_time,
    "reduce_scatter": reduce_scatter_time,
}


def step_time(step: Step, itemsize: int, links: Sequence[Link]) -> float:
    """Time of one step of a plan: its collective over its axes, at the links of these axes.

    In a permutation every device sends one message. An exchange starts as many as an all-to-all,
    and lasts as long as the device that sends or receives most.

    Args:
        step: A step over several axes is one collective in groups of their product.
        itemsize: Bytes of one element.
        links: What `Cluster.links` returns for the mesh of the step. Any other sequence, one link
            for each mesh axis, does too: several axes then get the slowest of their links, which is
            too slow where the groups of one axis share a network card. A part of an axis has the
            axis's link.

    Returns:
        Seconds; 0.0 for a slice or a fill, which every device makes of what it has.
    """
    if step.is_local:
        return 0.0
    axes = step.mesh_axes
    link = links.over(axes) if isinstance(links, MeshLinks) else slowest(links[a] for a in axes)
    n = step.group_size
    if step.kind == "collective_permute":
        return point_to_point_time(step.received_bytes(itemsize), link)
    if step.kind == "exchange":
        most = max(step.received_bytes(itemsize), step.sent_bytes(itemsize))
        return (n - 1) * link.latency_s + most / link.bandwidth_bytes_per_s
    # What Table 2 calls n: the input of a reduce-scatter, the output of the others.
    priced = step.src if step.kind == "reduce_scatter" else step.dst
    return _TIME[step.kind](n, priced.local_bytes(itemsize), link)


def reshard_time(plan: ReshardPlan, itemsize: int, links: Sequence[Link]) -> float:
    """Time of all steps of a plan, one after the other; the arguments are those of `step_time`."""
    return sum((step_time(step, itemsize, links) for step in plan.steps), 0.0)
