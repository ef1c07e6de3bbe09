"""The integer linear program of Alpa 4.2, for python-mip.

Variables: x[i, s] = 1 if node i takes strategy s; e[a, b] in [0, 1] for an edge.
Objective: the sum of node costs times x and edge costs times e (Eq. 1, linearised).
Constraints: one strategy a node (-> `_add_choices`); the e of an edge agree with the x of both ends
(-> `_add_edges`); at all times that can be full, usages stay within the limit (-> `_add_memory`).

Departure: e is over *classes* of strategies whose rows (columns) of the edge's costs are equal, not
over strategies. Many strategies ask for one and the same spec, so this is several times smaller and
just as tight.
"""

from __future__ import annotations

from collections.abc import Iterable

import mip  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from autoshard.evaluate import evaluate
from autoshard.problem import Array, Problem


def fits(problem: Problem, most: int) -> bool:
    """Whether the program has at most so many variables."""
    columns = sum(len(cost) for cost in problem.node_costs)
    for cost in problem.edge_costs:
        if columns > most:
            return False
        columns += int(np.isfinite(_classes(_classes(cost)[0].T)[0]).sum())
    return columns <= most


def solve_ilp(
    problem: Problem,
    *,
    time_s: float,
    start: list[int] | None = None,
    peak: bool = False,
) -> tuple[list[int] | None, float]:
    """Solve a problem by branch and cut (CBC).

    Args:
        problem: Small: see `fits`.
        time_s: Stop after this long with the best choice so far.
        start: A feasible choice to begin with.
        peak: Minimise the peak usage instead of the cost, without a limit.

    Returns:
        The best choice (`None` if none was found) and a lower bound; `(None, inf)` proves that
        there is none.
    """
    model = mip.Model(sense=mip.MINIMIZE)
    model.verbose = 0
    model.threads = 1  # more of them make the answer depend on timing
    scale = _scale(problem, start)
    x, node_terms = _add_choices(model, problem, scale)
    edge_terms = _add_edges(model, problem, x, scale)
    if peak:
        top = model.add_var(lb=0.0)
        unit = max((float(usage.max()) for usage in problem.usages), default=1.0) or 1.0
        _add_memory(model, problem, x, top * unit)
        model.objective = top * 1.0
        scale = unit
    else:
        if problem.usage_limit is not None:
            _add_memory(model, problem, x, problem.usage_limit)
        model.objective = mip.xsum(node_terms + edge_terms)
    if start is not None:
        model.start = [(x[node][strategy], 1.0) for node, strategy in enumerate(start)]
    model.max_mip_gap = model.max_mip_gap_abs = 1e-9
    status = model.optimize(max_seconds=max(time_s, 0.1))
    if status in (mip.OptimizationStatus.INFEASIBLE, mip.OptimizationStatus.INT_INFEASIBLE):
        return None, np.inf
    bound = float(model.objective_bound) * scale
    if not model.num_solutions:
        return None, bound
    choice = [int(np.argmax([float(var.x or 0.0) for var in variables])) for variables in x]
    return choice, bound


def _scale(problem: Problem, start: list[int] | None) -> float:
    """The unit of cost in the program: CBC's tolerances are absolute, so costs must not be tiny."""
    if start is not None and (cost := evaluate(problem, start).cost) > 0.0:
        return cost / 1e4
    finite = [
        float(np.max(cost, where=np.isfinite(cost), initial=0.0))
        for cost in problem.node_costs + problem.edge_costs
    ]
    return max(finite, default=1.0) or 1.0


def _add_choices(
    model: mip.Model, problem: Problem, scale: float
) -> tuple[list[list[mip.Var]], list[mip.LinExpr]]:
    x: list[list[mip.Var]] = []
    terms = []
    for cost in problem.node_costs:
        possible = np.isfinite(cost).tolist()
        x.append([model.add_var(var_type=mip.BINARY, ub=float(ok)) for ok in possible])
        model.add_constr(mip.xsum(x[-1]) == 1)
        terms += [
            (c / scale) * v for c, v, ok in zip(cost.tolist(), x[-1], possible, strict=True) if ok
        ]
    return x, terms


def _add_edges(
    model: mip.Model, problem: Problem, x: list[list[mip.Var]], scale: float
) -> list[mip.LinExpr]:
    terms: list[mip.LinExpr] = []
    for (i, j), cost in zip(problem.edges, problem.edge_costs, strict=True):
        by_row, row_of = _classes(cost)
        by_column, column_of = _classes(by_row.T)
        table = by_column.T
        e: dict[tuple[int, int], mip.Var] = {
            (a, b): model.add_var(ub=1.0)
            for a, b in zip(
                *(axis.tolist() for axis in np.nonzero(np.isfinite(table))), strict=True
            )
        }
        terms += [(float(table[pair]) / scale) * var for pair, var in e.items() if table[pair]]
        for end, (node, of) in enumerate(((i, row_of), (j, column_of))):
            for group in range(table.shape[end]):
                members = [x[node][s] for s in np.flatnonzero(of == group).tolist()]
                across = [var for pair, var in e.items() if pair[end] == group]
                model.add_constr(mip.xsum(members) == mip.xsum(across))
    return terms


def _classes(table: Array) -> tuple[Array, NDArray[np.intp]]:
    """The distinct rows of a table, and for each row which of them it is."""
    rows, inverse = np.unique(table, axis=0, return_inverse=True)
    return rows, inverse.reshape(-1)


def _add_memory(
    model: mip.Model, problem: Problem, x: list[list[mip.Var]], limit: float | mip.LinExpr
) -> None:
    for alive in maximal_live_sets(problem):
        usage = mip.xsum(
            u * var
            for node in alive
            for u, var in zip(problem.usages[node].tolist(), x[node], strict=True)
            if u
        )
        model.add_constr(usage <= limit)


def maximal_live_sets(problem: Problem) -> list[list[int]]:
    """The sets of nodes alive together that no other such set contains, by time.

    A set can only be maximal at a start that is followed by an end, before the next start.
    """
    alive = [node for node, (first, last) in enumerate(problem.intervals) if first < last]
    starts = {problem.intervals[node][0] for node in alive}
    ends = sorted({problem.intervals[node][1] for node in alive})
    times = {max(start for start in starts if start < end) for end in ends}
    return [
        [node for node in alive if problem.intervals[node][0] <= t < problem.intervals[node][1]]
        for t in _in_order(times)
    ]


def _in_order(times: Iterable[int]) -> list[int]:
    return sorted(times)
