"""The hosts of a launcher's processes: how many processes each has, and a cluster of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodel import Cluster


def host_sizes(sizes_here: Sequence[int]) -> tuple[int, ...]:
    """The number of processes of each host, in the order of their ranks.

    Args:
        sizes_here: By rank, how many processes its host has.

    Returns:
        One host has all processes if the ranks of a host do not follow each other.

    Examples:
        >>> host_sizes([4, 4, 4, 4, 2, 2]), host_sizes([2, 1, 2])
        ((4, 2), (3,))
    """
    hosts: list[int] = []
    rank = 0
    while rank < len(sizes_here):
        size = sizes_here[rank]
        if size < 1 or list(sizes_here[rank : rank + size]) != [size] * size:
            return (len(sizes_here),)
        hosts.append(size)
        rank += size
    return tuple(hosts)


def with_host_sizes(cluster: Cluster, sizes: Sequence[int]) -> Cluster:
    """Hosts as the first one of a cluster, each with some number of its devices.

    Raises:
        HeterogeneousClusterError: The hosts of the cluster differ, so that none is the first of
            equal ones.
    """
    resized = cluster.resized(n_hosts=len(sizes))
    return replace(resized, hosts=tuple(resized.hosts[0].resized(size) for size in sizes))
