"""A good choice for a network too wide to eliminate: exact moves along one coordinate at a time.

If every strategy is a point (for a sharding problem: what each mesh axis does), a move holds all
but one coordinate of every node at once, which leaves a handful of strategies a node, and takes the
exact optimum over them by elimination: the whole problem moves, not a part of it. This is the
coordinate descent of AutoDDL 4.6, with a coordinate for each mesh axis instead of each layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoshard.network import Network
from autoshard.problem import Problem
from autoshard.reduce import eliminate_all, reduce_to_pairs

Points = Sequence[NDArray[np.intp]]
"""Per node, shape (strategies, axes); equal numbers mean the same thing along an axis."""

ENTRIES = 16_000_000
"""Of any table in a move: 128 MB."""


def descend(problem: Problem, points: Points, start: Points) -> list[int] | None:
    """Move along one axis after the other, the last one first, until none gains.

    Args:
        problem: Its limit is ignored.
        points: Of its strategies.
        start: Per node, shape (axes,); need not be the point of a strategy.

    Returns:
        A choice that no move improves; `None` if every move takes too big tables, or if there is
        nothing possible near the start.
    """
    n_axes = len(start[0]) if start else 0
    best, cost, at = None, math.inf, start
    idle, axis = 0, n_axes
    while idle < n_axes:
        axis = (axis or n_axes) - 1
        moved = _move(problem, points, at, axis)
        # a real gain, not rounding
        if moved is not None and moved[1] < cost - 1e-9 * abs(moved[1]):
            best, cost = moved
            at = [of_node[s] for of_node, s in zip(points, best, strict=True)]
            idle = 1  # this axis has nothing left, given the others
        else:
            idle += 1
    return best


def _move(
    problem: Problem, points: Points, at: Points, axis: int
) -> tuple[list[int], float] | None:
    """The best choice that stays where it is but along one axis; `None` if the tables are too big.

    A node that has no strategy there is free: reduction has dropped it for a better one elsewhere.
    """
    network = Network(problem)
    for node, (of_node, here) in enumerate(zip(points, at, strict=True)):
        same = of_node == here
        same[:, axis] = True
        mask = same.all(axis=1)
        if mask.any():
            network.restrict(node, mask)
    reduce_to_pairs(network)
    if not eliminate_all(network, ENTRIES):
        return None
    return network.choose({}), network.constant
