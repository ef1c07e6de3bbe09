"""The method `message_passing`: the lower bound alone, and the choices that it decodes.

The bound is a Lagrangian dual, of messages between nodes (TRW-S; Kolmogorov, "Convergent
tree-reweighted message passing for energy minimization", PAMI 2006) and a price of memory at each
time. After every step, the choice that the messages imply, read off node by node, is offered.
"""

from __future__ import annotations

import math

from autoshard.base._native import core
from autoshard.problem._arrays import instance_of
from autoshard.problem.problem import Problem
from autoshard.solvers.elimination import eliminate
from autoshard.solvers.session import SolverSession


def message_passing(problem: Problem, run: SolverSession) -> None:
    """Raise the bound until it converges; a step is a step of the dual."""
    instance = instance_of(problem)
    if not instance.possible:
        run.raise_bound(math.inf)
        return
    if not instance.n_nodes:  # reduction has left one choice; if it does not fit, none does
        eliminate(problem, instance, run)
        if run.best is None:
            run.raise_bound(math.inf)
        return
    dual = core.Dual(instance)
    dual.step(1.0, 1)  # a first bound, at prices of 0; the target does not matter
    while run.step() and not dual.converged:
        dual.step(aim(dual, instance, run), 1)
        run.raise_bound(dual.bound + instance.constant)
        run.offer(instance.expand(dual.choice).tolist())


def aim(dual: core.Dual, instance: core.Instance, run: SolverSession) -> float:
    """The target of a dual's step: the best cost, or twice the bound while there is none."""
    if math.isfinite(run.objective):
        return run.objective - instance.constant
    return 2.0 * abs(dual.bound) + 1.0
