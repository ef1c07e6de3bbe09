"""The method `coordinate_descent`: the best strategy of one node after the other (AutoDDL 4.6).

`S[i] = argmin over s_i of Cost(S with s_i)` for every node i, until nothing changes any more; then
the best choice is kept, and it begins anew from a random one.
"""

from __future__ import annotations

import numpy as np

from autoshard.problem.problem import Problem
from autoshard.solvers.local import LocalState, Neighbours
from autoshard.solvers.session import CLOSED, SolverSession


def coordinate_descent(problem: Problem, run: SolverSession) -> None:
    """Descend from the run's start, or a random choice, then from random ones.

    A step is one strategy of one node looked at, so that steps compare with those of the other
    searches. What is forbidden or above the limit counts before the cost.
    """
    rng = np.random.default_rng(run.seed)
    sizes = [len(cost) for cost in problem.node_costs]
    neighbours = Neighbours(problem)
    begin = run.start or rng.integers(sizes).tolist()
    while run.step():
        state = LocalState(problem, neighbours, begin)
        if not _descend(state, sizes, run):
            return
        begin = rng.integers(sizes).tolist()


def _descend(state: LocalState, sizes: list[int], run: SolverSession) -> bool:
    """Down to where no node gains; offers it, and says whether there are steps left."""
    unchanged, node, on = 0, 0, True
    while on and unchanged < len(sizes):
        if on := run.step(sizes[node]):
            changes = state.changes(node)
            best = int(np.lexsort(changes.T[::-1])[0])
            unchanged += 1
            # a real gain, not rounding, or it might go round in circles
            if tuple(changes[best]) < (0.0, 0.0, -CLOSED * abs(state.worth[2])):
                state.take(node, best, changes[best])
                unchanged = 0
            node = (node + 1) % len(sizes)
    run.offer(state.choice)
    return on
