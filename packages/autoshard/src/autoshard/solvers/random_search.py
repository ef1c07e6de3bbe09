"""The method `random`: choices drawn at random (AutoDDL 4.6, a baseline of figure 8)."""

from __future__ import annotations

import numpy as np

from autoshard.problem.problem import Problem
from autoshard.solvers.session import SolverSession


def random_search(problem: Problem, run: SolverSession) -> None:
    """Draw a strategy for each node, all equally likely, again and again; a step is a choice."""
    rng = np.random.default_rng(run.seed)
    sizes = [len(cost) for cost in problem.node_costs]
    while run.step():
        run.offer(rng.integers(sizes).tolist())
