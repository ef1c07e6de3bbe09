"""The method `metropolis`: a chain of choices that changes one node at a time (AutoDDL 4.6).

A choice S is to be visited with probability proportional to exp(-beta Cost(S)): one node draws a
strategy, and the change is taken with probability min(1, exp(-beta (Cost(new) - Cost(old)))).
"""

from __future__ import annotations

import math

import numpy as np

from autoshard.problem.problem import Problem
from autoshard.solvers.local import LocalState, Neighbours
from autoshard.solvers.session import SolverSession

COLD = 100.0
"""beta times the cost of the best choice so far: what costs 1 % more is taken once in e times.
AutoDDL has "a chosen constant"; relative to a cost it needs no unit. [Chosen: on the cases of
figure 8, 100 to 1,000 find the same in 1,000 steps, 30 is a little slower and 10 much.]"""


def metropolis(problem: Problem, run: SolverSession) -> None:
    """Follow the chain from the run's start, or from a random choice; a step is one proposal.

    Departure: what is forbidden or above the limit has no finite cost, so a change that has less of
    it is always taken and one that has more never.
    """
    rng = np.random.default_rng(run.seed)
    sizes = [len(cost) for cost in problem.node_costs]
    state = LocalState(problem, Neighbours(problem), run.start or rng.integers(sizes).tolist())
    while run.step():
        if state.is_feasible and state.worth[2] < run.objective:
            run.offer(state.choice)
        node = int(rng.integers(len(sizes)))
        strategy = int(rng.integers(sizes[node]))
        draw = rng.random()
        change = state.changes(node)[strategy]
        rises = [float(rise) for rise in change if rise]
        if not rises or rises[0] < 0.0 or (not change[:2].any() and draw < _part(rises[0], run)):
            state.take(node, strategy, change)
    if state.is_feasible:
        run.offer(state.choice)


def _part(rise: float, run: SolverSession) -> float:
    """The probability of taking a change that costs so much more."""
    scale = abs(run.objective) if math.isfinite(run.objective) else rise
    return math.exp(-COLD * rise / scale) if scale > 0.0 else 0.0
