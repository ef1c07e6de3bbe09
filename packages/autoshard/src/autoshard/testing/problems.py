"""Hypothesis strategies for problems, and a brute-force solver."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from autoshard.problem.evaluate import evaluate
from autoshard.problem.problem import Problem


def brute_force(problem: Problem) -> tuple[float, tuple[int, ...] | None]:
    """The least cost of any feasible choice, and the first choice that has it, by trying all."""
    best: tuple[float, tuple[int, ...] | None] = (math.inf, None)
    for choice in itertools.product(*(range(len(cost)) for cost in problem.node_costs)):
        judged = evaluate(problem, choice)
        if judged.feasible and judged.cost < best[0]:
            best = (judged.cost, choice)
    return best


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    max_nodes: int = 6,
    max_strategies: int = 4,
    forbidden: bool = True,
    limited: bool = True,
) -> Problem:
    """Problems with small whole costs, any edges (also repeated ones), and limits that often bind.

    Args:
        draw: Supplied by Hypothesis.
        max_nodes: At least 1.
        max_strategies: The most strategies of a node.
        forbidden: Whether edges may have infinite costs.
        limited: Whether there may be a usage limit.
    """
    n = draw(st.integers(1, max_nodes))
    sizes = draw(st.lists(st.integers(1, max_strategies), min_size=n, max_size=n))
    numbers = st.integers(0, 9)

    def array(*shape: int, infinite: bool = False) -> NDArray[np.float64]:
        entry = st.one_of(numbers, numbers, st.just(math.inf)) if infinite else numbers
        count = math.prod(shape)
        values = draw(st.lists(entry, min_size=count, max_size=count))
        return np.array(values, dtype=np.float64).reshape(shape)

    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=2 * n)) if pairs else []
    starts = [draw(st.integers(0, 4)) for _ in range(n)]
    usages = tuple(array(size) for size in sizes)
    limit = None
    if limited and draw(st.booleans()):
        limit = float(draw(st.integers(0, 9 * n // 2)))
    return Problem(
        tuple(array(size) for size in sizes),
        tuple(edges),
        tuple(array(sizes[i], sizes[j], infinite=forbidden) for i, j in edges),
        usages,
        tuple((start, start + draw(st.integers(0, 3))) for start in starts),
        limit,
    )
