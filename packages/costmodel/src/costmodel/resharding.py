"""Time of the steps of a resharding plan."""

from __future__ import annotations

from collections.abc import Sequence

from shardspec import ReshardPlan, Step

from costmodel.collectives import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
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

    Args:
        step: A step over several axes is one collective in groups of their product.
        itemsize: Bytes of one element.
        links: What `Cluster.links` returns for the mesh of the step. Any other sequence, one link
            for each mesh axis, does too: several axes then get the slowest of their links, which is
            too slow where the groups of one axis share a network card.

    Returns:
        Seconds; 0.0 for a slice, which every device takes from what it has.
    """
    if step.kind == "slice":
        return 0.0
    if isinstance(links, MeshLinks):
        link = links.over(step.axes)
    else:
        link = slowest(links[axis] for axis in step.axes)
    # What Table 2 calls n: the input of a reduce-scatter, the output of the others.
    priced = step.src if step.kind == "reduce_scatter" else step.dst
    return _TIME[step.kind](step.group_size, priced.local_bytes(itemsize), link)


def reshard_time(plan: ReshardPlan, itemsize: int, links: Sequence[Link]) -> float:
    """Time of all steps of a plan, one after the other; the arguments are those of `step_time`."""
    return sum((step_time(step, itemsize, links) for step in plan.steps), 0.0)
