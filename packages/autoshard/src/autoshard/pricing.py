"""A memory limit by prices: Lagrange multipliers on the times when the limit can be broken.

`L(p) = min_choice cost + sum_t p_t (usage_t - limit)` bounds the optimum from below for prices
p >= 0, and its minimum is the problem without a limit, with other node costs. Its maximum over p is
sought by cutting planes (Kelley): each choice found gives one linear function that bounds L from
above. Choices seen on the way that keep the limit are candidates; the best one is then improved by
taking over, part by part, what a cheaper one that breaks the limit does differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import mip  # type: ignore[import-untyped]
import numpy as np

from autoshard.live import Live
from autoshard.problem import Array, Problem

Oracle = Callable[[Problem, list[Array] | None, list[int] | None], tuple[list[int], float]]
"""(problem, prices to add to its node costs, where to start) -> a choice, and a bound on its cost
with the prices that no choice goes below."""

ROUNDS = 24
"""Of cutting planes; with one time that binds about eight suffice."""


class Memory:
    """Usage at the times that matter."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        live = Live(problem)
        self.live = [live.alive(time).tolist() for time in range(len(live.times))]
        self.times: list[list[int]] = [[] for _ in range(problem.n_nodes)]
        for time, alive in enumerate(self.live):
            for node in alive:
                self.times[node].append(time)

    def used(self, choice: Sequence[int], nodes: Sequence[int] | None = None) -> Array:
        """Per time what some nodes (all, if left out) use."""
        total = np.zeros(len(self.live))
        for node in range(len(choice)) if nodes is None else nodes:
            total[self.times[node]] += self.problem.usages[node][choice[node]]
        return total

    def prices(self, at: Array) -> list[Array]:
        """Per node and strategy what its usage costs, at a price for each time."""
        return [
            usage * at[times].sum()
            for usage, times in zip(self.problem.usages, self.times, strict=True)
        ]


def price_memory(
    problem: Problem, unlimited: list[int], oracle: Oracle
) -> tuple[list[int] | None, float, float]:
    """Search a good choice that keeps the limit.

    Args:
        problem: With a limit.
        unlimited: The best choice without the limit.
        oracle: Solves the problem without its limit.

    Returns:
        The best choice that keeps the limit, or `None`; a lower bound; the smallest peak seen.
    """
    assert problem.usage_limit is not None
    memory = Memory(problem)
    lean, smallest = _lean(problem, memory, oracle)
    if smallest > problem.usage_limit:
        return None, -math.inf, smallest
    seen = [unlimited, lean]
    best, bound = lean, -math.inf
    for _ in range(ROUNDS):
        at = _best_prices(problem, memory, seen)
        choice, value = oracle(problem, memory.prices(at), seen[-1])
        bound = max(bound, value - float(at.sum()) * problem.usage_limit)
        if choice in seen:
            break
        seen.append(choice)
        if _keeps(memory, choice) and _cost(problem, choice) < _cost(problem, best):
            best = choice
    for choice in sorted(seen, key=lambda choice: _cost(problem, choice)):
        best = _mix(problem, memory, best, choice)
    return best, bound, smallest


def _lean(problem: Problem, memory: Memory, oracle: Oracle) -> tuple[list[int], float]:
    """A choice of small peak, by weights on the times that rise where the peak is."""
    free = free_of_cost(problem)
    weights = np.ones(len(memory.live))
    best: tuple[float, list[int]] | None = None
    for _ in range(6):
        choice, _bound = oracle(free, memory.prices(weights / weights.sum()), None)
        used = memory.used(choice)
        if best is None or used.max() < best[0]:
            best = (float(used.max()), choice)
        if problem.usage_limit is not None and best[0] <= problem.usage_limit:
            break
        weights *= np.exp(4.0 * (used / used.max() - 1.0))
    assert best is not None
    return best[1], best[0]


def free_of_cost(problem: Problem) -> Problem:
    """The same problem with nothing but what is forbidden, and without a limit."""
    return Problem(
        tuple(np.where(np.isfinite(cost), 0.0, np.inf) for cost in problem.node_costs),
        problem.edges,
        tuple(np.where(np.isfinite(cost), 0.0, np.inf) for cost in problem.edge_costs),
        problem.usages,
        problem.intervals,
    )


def _best_prices(problem: Problem, memory: Memory, seen: list[list[int]]) -> Array:
    """Prices at which the least of the seen choices' linear functions is greatest."""
    assert problem.usage_limit is not None
    excess = [memory.used(choice) / problem.usage_limit - 1.0 for choice in seen]
    costs = [_cost(problem, choice) for choice in seen]
    scale = max(map(abs, costs)) or 1.0
    binding = np.flatnonzero(np.max(excess, axis=0) > 0.0)
    model = mip.Model(sense=mip.MAXIMIZE)
    model.verbose = 0
    model.threads = 1
    price = [model.add_var(lb=0.0, ub=1e6) for _ in binding]
    worst = model.add_var(lb=-1e9)
    model.add_var(var_type=mip.BINARY)  # without an integer mip calls Clp, which prints
    for cost, over in zip(costs, excess, strict=True):
        terms = [float(o) * p for o, p in zip(over[binding], price, strict=True) if o]
        model.add_constr(worst <= cost / scale + mip.xsum(terms))
    model.objective = worst - 1e-9 * mip.xsum(price)
    model.optimize()
    at = np.zeros(len(memory.live))
    at[binding] = [max(float(p.x or 0.0), 0.0) * scale / problem.usage_limit for p in price]
    return at


def _mix(problem: Problem, memory: Memory, keeps: list[int], other: list[int]) -> list[int]:
    """Take over parts of `other` that make it cheaper while the limit is kept.

    Parts are the connected components of the nodes on which the two differ: they do not touch, so
    their differences in cost and usage add up. Greedily, the greatest saving per usage first.
    """
    differing = [node for node in range(len(keeps)) if keeps[node] != other[node]]
    offers = []
    for part in _components(problem, differing):
        mixed = list(keeps)
        for node in part:
            mixed[node] = other[node]
        saving = _cost(problem, keeps) - _cost(problem, mixed)
        growth = memory.used(mixed, part) - memory.used(keeps, part)
        if saving > 0.0:
            offers.append((saving / max(float(growth.max()), 1e-9), part, growth))
    result, used = list(keeps), memory.used(keeps)
    for _, part, growth in sorted(offers, key=lambda offer: -offer[0]):
        if ((used + growth) <= (problem.usage_limit or math.inf)).all():
            used = used + growth
            for node in part:
                result[node] = other[node]
    return result


def _components(problem: Problem, nodes: list[int]) -> list[list[int]]:
    """The connected parts of some nodes, by the edges among them."""
    root = {node: node for node in nodes}

    def find(node: int) -> int:
        while root[node] != node:
            root[node] = root[root[node]]
            node = root[node]
        return node

    for i, j in problem.edges:
        if i in root and j in root:
            root[find(max(i, j))] = find(min(i, j))
    parts: dict[int, list[int]] = {}
    for node in nodes:
        parts.setdefault(find(node), []).append(node)
    return list(parts.values())


def _keeps(memory: Memory, choice: list[int]) -> bool:
    limit = memory.problem.usage_limit
    return limit is None or bool((memory.used(choice) <= limit).all())


def _cost(problem: Problem, choice: Sequence[int]) -> float:
    total = sum(float(cost[s]) for cost, s in zip(problem.node_costs, choice, strict=True))
    for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True):
        total += float(table[choice[i], choice[j]])
    return total
