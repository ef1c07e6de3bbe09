"""How far to reduce a network: to pairs for the ILP, or to nothing where that is cheap."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from autoshard.network import Network

COMPARISONS = 1_000_000
"""Dominance is looked for only where it takes fewer comparisons, about 2 ms."""


def reduce_to_pairs(network: Network) -> None:
    """Drop superfluous strategies and eliminate nodes of degree <= 2, until neither is possible.

    Nodes in `network.bound` stay: their memory may decide.
    """
    _reduce(network, list(network.unary))


def eliminate_all(network: Network, most_entries: int) -> bool:
    """Eliminate every node, narrowest first, unless a table would get too big.

    Args:
        network: Is changed.
        most_entries: Of any table that an elimination goes through.

    Returns:
        Whether nothing is left. If not, the network is of no further use.
    """
    sizes: dict[int, tuple[int, int]] = {}
    while network.unary:
        for node in network.stale:
            sizes.pop(node, None)
            if node in network.unary:
                sizes[node] = (network.joint_size(node), node)
        network.stale.clear()
        size, node = min(sizes.values())
        if size > most_entries:
            return False
        _reduce(network, network.eliminate(node))
    return True


def widest_table(network: Network) -> int:
    """Entries of the widest table that eliminating everything would go through, at most.

    Simulates `eliminate_all` without dropping strategies on the way.
    """
    around = {node: set(network.neighbours(node)) for node in network.unary}
    length = {node: len(kept) for node, kept in network.kept.items()}

    def size(node: int) -> int:
        return length[node] * math.prod(length[other] for other in around[node])

    sizes = {node: (size(node), node) for node in around}
    widest = 0
    while sizes:
        entries, node = min(sizes.values())
        widest = max(widest, entries)
        del sizes[node]
        clique = around.pop(node)
        for other in clique:
            around[other] = (around[other] | clique) - {node, other}
        for other in clique:
            sizes[other] = (size(other), other)
    return widest


def _reduce(network: Network, start: Iterable[int]) -> None:
    """Work through the nodes from `start` and those that a change touches, first in first out."""
    queue = deque(start)
    queued = set(queue)
    while queue:
        node = queue.popleft()
        queued.discard(node)
        changed: Iterable[int] = ()
        if network.drop_superfluous(node, COMPARISONS):
            changed = network.neighbours(node)
        network.split_separable(node)
        narrow = len(network.kept[node]) == 1 or len(network.neighbours(node)) <= 2
        if node not in network.bound and narrow:
            changed = network.eliminate(node)
        for other in changed:
            if other not in queued:
                queued.add(other)
                queue.append(other)
