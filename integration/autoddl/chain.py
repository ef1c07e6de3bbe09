"""AutoDDL's search problem for a chain of dense layers, with AutoDDL's prices: for its figure 8."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from autoshard import Problem

Grid = tuple[int, int, int]
"""(p0, p1, p2): the parts into which a matmul's rows, columns and inner dim are split (4.2.2)."""


def grids(p: int) -> list[Grid]:
    """All ways to use `p` devices for a matmul.

    Examples:
        >>> grids(4)
        [(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)]
    """
    parts = [part for part in range(1, p + 1) if p % part == 0]
    return [(p0, p1, p // p0 // p1) for p0 in parts for p1 in parts if p % (p0 * p1) == 0]


def sbp_chain(p: int, widths: tuple[int, ...], batch: int) -> Problem:
    """The problem of running a chain of dense layers on `p` devices.

    A node is a layer, and its strategies are grids. Costs are elements that a device sends in
    forward and backward, by the ring algorithms of Table 2 of AutoDDL without latency. A layer has
    I (S0: p0, B: p1, S1: p2), W (B: p0, S1: p1, S0: p2) and O (S0: p0, S1: p1, P: p2), and sums the
    gradients of its weights over p0. Between two layers, O is scattered over p2 and gathered over
    the next p1, with an all-to-all in between unless p0 or the columns stay the same (4.3);
    backward does the same in reverse. The input is available as the first layer needs it, and the
    last result is scattered. Grids that do not divide the matmul are forbidden.

    Args:
        p: The number of devices.
        widths: The widths of the input and of each layer's result.
        batch: The number of rows.
    """
    space = grids(p)
    layers = list(pairwise(widths))
    costs = []
    for inner, columns in layers:
        of_layer = []
        for p0, p1, p2 in space:
            fits = not (batch % p0 or columns % (p1 * p2) or inner % (p1 * p2))
            synced = 2 * (p0 - 1) / p0 * inner * columns / (p1 * p2)
            of_layer.append(synced if fits else np.inf)
        costs.append(np.array(of_layer))
    scattered = [(p2 - 1) / p2 * batch / p0 for p0, _, p2 in space]
    costs[-1] += (
        2 * widths[-1] * np.array([s / p1 for s, (_, p1, _) in zip(scattered, space, strict=True)])
    )
    tables = []
    for (_, columns), _ in pairwise(layers):
        table = np.empty((len(space), len(space)))
        for row, (p0, p1, p2) in enumerate(space):
            for column, (q0, q1, q2) in enumerate(space):
                scatter = (p2 - 1) / p2 * batch * columns / (p0 * p1)
                gather = (q1 - 1) / q1 * batch * columns / (q0 * q2)
                exchanged = 0.0 if q0 == p0 or q2 == p1 else (p - 1) / p * batch * columns / p
                table[row, column] = 2 * (scatter + exchanged + gather)
        tables.append(table)
    n = len(layers)
    idle = (np.zeros(len(space)),) * n
    edges = tuple((i, i + 1) for i in range(n - 1))
    return Problem(tuple(costs), edges, tuple(tables), idle, ((0, 0),) * n)


FIGURE_8 = (32_768, 16_384, 4_096, 2_048, 512)
"""The widths of AutoDDL's 4-layer MLP (4.6)."""
PER_NODE = 8
"""Rows for each compute node, as in AutoDDL's weak scaling of dense layers (5.2); 4.6 does not say
how many it has."""
