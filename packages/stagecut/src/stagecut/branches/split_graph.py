"""Cut a graph with branches into stages, without first putting its nodes into one order (Rhino 5).

`slice_stages` cuts a list: a stage is a run of it. Where a model has branches, its nodes have many
orders that respect who reads what, and each has other runs. Every split of the graph into stages
that only read from themselves and from stages before them is a cut of one of these orders, so the
search for the split is the search for the order. Rhino writes it as an integer linear program;
`ilp.py` has it, with what we changed. The objective is that of `slice_stages`, so that the two can
be compared: with B microbatches, T_s the time of stage s for one of them, its computation and what
it receives, and O_s what it does once a step,

    minimise  sum of T_s + max of ((B - 1) T_s + O_s)    (Alpa, Eq. 2)  -> pipeline_time_s

Rhino minimises the bytes that are sent, among the splits that are balanced within a tolerance. That
is the same for B = 1, where the sum of the computation is constant: balance is only worth something
from the second microbatch on, and a tolerance is its substitute if their number is not known.

When to use which. `slice_stages` also chooses the submesh of each stage, and asks for the price of
a whole stage; it is exact for the order of the list, and fast. Use it for chains, also for those
with skip connections: a U-Net in which every operator reads the one before it has one order only,
and nothing is left to decide here. Use `split_graph` if branches run side by side (towers, experts,
side inputs) or carry operators that may stand on either end of a long connection; where the
submeshes of the stages are equal, and the time of a stage is about the sum of its nodes'. To have
both, give `slice_stages` the nodes in the order of `GraphSplit.order`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from stagecut.base.checks import check_memory, is_amount, is_count
from stagecut.base.edges import Boundary, check_values
from stagecut.base.held_microbatches import InFlightFunction, held_by, one_f_one_b
from stagecut.base.types import Slicing, StageCost, Submesh
from stagecut.branches.graph import GraphProblem, GraphSplit
from stagecut.errors import (
    InfeasibleStagesError,
    InvalidInputError,
    MissingExtraError,
    UnfinishedSearchError,
)
from stagecut.slice.slice import slice_stages

_ROUNDING = 1e-9
"""Relative; times are sums of floats, and a stage of exactly the limit must pass."""


def split_graph(
    nodes: Sequence[StageCost],
    values: Sequence[Boundary],
    n_stages: int,
    n_microbatches: int,
    *,
    transfer_s: Callable[[int], float],
    tolerance: float = math.inf,
    memory_bytes: int | None = None,
    in_flight: InFlightFunction = one_f_one_b,
    time_limit_s: float = math.inf,
    max_search_nodes: int | None = None,
) -> GraphSplit:
    """Find the stages of a graph on equal submeshes with the shortest step (Rhino 5.1 and 5.2).

    Starts from the best linear cut, the one that `slice_stages` finds for the nodes in the order
    given, and never returns a longer step. Needs the extra `ilp`. In the worst case the time grows
    exponentially; graphs of thousands of operators are clustered first, as Rhino does (4.3).

    Args:
        nodes: What each operator or layer costs on the submesh of a stage, in an order in which
            each is after those it reads from. A stage costs the sum of its nodes; its temporary
            memory is that of one node at a time.
        values: What nodes hand each other. A stage receives a value once, however many of its nodes
            read it, and from the stage that made it, which holds it in memory for stages after the
            next. Rhino counts every edge: give one `Boundary` for each consumer to have that.
        n_stages: How many; none of them is empty.
        n_microbatches: Of a step. With 1, what is minimised is what is received, as in Rhino.
        transfer_s: Of a number of bytes, the time for one microbatch to bring a value of that size
            into a stage, and its gradient back.
        tolerance: How far the computation of a stage may exceed the average, as a fraction of it.
        memory_bytes: Of one device; None for no limit.
        in_flight: As for `slice_stages`.
        time_limit_s: Of wall clock, for the program; the linear cut comes on top. When it is over,
            the best split so far is returned, with the gap. Then equal input may give other output.
        max_search_nodes: Of the program's branch and bound; a limit that is deterministic.

    Raises:
        InvalidInputError: A size is below 1, there are fewer nodes than stages, a value is read
            before it is made, or a time or the tolerance is negative.
        InfeasibleStagesError: No split keeps to the tolerance and the memory.
        UnfinishedSearchError: A limit was reached before a first split was found, which only
            happens where no linear cut fits.
        MissingExtraError: python-mip or HiGHS is not installed.

    Examples:
        Two towers of three nodes each, of which the second reads the end of the first. The program
        has them in turns, so each run of it has nodes of both, and a cut goes through both.

        >>> nodes = [StageCost(1.0, fixed_bytes=0, activation_bytes=0) for _ in range(6)]
        >>> reads = ((0, 2), (2, 4), (1, 3), (3, 5), (4, 5))
        >>> values = [Boundary(producer, 1_000_000, (consumer,)) for producer, consumer in reads]
        >>> print(split_graph(nodes, values, 2, n_microbatches=4, transfer_s=lambda n: n / 1e7))
        2 stages, 15.4 s a step, at best 15.4 s; in the order given 15.8 s
          nodes 0 2 4: 3 s a microbatch, 0 s of it to receive 0 B
          nodes 1 3 5: 3.1 s a microbatch, 100 ms of it to receive 977 KiB
    """
    nodes, values = tuple(nodes), tuple(values)
    _check(nodes, values, n_stages, n_microbatches, tolerance, time_limit_s, max_search_nodes)
    check_memory(memory_bytes)
    try:
        from stagecut.branches.ilp import solve
    except ImportError as error:
        raise MissingExtraError("split_graph", "ilp") from error
    average_s = sum(node.time_s for node in nodes) / n_stages
    problem = GraphProblem(
        nodes=nodes,
        values=values,
        transfer_s=tuple(_seconds(transfer_s, value) for value in values),
        n_microbatches=n_microbatches,
        in_flight=tuple(held_by(in_flight, n_stages - s, n_microbatches) for s in range(n_stages)),
        limit_s=(1 + tolerance) * (1 + _ROUNDING) * average_s if average_s else math.inf,
        memory_bytes=memory_bytes,
    )
    linear = _linear_cut(problem)
    start = None if linear is None else problem.split(linear)
    outcome = solve(problem, linear, time_limit_s, max_search_nodes)
    splits = [] if start is None else [start]
    if outcome.stage_of is not None:
        splits.append(problem.split(outcome.stage_of))
    if not splits and not outcome.is_finished:
        raise UnfinishedSearchError(
            "no cut in the order given keeps to the limits, and the search for another split was "
            f"stopped before it found one; got time_limit_s={time_limit_s}, "
            f"max_search_nodes={max_search_nodes}; raise them, the tolerance or memory_bytes"
        )
    if not splits:
        raise _infeasible(problem, tolerance)
    best = min(splits, key=lambda split: split.time_s)  # the linear cut if both are as good
    return replace(
        best,
        lower_bound_s=best.time_s if outcome.is_finished else min(outcome.bound_s, best.time_s),
        linear_s=None if start is None else start.time_s,
    )


def _linear_cut(problem: GraphProblem) -> tuple[int, ...] | None:
    """The stage of each node in the best cut of the order given; None if none keeps to limits."""
    try:
        slicing = _slice(problem)
    except InfeasibleStagesError:
        return None
    return tuple(
        s for s, stage in enumerate(slicing.stages) for _ in range(stage.first, stage.last + 1)
    )


def _slice(problem: GraphProblem) -> Slicing:
    """The best linear cut, by `slice_stages` on a cluster of one device for each stage."""
    n, n_stages = len(problem.nodes), len(problem.in_flight)
    temporary_bytes = np.zeros((n, n), dtype=np.int64)  # of the run from first to last
    for first in range(n):
        sizes = [node.temporary_bytes for node in problem.nodes[first:]]
        temporary_bytes[first, first:] = np.maximum.accumulate(sizes)
    time_s, once_s, fixed_bytes, activation_bytes = (
        [0, *accumulate(getattr(node, name) for node in problem.nodes)]
        for name in ("time_s", "once_s", "fixed_bytes", "activation_bytes")
    )
    seconds = {v.n_bytes: s for v, s in zip(problem.values, problem.transfer_s, strict=True)}

    def cost(first: int, last: int, _: Submesh) -> StageCost | None:
        compute_s = time_s[last + 1] - time_s[first]
        if compute_s > problem.limit_s:
            return None
        return StageCost(
            compute_s,
            fixed_bytes[last + 1] - fixed_bytes[first],
            activation_bytes[last + 1] - activation_bytes[first],
            once_s[last + 1] - once_s[first],
            int(temporary_bytes[first, last]),
        )

    return slice_stages(
        n,
        (n_stages, 1),
        problem.n_microbatches,
        cost,
        problem.memory_bytes,
        edges=problem.values,
        transfer_s=lambda n_bytes, *_: seconds[n_bytes],
        in_flight=lambda stages_from_here, _: problem.in_flight[-stages_from_here],
        n_stages=n_stages,
        alternatives=False,
    )


def _infeasible(problem: GraphProblem, tolerance: float) -> InfeasibleStagesError:
    """That there is no split, with what a linear cut needs of each of the two limits alone."""
    # With nothing to receive the sum is constant, so of two microbatches the slowest stage decides.
    balance = replace(
        problem,
        transfer_s=(0.0,) * len(problem.values),
        nodes=tuple(replace(node, once_s=0.0) for node in problem.nodes),
        n_microbatches=2,
        limit_s=math.inf,
        memory_bytes=None,
    )
    slowest_s = max(stage.cost.time_s for stage in _slice(balance).stages)
    n_stages = len(problem.in_flight)
    average_s = problem.compute_s / n_stages
    peak_bytes = None
    try:
        _slice(replace(problem, limit_s=math.inf))
    except InfeasibleStagesError as error:
        peak_bytes = error.peak_bytes
    return InfeasibleStagesError(
        f"no split into n_stages={n_stages} keeps to tolerance={tolerance} and "
        f"memory_bytes={problem.memory_bytes}; a cut in the order given needs, of either alone, "
        f"tolerance={slowest_s / average_s - 1 if average_s else 0.0} and "
        f"at least memory_bytes={problem.memory_bytes if peak_bytes is None else peak_bytes}; "
        "raise them, or take another n_stages",
        peak_bytes=peak_bytes,
    )


def _seconds(transfer_s: Callable[[int], float], value: Boundary) -> float:
    seconds = transfer_s(value.n_bytes)
    if not is_amount(seconds):
        raise InvalidInputError(
            "a transfer's time is finite and not negative; "
            f"got transfer_s({value.n_bytes})={seconds!r}"
        )
    return seconds


def _check(
    nodes: Sequence[StageCost],
    values: Sequence[Boundary],
    n_stages: int,
    n_microbatches: int,
    tolerance: float,
    time_limit_s: float,
    max_search_nodes: int | None,
) -> None:
    n = len(nodes)
    sizes_fit = is_count(n_stages) and n_stages <= n and is_count(n_microbatches)
    if not (sizes_fit and (is_amount(tolerance) or tolerance == math.inf)):
        raise InvalidInputError(
            "there are at least one stage, as many nodes, one microbatch, and tolerance is not "
            f"negative; got n_stages={n_stages}, {n} nodes, n_microbatches={n_microbatches}, "
            f"tolerance={tolerance}"
        )
    has_limit = is_amount(time_limit_s) or time_limit_s == math.inf
    if not has_limit or not (max_search_nodes is None or is_count(max_search_nodes, least=0)):
        raise InvalidInputError(
            "limits of the search are not negative; "
            f"got time_limit_s={time_limit_s}, max_search_nodes={max_search_nodes}"
        )
    check_values(values, n, among="nodes")
