"""`solve`: runs any of the methods on a `Problem`.

| method | what it does | proves | one step is |
|---|---|---|---|
| `auto` | reduction, exact elimination if narrow, else search and bounds | a bound | see there |
| `ilp` | Alpa's integer program, by HiGHS | the optimum | a node of its tree |
| `local_search` | `auto` without the integer program | a bound | see `auto` |
| `elimination` | exact elimination alone, if narrow | the optimum | a problem eliminated |
| `message_passing` | the bound alone, and the choice it decodes | a bound | a step of the dual |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoshard.base.arrays import shown
from autoshard.errors import ProblemError
from autoshard.problem.problem import Problem
from autoshard.problem.solution import Incumbent, Solution
from autoshard.solvers.auto import auto, local_search
from autoshard.solvers.elimination import elimination
from autoshard.solvers.ilp import ilp
from autoshard.solvers.message_passing import message_passing
from autoshard.solvers.session import SolverSession

Method = Callable[..., None]
"""A function of `(problem, run)`: offers choices and bounds to the run until that says stop."""

METHODS: dict[str, Method] = {
    "auto": auto,
    "ilp": ilp,
    "local_search": local_search,
    "elimination": elimination,
    "message_passing": message_passing,
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
        time_s: Stop after this many seconds.
        steps: Stop after this many steps of the method, which makes the answer the same on every
            machine. `time_s` still applies.
        gap: Stop when the relative gap between the choice's cost and the bound is at most this.
        seed: Seed of the random numbers, for methods that use them.
        start: A choice to begin with.
        progress: Called with each improvement of objective or bound.

    Returns:
        The best choice found, which never breaks the limit, with a bound and the trace of
        improvements.

    Raises:
        InfeasibleError: no feasible choice was found. It has the smallest peak usage that was, and
            tells whether it is proved that no choice is feasible.
        ProblemError: the method is unknown, a budget is not positive, or `start` does not fit.
        WidthError: the method is `elimination`, and the problem is too wide for it.

    Examples:
        >>> import numpy as np
        >>> costs, table = (np.array([0.0, 2.0]),) * 2, np.array([[9.0, 1.0], [1.0, 0.0]])
        >>> idle = (np.zeros(2),) * 2
        >>> problem = Problem(costs, ((0, 1),), (table,), idle, ((0, 0), (0, 0)))
        >>> solution = solve(problem)
        >>> solution.objective, solution.gap
        (3.0, 0.0)
    """
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem must be of class Problem; got problem={shown(problem)}")
    if not isinstance(method, str) or method not in METHODS:
        raise ProblemError(f"a method is one of {', '.join(METHODS)}; got {method!r}")
    run = SolverSession(
        problem, time_s=time_s, steps=steps, gap=gap, seed=seed, start=start, progress=progress
    )
    METHODS[method](problem, run)
    return run.solution(method)
