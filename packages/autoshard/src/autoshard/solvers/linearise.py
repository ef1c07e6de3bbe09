"""The integer linear program of a problem (Alpa 4.2, Eq. 1; Rhino 4.2), as arrays.

Variables: x[i, s] = 1 if node i takes strategy s; e[a, b] in [0, 1] for each edge.
Objective: the sum of node costs times x and edge costs times e (Eq. 1, linearised).
Constraints: one strategy for each node (-> `_add_choices`); the e of an edge agree with the x of
both its ends (-> `_add_edge`); at selected times, usages stay within the limit (->
`Linear.cheapest`).

Departures: e is over *classes* of strategies whose rows (columns) of the edge's costs are equal up
to a constant, which is moved to the x. Many strategies need the same spec, so there are several
times fewer variables, and the relaxation is just as tight. Usages are counted from each node's
smallest one, which leaves out nodes that use the same in all strategies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoshard.base.arrays import Array
from autoshard.problem.full_times import Live
from autoshard.problem.problem import Problem
from autoshard.solvers.milp import Milp

LARGEST = 1e13
"""The largest cost in a program, whose unit is such that the best choice costs about 1e4. A larger
cost is in no choice that is as good; it is lowered to this, which keeps bounds valid and numbers in
a range that HiGHS can handle."""

Indices = NDArray[np.int64]
Row = tuple[Indices, Array, float]
"""The columns and values of a row of the matrix, and the upper limit of the row."""


class Linear:
    """The program of a problem; its rows for memory are added at the times that callers pass."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        sizes = [len(cost) for cost in problem.node_costs]
        self.first: Indices = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        """For each node the column of its strategy 0; at the end, the number of columns x."""
        self.n_rows, self.n_columns = problem.n_nodes, int(self.first[-1])
        """Without the rows for memory."""
        flat = np.concatenate(problem.node_costs)
        self._x_cost = np.where(np.isfinite(flat), flat, 0.0)
        self._upper = np.isfinite(flat).astype(np.float64)
        self._e_costs: list[Array] = []
        self._entries: list[tuple[Indices, Indices, Array]] = []
        self._add_choices(np.array(sizes))
        for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True):
            self._add_edge(i, j, table)
        self._lean = np.concatenate([usage - usage.min() for usage in problem.usages])
        self._least = np.array([usage.min() for usage in problem.usages])

    @property
    def n_entries(self) -> int:
        """The number of entries of the matrix, without the rows for memory."""
        return sum(len(values) for _, _, values in self._entries)

    def cheapest(self, unit: float, live: Live, times: Sequence[int]) -> Milp:
        """The program that minimises cost.

        Args:
            unit: The unit of the program's costs.
            live: The times that matter for the problem's limit.
            times: The times at which the limit, if there is one, has a row: indices of
                `live.times`.
        """
        limit = self.problem.usage_limit
        rows = [] if limit is None else [self._within(limit, live, time) for time in times]
        cost = np.minimum(np.concatenate([self._x_cost, *self._e_costs]) / unit, LARGEST)
        return self._pack(cost, rows)

    def leanest(self, unit: float, live: Live, times: Sequence[int]) -> Milp:
        """The program that minimises the peak usage at some times; the peak is the last column."""
        rows = []
        for time in times:
            at, usages, base = self._usages(live, time)
            top = np.append(at, self.n_columns)
            rows.append((top, np.append(usages / unit, -1.0), -base / unit))
        cost = np.zeros(self.n_columns + 1)
        cost[-1] = 1.0
        milp = self._pack(cost, rows)
        milp.upper[-1] = sum(float(usage.max()) for usage in self.problem.usages) / unit
        return milp

    def choice(self, x: Array) -> list[int]:
        """The choice of a point of the program."""
        ends = zip(self.first[:-1], self.first[1:], strict=True)
        return [int(x[begin:end].argmax()) for begin, end in ends]

    def point(self, choice: Sequence[int], n_columns: int) -> Array:
        """The x of a choice; the solver determines the e that agree with it."""
        x = np.zeros(n_columns)
        x[self.first[:-1] + np.asarray(choice, dtype=np.int64)] = 1.0
        return x

    def _within(self, limit: float, live: Live, time: int) -> Row:
        at, usages, base = self._usages(live, time)
        room = limit - base
        scale = max(abs(room), float(usages.max(initial=0.0))) or 1.0
        return at, usages / scale, room / scale

    def _add_choices(self, sizes: Indices) -> None:
        row = np.repeat(np.arange(len(sizes)), sizes)
        self._entries.append((row, np.arange(len(row)), np.ones(len(row))))

    def _add_edge(self, i: int, j: int, table: Array) -> None:
        for node, least in ((i, 1), (j, 0)):
            constant = table.min(axis=least)
            constant[~np.isfinite(constant)] = 0.0  # all are forbidden: no e, so the rows forbid x
            self._x_cost[self.first[node] : self.first[node + 1]] += constant
            table = table - np.expand_dims(constant, least)
        if not table.any():
            return
        table, row_of = _classes(table)
        table, column_of = _classes(table.T)
        b, a = np.nonzero(np.isfinite(table))
        e = self.n_columns + np.arange(len(a))
        at = self.n_rows
        for node, of, ends in ((i, row_of, a), (j, column_of, b)):
            n = len(of)
            x = self.first[node] + np.arange(n)
            self._entries.append((at + of, x, np.ones(n)))
            self._entries.append((at + ends, e, np.full(len(e), -1.0)))
            at += int(of.max()) + 1
        self.n_rows, self.n_columns = at, self.n_columns + len(e)
        self._e_costs.append(table[b, a])

    def _usages(self, live: Live, time: int) -> tuple[Indices, Array, float]:
        """A time's columns, their usage above the node's smallest, and the sum of the smallest."""
        alive = (live.first <= time) & (time < live.stop)
        at = np.flatnonzero(np.repeat(alive, np.diff(self.first)) & (self._lean > 0.0))
        return at, self._lean[at], float(self._least[alive].sum())

    def _pack(self, cost: Array, memory: Sequence[Row]) -> Milp:
        """The program with its entries sorted by row; rows for memory come after the others."""
        entries = list(self._entries)
        for number, (at, values, _) in enumerate(memory):
            entries.append((np.full(len(at), self.n_rows + number), at, values))
        row, column, value = (np.concatenate(part) for part in zip(*entries, strict=True))
        order = np.argsort(row, kind="stable")
        n_rows = self.n_rows + len(memory)
        starts = np.searchsorted(row[order], np.arange(n_rows + 1))
        right = np.zeros(self.n_rows)
        right[: self.problem.n_nodes] = 1.0
        room = np.array([most for _, _, most in memory])
        # The rows imply that no e is above 1. Without explicit bounds, HiGHS may loop for ever in
        # its presolve, where it ignores its time limit (`removeDoubletonEquations`) [1.15.1].
        upper = np.ones(len(cost))
        upper[: len(self._upper)] = self._upper
        return Milp(
            cost,
            upper,
            len(self._upper),
            np.concatenate([right, np.full(len(memory), -np.inf)]),
            np.concatenate([right, room]),
            starts.astype(np.int32),
            column[order].astype(np.int32),
            value[order],
        )


def _classes(table: Array) -> tuple[Array, NDArray[np.intp]]:
    """The distinct rows of a table in order of appearance, and for each row its index in these."""
    number: dict[bytes, int] = {}
    table = np.ascontiguousarray(table)
    of = np.array([number.setdefault(row.tobytes(), len(number)) for row in table])
    first = np.full(len(number), len(table))
    np.minimum.at(first, of, np.arange(len(table)))
    return table[first], of
