"""Time of the steps of a resharding plan, and of any sequence of collectives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardspec import Axis, ReshardPlan, Step

from costmodel.base.checks import count
from costmodel.hardware.link import Link, MeshLinks, slowest_link
from costmodel.time.algorithm import CollectiveKind
from costmodel.time.choose import collective_time
from costmodel.time.ring import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    permute_time,
    reduce_scatter_time,
)

_KIND: dict[str, CollectiveKind] = {
    "all_gather": "all_gather",
    "all_reduce": "all_reduce",
    "all_to_all": "all_to_all",
    "collective_permute": "permute",
    "exchange": "all_to_all",
    "reduce_scatter": "reduce_scatter",
}

_FLAT = {
    "all_gather": all_gather_time,
    "all_reduce": all_reduce_time,
    "all_to_all": all_to_all_time,
    "permute": permute_time,
    "reduce_scatter": reduce_scatter_time,
}


def step_time(step: Step, itemsize: int, links: Sequence[Link]) -> float:
    """Time of one step of a plan: of its collective, with the links of its axes.

    In a permutation every device sends one message. An exchange is priced as a pairwise all-to-all
    in which every device sends as much as the one that sends or receives most.

    Args:
        step: A step over several axes is one collective in groups of their product.
        itemsize: Bytes of one element, >= 1.
        links: From `Cluster.links` for the mesh of the step; then every collective uses its fastest
            algorithm. With any other sequence of one link for each mesh axis, it is a ring (or a
            pairwise all-to-all). Then several axes have the slowest of their links, which is too
            slow if the groups of one axis share a network card, and a part of an axis has the link
            of the axis.

    Returns:
        Seconds; 0.0 for a slice or a fill, which are local.

    Raises:
        QuantityError: `itemsize` is not a whole number >= 1.
    """
    itemsize = count("itemsize", itemsize, least=1)
    if step.is_local:
        return 0.0
    kind, n_bytes = _KIND[step.kind], float(_priced_bytes(step, itemsize))
    if isinstance(links, MeshLinks):
        algorithm = "pairwise" if step.kind == "exchange" else None
        return collective_time(kind, n_bytes, links.group(step.axes), algorithm)
    return _FLAT[kind](step.group_size, n_bytes, slowest_link(links[a] for a in step.mesh_axes))


def reshard_time(plan: ReshardPlan, itemsize: int, links: Sequence[Link]) -> float:
    """Time of all steps of a plan, one after the other; arguments are as for `step_time`."""
    return sum((step_time(step, itemsize, links) for step in plan.steps), 0.0)


def sequence_time(
    collectives: Iterable[tuple[CollectiveKind, float, Iterable[Axis]]], links: MeshLinks
) -> float:
    """Time of collectives, one after the other, each with its fastest algorithm.

    Args:
        collectives: For each its kind, the bytes of one device as in `fastest`, and the mesh axes
            (or parts of axes) that its groups run over.
        links: From `Cluster.links` for the mesh.

    Returns:
        Seconds.

    Raises:
        QuantityError: A number of bytes is negative or not finite.
        UnknownNameError: One of the kinds is not a collective.

    Examples:
        >>> from costmodel import Cluster
        >>> from shardspec import Mesh
        >>> links = Cluster.preset("two-hosts").links(Mesh((2, 4), ("host", "device")))
        >>> gradients = [("reduce_scatter", 1e9, (1,)), ("all_reduce", 0.25e9, (0,))]
        >>> f"{sequence_time(gradients, links):.2f} s"
        '8.15 s'
    """
    return sum(
        (collective_time(k, n_bytes, links.group(axes)) for k, n_bytes, axes in collectives), 0.0
    )


def _priced_bytes(step: Step, itemsize: int) -> float:
    match step.kind:
        case "collective_permute":
            return step.received_bytes(itemsize)
        case "exchange":
            n = step.group_size
            # Of the bytes of an all-to-all, a device keeps one n-th.
            return max(step.received_bytes(itemsize), step.sent_bytes(itemsize)) * n / (n - 1)
        case "reduce_scatter":  # n of Table 2 is its input, and the output of other collectives
            return step.src.local_bytes(itemsize)
        case _:
            return step.dst.local_bytes(itemsize)
