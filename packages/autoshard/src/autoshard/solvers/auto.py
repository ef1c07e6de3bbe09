"""The method `auto`: reduces a problem exactly, eliminates it if it is narrow, else searches.

1. The core reduces the problem (`instance_of`), then tries to eliminate it with tables of up to
   `elimination.ENTRIES`. This is exact. It suffices for programs that are chains or trees, on
   meshes of one axis, and on small meshes, if the optimum keeps the memory limit.
2. If it does not suffice, rounds of bounding and searching follow (`Chain`), until the budget is
   used up or the gap is closed. A problem that is small after some rounds is given to the integer
   program, for half of the time left, to prove the optimum.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autoshard.base._native import core
from autoshard.problem._arrays import instance_of, problem_of
from autoshard.problem.problem import Problem
from autoshard.problem.tie_break import leanest_of_equals
from autoshard.solvers.bound_and_search import Chain
from autoshard.solvers.elimination import eliminate
from autoshard.solvers.ilp import ilp
from autoshard.solvers.session import SolverSession

SETTLED = 100
"""Rounds of `Chain` before a small problem is given to the integer program."""
PEAK_STEP = 1e-3
"""The fraction by which each peak that is searched for is smaller than the last one found."""
PEAK_STEPS = 60
"""The budget of steps of each search for a choice that keeps a smaller limit."""
SMALL = 100_000
"""The largest integer program tried: labels, table entries and pieces of memory, added up."""
SMALL_STEPS = 20_000
"""The same under a budget of steps, since a planner that prices many graphs cannot wait."""


def auto(problem: Problem, run: SolverSession, *, prove: bool = True) -> None:
    """Find the cheapest choice within the memory limit.

    Args:
        problem: With or without a limit.
        run: A step is a round of `Chain` (about 0.1 s, less for small problems) or a node of branch
            and bound; reduction and elimination take no steps.
        prove: Whether to try the integer program on small problems.
    """
    instance = instance_of(problem)
    if not instance.possible:
        run.raise_bound(math.inf)
        return
    if eliminate(problem, instance, run) and run.is_proved:
        return
    if not instance.n_nodes:  # reduction has left one choice; as it does not fit, none does
        _find_smallest_peak(problem, run)
        run.raise_bound(math.inf)
        return
    chain = Chain(instance, run)
    chain.begin(None if run.start is None else np.array(run.start, dtype=np.int64))
    if prove and _is_small(chain.instance, run):
        steps = run.steps_left
        chain.go_on(SETTLED if steps is None else min(SETTLED, steps // 2))
        if not run.is_proved and _is_small(chain.instance, run):
            if run.best is None:
                _find_smallest_peak(problem, run)
                return
            _by_ilp(chain.instance, run)
    chain.go_on()
    if run.best is None:
        _find_smallest_peak(problem, run)
    else:
        run.offer(leanest_of_equals(problem, list(run.best)), by=run.found_by)


def local_search(problem: Problem, run: SolverSession) -> None:
    """`auto` without the integer program."""
    auto(problem, run, prove=False)


def _is_small(instance: core.Instance, run: SolverSession) -> bool:
    most = SMALL if run.steps_left is None else SMALL_STEPS
    return instance.n_labels + instance.n_entries + instance.n_pieces <= most


def _n_entries(problem: Problem) -> int:
    return sum(table.size for table in problem.edge_costs)


def _by_ilp(instance: core.Instance, run: SolverSession) -> None:
    """Solve the reduced instance by the integer program, in half of the time left."""
    left = run.time_left() / 2.0
    if left <= 0.0:
        return
    objective = run.objective  # the reduced instance has all choices that are cheaper than this
    steps = None if run.steps_left is None else max(run.steps_left, 1)
    rest = problem_of(instance)
    inner = SolverSession(rest, time_s=left, steps=steps)
    ilp(rest, inner)
    if inner.best is not None:
        labels = np.array(inner.best[: instance.n_nodes], dtype=np.int32)
        run.offer(instance.expand(labels).tolist(), by="ilp")
    run.raise_bound(min(inner.lower_bound + instance.constant, objective, run.objective))


def _find_smallest_peak(problem: Problem, run: SolverSession) -> None:
    """Offer the choice of the smallest peak usage, at any cost: the error reports its peak."""
    if _n_entries(problem) <= SMALL:
        steps = None if run.steps_left is None else max(run.steps_left, 1)
        inner = SolverSession(problem, time_s=max(run.time_left(), 0.1), steps=steps)
        ilp(problem, inner)
        if inner.best is not None:
            run.offer(inner.best, by="ilp")
        run.smallest_peak = min(run.smallest_peak, inner.smallest_peak)
        run.raise_bound(inner.lower_bound)
        if inner.is_proved:
            return
    free = replace(
        problem,
        node_costs=tuple(np.where(np.isfinite(cost), 0.0, np.inf) for cost in problem.node_costs),
        edge_costs=tuple(np.where(np.isfinite(cost), 0.0, np.inf) for cost in problem.edge_costs),
    )
    while run.time_left() > 0.0 and run.best is None:
        peak = run.smallest_peak
        limit = None if math.isinf(peak) else peak * (1.0 - PEAK_STEP)
        inner = SolverSession(
            replace(free, usage_limit=limit),
            time_s=run.time_left(),
            steps=PEAK_STEPS,
            seed=run.seed,
        )
        _find(inner.problem, inner)
        if inner.best is None:
            return
        run.offer(inner.best, by="search")


def _find(problem: Problem, run: SolverSession) -> None:
    """Offer some feasible choice, if one is found."""
    instance = instance_of(problem)
    if not instance.possible:
        return
    if not instance.n_nodes:
        run.offer(instance.expand(np.zeros(0, dtype=np.int32)).tolist())
        return
    chain = Chain(instance, run)
    chain.begin(None)
    while run.best is None and run.step(0):
        chain.go_on(1)
        if run.steps_left == 0:
            return
