"""The method `ilp`: the integer linear program of Alpa 4.2 by HiGHS.

The program is `linearise`'s. Its rows for memory are added where a solution breaks the limit, and
the program solved anew, unless all of them together have no more entries than the rest. What is
proved with some rows left out holds with them, too.
"""

from __future__ import annotations

import math

import numpy as np

from autoshard.base.arrays import Array
from autoshard.problem.evaluate import evaluate
from autoshard.problem.full_times import Live
from autoshard.problem.problem import Problem
from autoshard.solvers.highs import solve_highs
from autoshard.solvers.linearise import Linear
from autoshard.solvers.session import SolverSession

COST = 1e4
"""What the costs of a program should add up to: solvers' tolerances are absolute, `TOLERANCE`."""

TOLERANCE = 1e-6
"""Below it a bound is no more than 0. (HiGHS: of primal and dual feasibility 1e-7 to 1e-6.)
Where costs of 1 and of 1e200 are in one problem, the rounding of one is more than the other."""

COARSE = 10.0
"""How far below `COST` the costs may be found to be before the program gets a finer unit. In a
coarse one, bounds are off by more than what they are to prove: 0.06 % above the optimum of the
contest's instance B, where the cheapest strategies together cost millions of times the best."""


def ilp(problem: Problem, run: SolverSession) -> None:
    """Solve the integer linear program, from the best choice that the run has.

    A step is a node of branch and bound. If nothing keeps the limit, a second program finds the
    least limit that would do, for the error.
    """
    linear = Linear(problem)
    live = Live(problem)
    times = _first_times(linear, live)
    unit = _unit(problem, run)
    least = run.objective  # of the choices seen, within the limit or not

    def see(x: Array | None, bound: float) -> bool:
        """Take note of a point and a bound; says whether the unit is fine enough for them."""
        nonlocal least
        if x is not None:
            choice = linear.choice(x)
            run.offer(choice)
            least = min(least, evaluate(problem, choice).cost)
        fine = not 0.0 < least < unit * COST / COARSE
        if bound == math.inf or (fine and least < math.inf):
            run.raise_bound((0.0 if 0.0 < bound < TOLERANCE else bound) * unit)
        return fine

    while run.step(0):
        milp = linear.cheapest(unit, live, times)
        outcome = solve_highs(
            milp,
            time_s=run.time_left(),
            nodes=run.steps_left,
            seed=run.seed,
            start=None if run.best is None else linear.point(run.best, len(milp.cost)),
            watch=lambda x, bound: see(x, bound) and run.step(0),
        )
        run.step(min(outcome.nodes, run.steps_left or outcome.nodes))
        if not see(outcome.x, outcome.bound):
            unit = least / COST
            continue
        if outcome.x is None:
            break
        more = _peaks(live, linear.choice(outcome.x), _limit(problem))
        if more <= set(times):
            break
        times = sorted(more.union(times))
    if run.lower_bound == math.inf and problem.usage_limit is not None:
        _offer_leanest(linear, live, run)


def _offer_leanest(linear: Linear, live: Live, run: SolverSession) -> None:
    """Offer the choice of smallest peak usage, which the run keeps in mind for its error."""
    unit = max(float(usage.max()) for usage in linear.problem.usages) or 1.0
    times: list[int] = []
    nodes = None if run.steps_left is None else max(run.steps_left, 1)
    while (left := run.time_left()) > 0.0:
        milp = linear.leanest(unit, live, times)
        outcome = solve_highs(
            milp, time_s=left, nodes=nodes, seed=run.seed, start=None, watch=lambda _x, _bound: True
        )
        if outcome.x is None:
            return
        choice = linear.choice(outcome.x)
        run.offer(choice)
        more = _peaks(live, choice, outcome.bound * unit)
        if more <= set(times):
            return
        times = sorted(more.union(times))


def _limit(problem: Problem) -> float:
    return math.inf if problem.usage_limit is None else problem.usage_limit


def _first_times(linear: Linear, live: Live) -> list[int]:
    """All times if their rows have no more entries than the rest of the program, else none."""
    if linear.problem.usage_limit is None:
        return []
    entries = (live.stop - live.first) @ np.diff(linear.first)
    return list(range(len(live.times))) if entries <= linear.n_entries else []


def _peaks(live: Live, choice: list[int], limit: float) -> set[int]:
    """The fullest time of each stretch of times at which a choice breaks a limit."""
    used = live.used(choice)
    over = np.concatenate([[False], used > limit, [False]])
    begins, ends = np.flatnonzero(over[1:] & ~over[:-1]), np.flatnonzero(over[:-1] & ~over[1:])
    return {int(b + used[b:e].argmax()) for b, e in zip(begins, ends, strict=True)}


def _unit(problem: Problem, run: SolverSession) -> float:
    """The unit of cost in the program: such that the best choice so far costs `COST`."""
    if math.isfinite(run.objective) and run.objective > 0.0:
        return run.objective / COST
    cheapest = [int(cost.argmin()) for cost in problem.node_costs]
    cost = evaluate(problem, cheapest).cost
    if math.isfinite(cost) and cost > 0.0:
        return cost / COST
    finite = [
        float(np.max(np.abs(cost), where=np.isfinite(cost), initial=0.0))
        for cost in problem.node_costs + problem.edge_costs
    ]
    return max(finite, default=1.0) or 1.0
