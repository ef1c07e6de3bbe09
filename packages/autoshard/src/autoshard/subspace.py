"""A good choice for a network too wide to eliminate: exact moves along one coordinate at a time.

If every strategy has coordinates (for a sharding problem: what each mesh axis does), a move holds
all but one coordinate of every node at once, which leaves a handful of strategies a node, and takes
the exact optimum over them by elimination: the whole problem moves, not a part of it. This is the
coordinate descent of AutoDDL 4.6 with a coordinate for a mesh axis instead of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoshard.network import Network
from autoshard.problem import Array, Problem
from autoshard.reduce import eliminate_all, reduce_to_pairs

Coordinates = Sequence[NDArray[np.intp]]
"""Per node, shape (strategies, axes); equal numbers mean the same thing along an axis."""

ENTRIES = 16_000_000
"""Of any table in a move: 128 MB."""


def descend(
    problem: Problem, coordinates: Coordinates, start: list[int], prices: list[Array] | None = None
) -> tuple[list[int], float]:
    """Move along one axis after the other, the last one first, until none improves the choice.

    Args:
        problem: Its limit is ignored.
        coordinates: Of its strategies.
        start: Of finite cost.
        prices: Added to the node costs.

    Returns:
        A choice at least as good as `start`, and its cost with prices.
    """
    n_axes = coordinates[0].shape[1] if coordinates else 0
    choice, cost = start, _cost(problem, start, prices)
    idle, axis = 0, n_axes
    while idle < n_axes:
        axis = (axis or n_axes) - 1
        moved = _move(problem, coordinates, choice, axis, prices)
        # a real gain, not rounding
        if moved is not None and moved[1] < cost - 1e-9 * abs(cost):
            choice, cost = moved
            idle = 1  # this axis has nothing left, given the others
        else:
            idle += 1
    return choice, cost


def _move(
    problem: Problem,
    coordinates: Coordinates,
    choice: list[int],
    axis: int,
    prices: list[Array] | None,
) -> tuple[list[int], float] | None:
    """The best choice that differs along one axis only; `None` if it takes too big tables."""
    network = Network(problem, prices)
    for node, points in enumerate(coordinates):
        same = points == points[choice[node]]
        same[:, axis] = True
        network.restrict(node, same.all(axis=1))
    reduce_to_pairs(network)
    if not eliminate_all(network, ENTRIES):
        return None
    return network.choose({}), network.constant


def _cost(problem: Problem, choice: list[int], prices: list[Array] | None) -> float:
    total = sum(float(cost[s]) for cost, s in zip(problem.node_costs, choice, strict=True))
    if prices is not None:
        total += sum(float(price[s]) for price, s in zip(prices, choice, strict=True))
    for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True):
        total += float(table[choice[i], choice[j]])
    return total
