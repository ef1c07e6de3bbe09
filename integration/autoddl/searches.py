"""AutoDDL's searches (section 4.6) on a `Problem`, for its figure 8.

| method | what it does | one step is |
|---|---|---|
| `random` | draws choices at random | a choice |
| `exhaustive` | tries every choice, and so proves the optimum | a choice |
| `metropolis` | follows a Markov chain that changes one node at a time | a strategy of a node |
| `coordinate_descent` | improves one node after the other | a strategy of a node |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from autoshard import Problem, Solution, SolverSession
from autoshard.solvers.session import CLOSED

from autoddl.local_state import LocalState, Neighbours

COLD = 100.0
"""beta times the cost of the best choice so far: a change that costs 1 % more is accepted once in e
times. AutoDDL has "a chosen constant"; relative to a cost, it needs no unit. [Chosen: on the cases
of figure 8, 100 to 1,000 find the same in 1,000 steps; 30 is a little slower, 10 much slower.]"""


def search(problem: Problem, method: str, *, steps: int | None = None, seed: int = 0) -> Solution:
    """Return the best choice that a method finds within so many steps.

    Raises:
        InfeasibleError: It finds no feasible choice.
    """
    run = SolverSession(problem, time_s=math.inf, steps=steps, seed=seed)
    METHODS[method](problem, run)
    return run.solution(method)


def random_search(problem: Problem, run: SolverSession) -> None:
    """Draw a strategy for each node, all equally likely, again and again."""
    rng = np.random.default_rng(run.seed)
    sizes = [len(cost) for cost in problem.node_costs]
    while run.step():
        run.offer(rng.integers(sizes).tolist())


def exhaustive(problem: Problem, run: SolverSession) -> None:
    """Try all choices, where the last node's strategy changes fastest.

    Departure: all choices with the same forbidden strategy or pair among their first nodes are
    skipped at once.
    """
    neighbours = Neighbours(problem)
    last = problem.n_nodes - 1
    choice = [-1] * problem.n_nodes
    costs = [neighbours.costs(0, choice, before=0).tolist()] + [[]] * last
    paid = [0.0] * problem.n_nodes
    """For each node: the cost of the nodes before it."""
    node = 0
    while node >= 0:
        choice[node] += 1
        if choice[node] == len(costs[node]):
            choice[node] = -1
            node -= 1
            continue
        cost = paid[node] + costs[node][choice[node]]
        if math.isinf(cost):
            continue
        if node < last:
            node += 1
            paid[node] = cost
            costs[node] = neighbours.costs(node, choice, before=node).tolist()
            continue
        if not run.step():
            return
        if cost < run.objective:
            run.offer(choice)
    run.raise_bound(run.objective)


def metropolis(problem: Problem, run: SolverSession) -> None:
    """Follow a Markov chain from a random choice.

    A choice S is visited with probability proportional to exp(-beta Cost(S)): a random node draws a
    random strategy, and the change is accepted with probability
    min(1, exp(-beta (Cost(new) - Cost(old)))).

    Departure: forbidden strategies and usage above the limit count as infinite cost. So a change
    that has less of these is always accepted, and one that has more never.
    """
    rng = np.random.default_rng(run.seed)
    sizes = [len(cost) for cost in problem.node_costs]
    state = LocalState(problem, Neighbours(problem), rng.integers(sizes).tolist())
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
    """The probability of accepting a change that costs `rise` more."""
    scale = abs(run.objective) if math.isfinite(run.objective) else rise
    return math.exp(-COLD * rise / scale) if scale > 0.0 else 0.0


def coordinate_descent(problem: Problem, run: SolverSession) -> None:
    """Take the best strategy of one node after the other, until nothing changes any more.

    `S[i] = argmin over s_i of Cost(S with s_i)`. It begins at a random choice, and then again at
    another one. A step is the evaluation of one strategy of one node, so that steps compare with
    those of the other searches. Forbidden strategies and usage above the limit count before the
    cost.
    """
    rng = np.random.default_rng(run.seed)
    sizes = [len(cost) for cost in problem.node_costs]
    neighbours = Neighbours(problem)
    begin = rng.integers(sizes).tolist()
    while run.step():
        state = LocalState(problem, neighbours, begin)
        if not _descend(state, sizes, run):
            return
        begin = rng.integers(sizes).tolist()


def _descend(state: LocalState, sizes: list[int], run: SolverSession) -> bool:
    """Descend until no node gains, and offer the choice; returns whether steps are left."""
    unchanged, node, on = 0, 0, True
    while on and unchanged < len(sizes):
        if on := run.step(sizes[node]):
            changes = state.changes(node)
            best = int(np.lexsort(changes.T[::-1])[0])
            unchanged += 1
            # the gain has to exceed rounding, otherwise the descent might cycle
            if tuple(changes[best]) < (0.0, 0.0, -CLOSED * abs(state.worth[2])):
                state.take(node, best, changes[best])
                unchanged = 0
            node = (node + 1) % len(sizes)
    run.offer(state.choice)
    return on


METHODS: Mapping[str, Callable[[Problem, SolverSession], None]] = {
    "random": random_search,
    "exhaustive": exhaustive,
    "metropolis": metropolis,
    "coordinate_descent": coordinate_descent,
}
"""The searches by name."""
