"""`evaluate`: computes what a choice costs and uses from the problem alone, to judge every solver.

It shares no code with the solvers, on purpose.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

from autoshard.errors import ProblemError
from autoshard.problem.problem import Problem

ROUNDING = 1e-12
"""The fraction of the limit by which sums of usages that are not whole numbers may exceed it: such
sums differ by about as much with the order of their terms."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Cost, peak usage and feasibility of one choice."""

    cost: float
    """Node and edge costs together; infinite if a forbidden strategy or pair is chosen."""
    peak_usage: float
    """The most that the nodes alive at one time use together."""
    peak_time: int | None
    """The first time at which they use that; `None` if nothing is ever used."""
    feasible: bool
    """Whether the cost is finite and the peak within the limit; see `ROUNDING`."""


def evaluate(problem: Problem, choice: Sequence[int]) -> Evaluation:
    """Compute cost and peak usage of a choice.

    Args:
        problem: The problem to choose for.
        choice: One strategy index for each node.

    Raises:
        ProblemError: `problem` is not a `Problem`, the choice has the wrong length, or one of its
            entries is not an index or out of range.
    """
    if not isinstance(problem, Problem):
        raise ProblemError(f"problem must be of class Problem; got problem={problem!r}")
    try:
        choice = [index(strategy) for strategy in choice]
    except TypeError as error:
        raise ProblemError(f"a choice has a whole number for each node; got {error}") from error
    if len(choice) != problem.n_nodes:
        raise ProblemError(
            f"a choice has one strategy for each node; got {len(choice)} for {problem.n_nodes} "
            "nodes"
        )
    for node, (of, strategy) in enumerate(zip(problem.node_costs, choice, strict=True)):
        if not 0 <= strategy < len(of):
            raise ProblemError(f"node {node} has strategies 0 to {len(of) - 1}; got {strategy}")
    costs = [of.item(strategy) for of, strategy in zip(problem.node_costs, choice, strict=True)]
    for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True):
        costs.append(table.item(choice[i], choice[j]))
    cost = math.fsum(costs)

    changes: defaultdict[int, float] = defaultdict(float)
    exact = True
    for node, (first, last) in enumerate(problem.intervals):
        if first < last:
            used = problem.usages[node].item(choice[node])
            exact = exact and used.is_integer()
            changes[first] += used
            changes[last] -= used
    usage, peak, peak_time = 0.0, 0.0, None
    for time in sorted(changes):
        usage += changes[time]
        if usage > peak:
            peak, peak_time = usage, time
    limit = math.inf if problem.usage_limit is None else problem.usage_limit
    within = peak <= (limit if exact else limit * (1.0 + ROUNDING))
    return Evaluation(cost, peak, peak_time, math.isfinite(cost) and within)
