"""Exact reduction of a problem by min-plus elimination and dominated strategies.

A network is a sum of tables over the nodes' choices. Eliminating node v joins the tables that
mention it and minimises over v: `t(N) = min_v sum of the tables at (N, v)`, a new table over v's
neighbours N. A node of degree <= 2 leaves a table over a pair, so what is left is a `Problem`;
wider tables are made only on request, up to a size. Dechter, "Bucket elimination", 1999.

A strategy t makes s superfluous if replacing s by t never costs more, whatever the neighbours do:
`c_t - c_s + sum over tables of max_N (T[t, N] - T[s, N]) <= 0`, and t never uses more memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.problem import Array, Problem

Scope = tuple[int, ...]
"""The nodes that a table is over, in increasing order."""


@dataclass(frozen=True, slots=True)
class _Eliminated:
    """How to choose for a node that is gone, once its neighbours have chosen."""

    node: int
    kept: NDArray[np.intp]
    neighbours: tuple[tuple[int, NDArray[np.intp]], ...]
    best: NDArray[np.intp]
    """Index into `kept`, for each choice of the neighbours among their strategies kept then."""


class Network:
    """The working state of a reduction; `choose` turns choices of what is left into all."""

    def __init__(self, problem: Problem, prices: list[Array] | None = None) -> None:
        """Start from a whole problem.

        Args:
            problem: Its limit and usages are ignored but for `bound`.
            prices: Per node what is added to its costs (Lagrange multipliers times usages).
        """
        self.unary: dict[int, Array] = {
            node: cost if prices is None else cost + prices[node]
            for node, cost in enumerate(problem.node_costs)
        }
        self.kept = {node: np.arange(len(cost)) for node, cost in self.unary.items()}
        self.tables: dict[Scope, Array] = {}
        self.scopes: dict[int, dict[Scope, None]] = {node: {} for node in self.unary}
        self.bound: dict[int, Array] = {}
        """Per node whose memory may bind its usages: it is not eliminated."""
        self.constant = 0.0
        self.stale: set[int] = set(self.unary)
        """Nodes whose `joint_size` may have changed since this set was last cleared."""
        self._trail: list[_Eliminated] = []
        for (i, j), table in zip(problem.edges, problem.edge_costs, strict=True):
            self._add((i, j), table) if i < j else self._add((j, i), table.T)

    def neighbours(self, node: int) -> Scope:
        """The nodes that share a table with `node`."""
        members = {member for scope in self.scopes[node] for member in scope}
        return tuple(sorted(members - {node}))

    def joint_size(self, node: int) -> int:
        """Entries of the table that eliminating `node` goes through."""
        size = len(self.kept[node])
        for neighbour in self.neighbours(node):
            size *= len(self.kept[neighbour])
        return size

    def eliminate(self, node: int) -> Scope:
        """Minimise over `node`; returns its former neighbours.

        A node with one strategy left joins nothing: each of its tables loses a dim.
        """
        neighbours = self.neighbours(node)
        self.stale.add(node)
        if len(self.kept[node]) == 1:
            self.constant += float(self.unary[node][0])
            for scope in list(self.scopes[node]):
                rest = tuple(member for member in scope if member != node)
                self._add(rest, np.asarray(self._remove(scope).take(0, axis=scope.index(node))))
            self._trail.append(_Eliminated(node, self.kept.pop(node), (), np.array(0)))
            del self.unary[node], self.scopes[node]
            return neighbours
        joint = self._spread((node,), self.unary[node], (*neighbours, node))
        for scope in list(self.scopes[node]):
            joint = joint + self._spread(scope, self._remove(scope), (*neighbours, node))
        best = joint.argmin(axis=-1)
        result = np.take_along_axis(joint, best[..., None], axis=-1)[..., 0]
        pairs = tuple((neighbour, self.kept[neighbour]) for neighbour in neighbours)
        self._trail.append(_Eliminated(node, self.kept.pop(node), pairs, best))
        del self.unary[node], self.scopes[node]
        if not neighbours:
            self.constant += float(result)
        else:
            self._add(neighbours, result)
        return neighbours

    def choose(self, choice: dict[int, int]) -> list[int]:
        """The best choice of every node, given those (original indices) of the nodes left."""
        full = dict(choice)
        for gone in reversed(self._trail):
            at = tuple(int(kept.searchsorted(full[node])) for node, kept in gone.neighbours)
            full[gone.node] = int(gone.kept[gone.best[at]])
        return [full[node] for node in range(len(full))]

    def expand(self, nodes: tuple[int, ...], choice: list[int]) -> list[int]:
        """The choice of every node that follows from one of the core's; `nodes` as from `core`."""
        return self.choose(
            {node: int(self.kept[node][s]) for node, s in zip(nodes, choice, strict=True)}
        )

    def restrict(self, node: int, strategies: NDArray[np.bool_]) -> None:
        """Keep only some of the strategies of `node` (a mask over those still kept)."""
        self._keep(node, np.flatnonzero(strategies))

    def split_separable(self, node: int) -> None:
        """Turn the pair tables of `node` that are a sum `a[s] + b[t]` into node costs."""
        for scope in list(self.scopes[node]):
            table = self.tables[scope]
            if len(scope) == 2 and np.isfinite(table).all():
                rows, columns = table[:, 0], table[0] - table[0, 0]
                if (table == rows[:, None] + columns[None, :]).all():
                    self._remove(scope)
                    self._add(scope[:1], rows)
                    self._add(scope[1:], columns)

    def drop_superfluous(self, node: int, effort: int) -> bool:
        """Drop forbidden and dominated strategies of `node`; whether there were any.

        Dominance is looked for only if that takes at most `effort` comparisons.
        """
        if len(self.kept[node]) == 1:
            return False
        changed = self._drop_impossible(node)
        n, cost = len(self.kept[node]), self.unary[node]
        tables = [self._rows(scope, node) for scope in self.scopes[node]]
        if n == 1 or n * n * sum(rows.shape[1] for rows in tables) > effort:
            return changed
        # excess[s, t]: the most that t can cost more than s
        with np.errstate(invalid="ignore"):
            excess = cost[None, :] - cost[:, None]
            for rows in tables:
                # where both are impossible the difference is nan, and says nothing
                difference = np.fmax.reduce(rows[None, :, :] - rows[:, None, :], axis=2)
                difference[np.isnan(difference)] = -np.inf
                excess += difference
            dominates = excess <= 0
        if node in self.bound:
            usage = self.bound[node]
            dominates &= usage[None, :] <= usage[:, None]
        np.fill_diagonal(dominates, False)
        if not dominates.any():
            return changed
        alive = np.ones(n, dtype=bool)
        for strategy in range(n - 1, -1, -1):  # of equals the first one stays
            alive[strategy] = not (dominates[strategy] & alive).any()
        self._keep(node, np.flatnonzero(alive))
        return True

    def _drop_impossible(self, node: int) -> bool:
        possible = self.unary[node] < np.inf
        for scope in self.scopes[node]:
            possible &= self._rows(scope, node).min(axis=1) < np.inf
        if possible.all() or not possible.any():
            return False
        self._keep(node, np.flatnonzero(possible))
        return True

    def _rows(self, scope: Scope, node: int) -> Array:
        """A table as a matrix with a row for each strategy of `node`."""
        table = self.tables[scope]
        if len(scope) == 2:
            return table if scope[0] == node else table.T
        return np.moveaxis(table, scope.index(node), 0).reshape(len(self.kept[node]), -1)

    def _spread(self, scope: Scope, table: Array, target: Scope) -> Array:
        """A table reshaped so that it broadcasts over the nodes of `target`."""
        order = sorted(range(len(scope)), key=lambda dim: target.index(scope[dim]))
        table = table.transpose(order)
        return table[tuple(slice(None) if node in scope else None for node in target)]

    def _keep(self, node: int, strategies: NDArray[np.intp]) -> None:
        self.stale.update((node, *self.neighbours(node)))
        self.kept[node] = self.kept[node][strategies]
        self.unary[node] = self.unary[node][strategies]
        if node in self.bound:
            self.bound[node] = self.bound[node][strategies]
        for scope in self.scopes[node]:
            self.tables[scope] = self.tables[scope].take(strategies, axis=scope.index(node))

    def _remove(self, scope: Scope) -> Array:
        self.stale.update(scope)
        for node in scope:
            del self.scopes[node][scope]
        return self.tables.pop(scope)

    def _add(self, scope: Scope, table: Array) -> None:
        self.stale.update(scope)
        if len(scope) == 1:
            self.unary[scope[0]] = self.unary[scope[0]] + table
        elif scope in self.tables:
            self.tables[scope] = self.tables[scope] + table
        else:
            self.tables[scope] = table
            for node in scope:
                self.scopes[node][scope] = None

    def core(self, problem: Problem) -> tuple[Problem, tuple[int, ...]]:
        """What is left as a problem, and the original number of each of its nodes.

        Only after eliminations of degree <= 2. `constant` is not part of it, its strategies are
        positions in `kept`, and of `problem`, the one that this network was made of, it takes the
        memory.
        """
        nodes = tuple(sorted(self.unary))
        number = {node: index for index, node in enumerate(nodes)}
        scopes = sorted(self.tables)
        core = Problem(
            tuple(self.unary[node] for node in nodes),
            tuple((number[i], number[j]) for i, j in scopes),
            tuple(self.tables[scope] for scope in scopes),
            tuple(problem.usages[node][self.kept[node]] for node in nodes),
            tuple(problem.intervals[node] for node in nodes),
            problem.usage_limit,
        )
        return core, nodes
