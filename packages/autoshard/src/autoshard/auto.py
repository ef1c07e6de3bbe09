"""`auto`: reduce a problem exactly, eliminate what is left if that is narrow, else search.

1. `reduce_to_pairs`; then elimination with wider tables: exact, and nearly all there is to do for
   programs that are chains or trees, on meshes of one axis, and on small meshes.
2. What is too wide: coordinate descent (`subspace`) or ball moves (`neighbourhood`) for a choice,
   message passing (`bound`) for a bound, and the ILP where it is small enough.
3. If the choice breaks the memory limit: multipliers (`pricing`) and the ILP.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autoshard.bound import lower_bound
from autoshard.errors import InfeasibleError
from autoshard.evaluate import evaluate
from autoshard.ilp import ilp
from autoshard.linearise import Linear
from autoshard.live import Live
from autoshard.neighbourhood import search
from autoshard.network import Network
from autoshard.pricing import price_memory
from autoshard.problem import Array, Problem
from autoshard.reduce import eliminate_all, reduce_to_pairs, widest_table
from autoshard.run import Run
from autoshard.subspace import Points, descend

ENTRIES = 2_000_000
"""Of any table in an exact elimination."""
HOPE = 100
"""How much wider than that tables may look before the strategies that fall on the way are known."""
COLUMNS = 100_000
"""Of the largest ILP that is tried."""


def auto(
    problem: Problem,
    run: Run,
    *,
    points: Points | None = None,
    ilp_columns: int = COLUMNS,
) -> None:
    """Find the cheapest choice within the memory limit.

    Args:
        problem: With or without a limit.
        run: Its time is for the ILP; the other parts take what they take, so that the same problem
            gives the same answer.
        points: Per node a point for each strategy, shape (strategies, axes), which lets the search
            move along one axis at a time; it begins at the points of every node's strategy 0.
        ilp_columns: The most variables of an ILP that is worth trying.

    Raises:
        InfeasibleError: every choice has a forbidden strategy or pair, or breaks the limit.
    """

    def oracle(
        other: Problem, prices: list[Array] | None, start: list[int] | None
    ) -> tuple[list[int], float]:
        choice, bound, _ = _without_limit(other, prices, start, points)
        return choice, bound

    choice, bound, how = _without_limit(
        problem, None, None, points, ilp_s=run.time_left(), ilp_columns=ilp_columns
    )
    judged = evaluate(problem, choice)
    if not math.isfinite(judged.cost):
        raise InfeasibleError(
            f"every choice of strategies found for the {problem.n_nodes} nodes has a forbidden "
            "strategy or pair (infinite cost); allow more of them"
        )
    if not judged.feasible:
        limited, priced, smallest = price_memory(problem, choice, oracle)
        bound, how = max(bound, priced), "multipliers"
        cost = math.inf if limited is None else evaluate(problem, limited).cost
        if cost > bound + 1e-9 * abs(bound):
            better, proved = _by_ilp(problem, limited, run.time_left(), ilp_columns)
            bound = max(bound, proved)
            if better is not None and evaluate(problem, better).cost <= cost:
                limited, how = better, "ilp"
        if limited is None:
            raise _over_limit(problem, smallest, run.time_left(), ilp_columns)
        choice = limited
    run.offer(leanest_of_equals(problem, choice), by=how)
    run.raise_bound(bound)


def leanest_of_equals(problem: Problem, choice: list[int]) -> list[int]:
    """Where a node has other strategies of the same cost, take the one that uses least.

    One pass, last node first. Usages count here even where an interval is empty.
    """
    choice = list(choice)
    around: list[list[tuple[int, Array]]] = [[] for _ in choice]
    for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True):
        around[i].append((j, table))
        around[j].append((i, table.T))
    for node in reversed(range(problem.n_nodes)):
        cost = problem.node_costs[node].copy()
        for other, table in around[node]:
            cost += table[:, choice[other]]
        usage = problem.usages[node]
        equal = cost <= cost[choice[node]]
        if usage[equal].min() < usage[choice[node]]:
            choice[node] = int(np.where(equal, usage, np.inf).argmin())
    return choice


def _without_limit(
    problem: Problem,
    prices: list[Array] | None,
    start: list[int] | None,
    points: Points | None,
    *,
    ilp_s: float = 0.0,
    ilp_columns: int = 0,
) -> tuple[list[int], float, str]:
    """A choice, a lower bound on any choice's cost (prices included), and how it was found."""
    network = Network(problem, prices)
    reduce_to_pairs(network)
    core, nodes = network.core(problem)
    if not nodes:
        return network.choose({}), network.constant, "elimination"
    wide = Network(core)
    if widest_table(wide) <= HOPE * ENTRIES and eliminate_all(wide, ENTRIES):
        found = wide.choose({})
        return network.expand(nodes, found), network.constant + wide.constant, "elimination"
    bound, how, best = lower_bound(core), "search", None
    if points is not None:
        inside = [points[node][network.kept[node]] for node in nodes]
        begin = [points[node][0 if start is None else start[node]] for node in nodes]
        best = descend(core, inside, begin)
    if best is None:
        best = search(core)
    if ilp_s > 0.0 and fits(core, ilp_columns):
        free = replace(core, usage_limit=None)
        inner = Run(free, time_s=ilp_s, start=best)
        ilp(free, inner)
        better, bound = inner.best, max(bound, inner.lower_bound)
        if better is not None and evaluate(free, better).cost <= evaluate(free, best).cost:
            best, how = list(better), "ilp"
    return network.expand(nodes, best), network.constant + bound, how


def _by_ilp(
    problem: Problem, start: list[int] | None, time_s: float, columns: int
) -> tuple[list[int] | None, float]:
    """The ILP on what reduction leaves; nothing and no bound if that is too large or time is up."""
    network = Network(problem)
    network.bound = {node: problem.usages[node] for node in _may_bind(problem)}
    reduce_to_pairs(network)
    core, nodes = network.core(problem)
    if time_s <= 0.0 or not fits(core, columns):
        return None, -math.inf
    begin = None
    if start is not None and all(start[node] in network.kept[node] for node in nodes):
        begin = [int(network.kept[node].searchsorted(start[node])) for node in nodes]
    run = Run(core, time_s=time_s, start=begin)
    ilp(core, run)
    found = None if run.best is None else network.expand(nodes, list(run.best))
    return found, run.lower_bound + network.constant


def fits(problem: Problem, most: int) -> bool:
    """Whether the integer program has at most so many columns."""
    return (
        sum(len(cost) for cost in problem.node_costs) <= most and Linear(problem).n_columns <= most
    )


def _may_bind(problem: Problem) -> list[int]:
    """The nodes that are alive at a time when the worst choice of each would break the limit."""
    limit = -math.inf if problem.usage_limit is None else problem.usage_limit
    live = Live(problem)
    worst = live.used([int(usage.argmax()) for usage in problem.usages])
    return sorted({int(n) for t in np.flatnonzero(worst > limit) for n in live.alive(int(t))})


def _over_limit(problem: Problem, smallest: float, time_s: float, columns: int) -> InfeasibleError:
    """Say which limit would do: proved by the ILP if it is small enough, else the best seen."""
    network = Network(problem)
    network.bound = dict(enumerate(problem.usages))
    reduce_to_pairs(network)
    core, _ = network.core(problem)
    if time_s > 0.0 and fits(core, columns):
        run = Run(core, time_s=time_s)
        ilp(core, run)
        smallest = min(smallest, run.smallest_peak)
    return InfeasibleError(
        f"no choice of strategies keeps the usage limit of {problem.usage_limit}; the smallest "
        f"peak usage found is {smallest}; raise the limit to that or more",
        smallest,
    )
