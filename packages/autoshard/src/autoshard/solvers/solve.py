"""`solve`: one way in for every method of solving a `Problem`.

| method | what it does | proves | a step |
|---|---|---|---|
| `auto` | reduction, exact elimination where narrow, else search and bounds | a bound | |
| `ilp` | Alpa's integer program, by HiGHS | the optimum | a node of its tree |
| `local_search` | `auto` without the integer program | a bound | |
| `elimination` | exact elimination alone, where narrow | the optimum | a problem eliminated |
| `message_passing` | the bound alone, and what it decodes | a bound | one of the dual |
| `exhaustive` | every choice | the optimum | a choice |
| `random` | choices at random | | a choice |
| `metropolis` | a chain of random changes (AutoDDL 4.6) | | a strategy of a node |
| `coordinate_descent` | one node after the other (AutoDDL 4.6) | | a strategy of a node |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoshard.base.arrays import shown
from autoshard.errors import ProblemError
from autoshard.problem.problem import Problem
from autoshard.problem.solution import Incumbent, Solution
from autoshard.solvers.auto import auto, local_search
from autoshard.solvers.coordinate_descent import coordinate_descent
from autoshard.solvers.elimination import elimination
from autoshard.solvers.exhaustive import exhaustive
from autoshard.solvers.ilp import ilp
from autoshard.solvers.message_passing import message_passing
from autoshard.solvers.metropolis import metropolis
from autoshard.solvers.random_search import random_search
from autoshard.solvers.session import SolverSession

Method = Callable[..., None]
"""A function of `(problem, run)`: offers choices and bounds until the run says stop."""

METHODS: dict[str, Method] = {
    "auto": auto,
    "ilp": ilp,
    "local_search": local_search,
    "elimination": elimination,
    "message_passing": message_passing,
    "exhaustive": exhaustive,
    "random": random_search,
    "metropolis": metropolis,
    "coordinate_descent": coordinate_descent,
}
"""Every method by its name."""


def solve(
    problem: Problem,
    method: str = "auto",
    time_s: float = 60.0,
    *,
    steps: int | None = None,
    gap: float = 0.0,
    seed: int = 0,
    start: Sequence[int] | None = None,
    progress: Callable[[Incumbent], None] | None = None,
) -> Solution:
    """Find the cheapest choice within the memory limit.

    Args:
        problem: With or without a limit.
        method: A name of `METHODS`.
        time_s: When to stop.
        steps: A budget that makes the answer the same on every machine; each method says what a
            step of it is. `time_s` still ends it.
        gap: Stop where the choice is proved to cost at most this part of itself too much.
        seed: Of the random numbers of methods that draw some.
        start: A choice to begin with.
        progress: Called with each improvement of objective or bound.

    Returns:
        The best choice found, never one that breaks the limit, with a bound and how it came about.

    Raises:
        InfeasibleError: no feasible choice was found; has the smallest peak usage that was, and
            says whether it is proved that there is none.
        ProblemError: the method is unknown, a budget is not positive, or `start` does not fit.
        WidthError: the method is `elimination`, and the problem too wide for it.

    Examples:
        >>> import numpy as np
        >>> costs, table = (np.array([0.0, 2.0]),) * 2, np.array([[9.0, 1.0], [1.0, 0.0]])
        >>> idle = (np.zeros(2),) * 2
        >>> problem = Problem(costs, ((0, 1),), (table,), idle, ((0, 0), (0, 0)))
        >>> found = solve(problem)
        >>> found.objective, found.gap
        (3.0, 0.0)
    """
    if not isinstance(problem, Problem):
        raise ProblemError(f"what is solved is a Problem; got {shown(problem)}")
    if not isinstance(method, str) or method not in METHODS:
        raise ProblemError(f"a method is one of {', '.join(METHODS)}; got {method!r}")
    run = SolverSession(
        problem, time_s=time_s, steps=steps, gap=gap, seed=seed, start=start, progress=progress
    )
    METHODS[method](problem, run)
    return run.solution(method)
