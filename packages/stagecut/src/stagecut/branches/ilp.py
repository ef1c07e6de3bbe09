"""The integer linear program of `split_graph`, solved by HiGHS through python-mip (extra `ilp`).

With n nodes of time t_i, values v that take w_v to receive, d stages and B microbatches:

    u[i, s] in {0, 1}  node i is in stage s or a later one; u[i, 0] = 1 and u[i, d] = 0
    x[i, s]            stands for u[i, s] - u[i, s + 1]: node i is in stage s
    y[v, s] in [0, 1]  stage s receives value v
    T                  the time after the first microbatch of the stage for which it is longest
    P[s] >= 0          temporary memory of stage s
    H[v, s] in [0, 1]  stage s holds v, which it produces, for stages after the next one

    minimise  sum of t_i + sum of w_v y[v, s] + T
    where     u[i, s] >= u[i, s + 1]                                        -> _add_places
              u[c, s] >= u[p, s]                if c reads v of node p      -> _add_reads
              y[v, s] >= x[c, s] - x[p, s]      if c reads v of node p      -> _add_reads
              sum over k >= s of y[v, k] >= u[c, s] - u[p, s]               -> _add_reads
              sum of x[i, s] >= 1                                           -> _add_stages
              sum of t_i x[i, s] <= limit                                   -> _add_stages
              (B - 1) (sum of t_i x[i, s] + sum of w_v y[v, s]) + sum of once_i x[i, s] <= T
                                                                            -> _add_stages
              sum of (fixed_i + in_flight(s) activation_i) x[i, s] + P[s]
                  + in_flight(s) sum of bytes_v H[v, s] <= memory           -> _add_memory
              P[s] >= temporary_i x[i, s]                                   -> _add_memory
              H[v, s] >= x[p, s] + u[c, s + 2] - 1                          -> _add_memory

Rhino (Zhang et al., 5.1) has one integer B_i for each node, which is the sum of our u[i, s], and
one F_ij for each edge, with F_ij <= B_j - B_i <= M F_ij. In its relaxation, an edge into the next
stage therefore pays only 1 / M of its bytes; here it pays all of them. And a stage receives a value
once for all its nodes, while Rhino's F counts each edge.

Bound tightening (Rhino 5.2): everything that a node depends on is computed before it. If there is a
limit on what one stage computes, a node therefore cannot be in the first few stages. Nor can it be
in the last few, as everything that depends on it is computed after it:

    B_i >= ceil((t_i + sum of t_j over ancestors j) / limit) - 1
    B_i <= d - ceil((t_i + sum of t_j over descendants j) / limit)                   -> _bounds

Our limit is that of the program, (1 + tolerance) times the mean. If the linear cut is known, it is
at most the time that the slowest stage may take in a better split, so no better split is lost.
Rhino has these bounds instead of a limit, with the mean in place of the limit and with epsilon
stages of slack. That does not balance branches that run side by side: with two equal chains, every
node has less than half of the work before it and after it, so one of two stages may have all nodes.
The paper prints the upper bound without "d -", counted from the end. We take that for a misprint,
as it would keep the end of a chain out of the last stages.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mip  # type: ignore[import-untyped]
import numpy as np
from mip.highs import has_highs  # type: ignore[import-untyped]
from numpy.typing import NDArray

from stagecut.branches.graph import GraphProblem

Ints = NDArray[np.int64]

if not has_highs:
    raise ImportError("python-mip is installed without HiGHS")

_SCALE = 1e4
"""Times are scaled so that a stage takes about this much. HiGHS accepts a row that is violated by
1e-6 (its mip_feasibility_tolerance), which is 1e-10 of such a time."""

_MEMORY = 1e7
"""Sizes are scaled so that a full memory is this much. Then HiGHS notices when one byte of a
terabyte is missing."""

_GAP = 1e-9
"""The gap at which HiGHS stops, relative and absolute. The default of python-mip, 1e-4, is larger
than rounding errors."""

_ROUNDING = 1e-9
"""Relative tolerance: the start must satisfy limits derived from it, which are sums of floats."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the solver found."""

    stage_of: tuple[int, ...] | None
    """The stage of each node; None if no split was found."""
    bound_s: float
    """No split takes less; inf if there is none, -inf if no bound is known."""
    is_finished: bool
    """Whether it is proved that this split is the best, or that there is none."""


def solve(
    problem: GraphProblem,
    start: Sequence[int] | None,
    time_limit_s: float,
    max_search_nodes: int | None,
) -> Outcome:
    """Solve on one thread. The result depends only on the arguments, unless the time runs out.

    Args:
        problem: The problem to solve.
        start: The stage of each node in a split that keeps to the limits, where HiGHS begins; None
            if no such split is known.
        time_limit_s: Wall-clock limit.
        max_search_nodes: Limit on the nodes of branch and bound; None for no limit.
    """
    more = problem.n_microbatches - 1
    least_s = problem.compute_s + more * problem.slowest_s
    most_s = math.inf  # limit for a stage of a better split, and for one value that it receives
    if start is not None:
        start_s = problem.split(start).time_s
        if start_s <= least_s:
            return Outcome(tuple(start), start_s, is_finished=True)
        most_s = (start_s - problem.compute_s) / max(more, 1) * (1 + _ROUNDING)
    first, last = _bounds(problem, min(problem.limit_s, most_s if more else math.inf))
    if (first > last).any():
        return Outcome(None, math.inf, is_finished=True)

    program = _Program(problem, first, last, most_s)
    if start is not None:
        program.start_from(start)
    status = program.model.optimize(
        time_limit_s,
        mip.INT_MAX if max_search_nodes is None else min(max_search_nodes, mip.INT_MAX),
    )
    # python-mip says "unbounded" if HiGHS says "unbounded or infeasible". No column has a negative
    # cost, so the program is not unbounded but infeasible.
    if status in (mip.OptimizationStatus.INFEASIBLE, mip.OptimizationStatus.UNBOUNDED):
        return Outcome(None, math.inf, is_finished=True)
    return Outcome(
        program.stage_of() if program.model.num_solutions else None,
        max(program.model.objective_bound * program.unit_s, least_s),
        is_finished=status == mip.OptimizationStatus.OPTIMAL,
    )


def _bounds(problem: GraphProblem, limit_s: float) -> tuple[Ints, Ints]:
    """The first and the last stage in which each node can be, shape (n_nodes,) each."""
    n, d = len(problem.nodes), len(problem.in_flight)
    if limit_s == math.inf:
        return np.zeros(n, np.int64), np.full(n, d - 1)
    before = np.eye(n, dtype=bool)  # [j, i]: j is i, or an ancestor of it
    for producer, consumer in sorted(problem.edges, key=lambda edge: edge[1]):
        before[:, consumer] |= before[:, producer]
    needed = np.array([node.time_s for node in problem.nodes]) / limit_s
    first = np.ceil(needed @ before).astype(np.int64) - 1
    last = d - np.ceil(before @ needed).astype(np.int64)
    return np.maximum(first, 0), np.minimum(last, d - 1)


class _Program:
    """The integer program for python-mip; `__init__` adds all its columns and rows."""

    def __init__(self, problem: GraphProblem, first: Ints, last: Ints, most_s: float) -> None:
        self._problem = problem
        self._stages = range(len(problem.in_flight))
        self.model = mip.Model(solver_name=mip.HIGHS)
        self.model.verbose, self.model.threads = 0, 1
        self.model.max_mip_gap = self.model.max_mip_gap_abs = _GAP
        self._after = max(problem.n_microbatches - 1, 1)
        # A transfer that takes longer than a better split allows is cut to the limit, which keeps
        # numbers in range and still excludes it.
        transfers_s = [min(seconds, most_s) for seconds in problem.transfer_s]
        onces_s = [node.once_s / self._after for node in problem.nodes]
        self.unit_s = (max(problem.slowest_s, *transfers_s, *onces_s) or 1.0) / _SCALE
        self._weights = [seconds / self.unit_s for seconds in transfers_s]
        self._onces = [seconds / self.unit_s for seconds in onces_s]
        self._temporary: list[Any] = []  # the columns P and H, if memory is limited
        self._held: dict[tuple[int, int], Any] = {}
        self._unit_bytes = max(problem.memory_bytes or 1, 1) / _MEMORY
        self._add_places(first, last)
        self._add_reads()
        self._add_stages()
        if problem.memory_bytes is not None:
            self._add_memory(problem.memory_bytes)
        self.model.objective = (
            problem.compute_s / self.unit_s
            + mip.xsum(self._weights[v] * received for (v, _), received in self._y.items())
            + self._after * self._slowest
        )

    def start_from(self, stage_of: Sequence[int]) -> None:
        """Give HiGHS a split that keeps to the limits as its first solution."""
        split = self._problem.split(stage_of)
        transfers_s = sum(stage.receive_s for stage in split.stages)
        after_s = split.time_s - self._problem.compute_s - transfers_s
        self.model.start = [
            *((self._u[i][s], 1.0) for i, last in enumerate(stage_of) for s in range(last + 1)),
            *((self._y[v, s], 1.0) for v, s in self._problem.received(stage_of)),
            *(
                (column, stage.cost.temporary_bytes / self._unit_bytes)
                for column, stage in zip(self._temporary, split.stages, strict=False)
            ),
            *((self._held[at], 1.0) for at in self._problem.held(stage_of) if self._held),
            (self._slowest, after_s / self._after / self.unit_s),
        ]

    def stage_of(self) -> tuple[int, ...]:
        """The stage of each node in the best solution that HiGHS found."""
        return tuple(sum(round(column.x) for column in columns) - 1 for columns in self._u)

    def _add_places(self, first: Ints, last: Ints) -> None:
        """Add columns u[i][s], s from 0 to d; HiGHS sees those that the bounds fix as constants."""
        self._u = [
            [
                self.model.add_var(lb=float(s <= a), ub=float(s <= b), var_type=mip.BINARY)
                for s in (*self._stages, len(self._stages))
            ]
            for a, b in zip(first, last, strict=True)
        ]
        for columns in self._u:
            for here, later in pairwise(columns):
                self.model.add_constr(here >= later)

    def _add_reads(self) -> None:
        """Add the rows that no node is in an earlier stage than one it reads from, and y[v, s].

        Stage 0 receives nothing, so it has no y.
        """
        for producer, consumer in self._problem.edges:
            for before, after in zip(self._u[producer], self._u[consumer], strict=True):
                self.model.add_constr(after >= before)
        self._y: dict[tuple[int, int], Any] = {}
        for v, value in enumerate(self._problem.values):
            produced = self._u[value.producer]
            received = [self.model.add_var(ub=1.0) for _ in self._stages[1:]]
            self._y |= {(v, s): column for s, column in enumerate(received, start=1)}
            for consumer in sorted(set(value.consumers)):
                read = self._u[consumer]
                for s in self._stages[1:]:
                    needed = (read[s] - read[s + 1]) - (produced[s] - produced[s + 1])
                    self.model.add_constr(received[s - 1] >= needed)
                    self.model.add_constr(mip.xsum(received[s - 1 :]) >= read[s] - produced[s])

    def _add_stages(self) -> None:
        """Add T, divided by B - 1 here, and the rows for each stage.

        A stage has a node, keeps to the limit, and takes no longer than T.
        """
        problem, has_more = self._problem, self._problem.n_microbatches > 1
        self._slowest = self.model.add_var(lb=problem.slowest_s / self.unit_s if has_more else 0.0)
        times_s = [node.time_s for node in problem.nodes]
        for s in self._stages:
            self.model.add_constr(self._sum([1.0] * len(times_s), s) >= 1)
            if problem.limit_s < math.inf:
                shares = [seconds / problem.limit_s * _SCALE for seconds in times_s]
                self.model.add_constr(self._sum(shares, s) <= _SCALE)
            time = self._sum(self._onces, s)
            if has_more:
                time += self._sum([seconds / self.unit_s for seconds in times_s], s)
                arriving = enumerate(self._weights) if s else ()
                time += mip.xsum(weight * self._y[v, s] for v, weight in arriving)
            self.model.add_constr(time <= self._slowest)

    def _add_memory(self, memory_bytes: int) -> None:
        """Add columns P[s] and H[v, s], and the rows that each stage fits in memory."""
        problem = self._problem
        self._temporary += [self.model.add_var() for _ in self._stages]
        for s, in_flight in enumerate(problem.in_flight):
            kept = [
                self._sized(node.peak_bytes(in_flight) - node.temporary_bytes)
                for node in problem.nodes
            ]
            held = mip.xsum(
                self._sized(in_flight * value.n_bytes) * self._add_held(v, s)
                for v, value in enumerate(problem.values)
                if s + 2 < len(self._stages)
            )
            peak = self._sum(kept, s) + held + self._temporary[s]
            self.model.add_constr(peak <= memory_bytes / self._unit_bytes)
            for node, columns in zip(problem.nodes, self._u, strict=True):
                if node.temporary_bytes:
                    needed = self._sized(node.temporary_bytes) * (columns[s] - columns[s + 1])
                    self.model.add_constr(self._temporary[s] >= needed)

    def _add_held(self, v: int, s: int) -> Any:
        """Add column H[v, s] and its rows."""
        self._held[v, s] = column = self.model.add_var(ub=1.0)
        value = self._problem.values[v]
        produced = self._u[value.producer]
        for consumer in sorted(set(value.consumers)):
            later = self._u[consumer][s + 2]
            self.model.add_constr(column >= produced[s] - produced[s + 1] + later - 1)
        return column

    def _sized(self, n_bytes: int) -> float:
        """A size in the unit of the program, at most twice the memory, which cannot fit either."""
        return min(n_bytes / self._unit_bytes, 2 * _MEMORY)

    def _sum(self, of_each_node: Sequence[float], stage: int) -> Any:
        """The sum of a number over the nodes in a stage."""
        return mip.xsum(
            each * (columns[stage] - columns[stage + 1])
            for each, columns in zip(of_each_node, self._u, strict=True)
            if each
        )
