"""The method `ilp`: the integer linear program of Alpa 4.2, solved by HiGHS.

The program is that of `linearise`. If its rows for memory together have no more entries than the
rest, it has all of them. Otherwise a row is added where a solution breaks the limit, and the
program is solved again. A bound that is proved without some rows also holds with them.
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
"""What the best choice should cost in a program's unit: the tolerances of solvers are absolute."""

TOLERANCE = 1e-6
"""A positive bound below this counts as 0. (HiGHS's tolerances of primal and dual feasibility are
1e-7 to 1e-6.) If a problem has costs of 1 and of 1e200, the rounding error of the latter exceeds
the former."""

COARSE = 10.0
"""By which factor a choice may cost less than `COST` before the program is solved again in a finer
unit. In a coarse unit, bounds are off by more than they have to prove: by 0.06 % above the optimum
of the contest's instance B, where the cheapest strategies of the nodes together cost millions of
times the best choice."""


def ilp(problem: Problem, run: SolverSession) -> None:
    """Solve the integer linear program, starting at the best choice that the run has.

    A step is a node of branch and bound. If no choice keeps the limit, a second program finds the
    smallest limit that can be kept, for the error.
    """
    linear = Linear(problem)
    live = Live(problem)
    times = _first_times(linear, live)
    unit = _unit(problem, run)
    least = run.objective  # cost of the cheapest choice seen, whether it keeps the limit or not

    def report(x: Array | None, bound: float) -> bool:
        """Offer a point and a bound to the run; returns whether the unit is fine enough."""
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
            watch=lambda x, bound: report(x, bound) and run.step(0),
        )
        run.step(min(outcome.nodes, run.steps_left or outcome.nodes))
        if not report(outcome.x, outcome.bound):
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
    """Offer the choice of the smallest peak usage, which the run reports in its error."""
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
    """All times if their rows have no more entries than the rest of the program, else no times."""
    if linear.problem.usage_limit is None:
        return []
    entries = (live.stop - live.first) @ np.diff(linear.first)
    return list(range(len(live.times))) if entries <= linear.n_entries else []


def _peaks(live: Live, choice: list[int], limit: float) -> set[int]:
    """For each stretch of times at which a choice breaks a limit, the time of the highest usage."""
    used = live.used(choice)
    over = np.concatenate([[False], used > limit, [False]])
    begins, ends = np.flatnonzero(over[1:] & ~over[:-1]), np.flatnonzero(over[:-1] & ~over[1:])
    return {int(b + used[b:e].argmax()) for b, e in zip(begins, ends, strict=True)}


def _unit(problem: Problem, run: SolverSession) -> float:
    """The unit of cost in the program, in which the best choice so far costs `COST`."""
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
