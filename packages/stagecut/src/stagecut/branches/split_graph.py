"""Cuts a graph with branches into stages, without first putting its nodes into one order (Rhino 5).

`slice_stages` cuts a list: each stage is a run of it. The nodes of a model with branches have many
orders in which each node comes after those that it reads from, and each order has other runs. Every
split of the graph into stages that read only from themselves and from earlier stages is a cut of
one of these orders. So the search for the split is also the search for the order. Rhino writes it
as an integer linear program; `ilp.py` contains it, and says what we changed. The objective is that
of `slice_stages`, so that the two can be compared. With B microbatches, T_s the time of stage s for
one of them (its computation and what it receives), and O_s its work done once a step,

    minimise  sum of T_s + max of ((B - 1) T_s + O_s)    (Alpa, Eq. 2)  -> pipeline_time_s

Rhino minimises the bytes that are sent, among the splits that are balanced within a tolerance. For
B = 1 this is the same, as the sum of the computation is constant. Balance matters only from the
second microbatch on, and a tolerance replaces it if the number of microbatches is not known.

When to use which: `slice_stages` also chooses the submesh of each stage, and asks for the price of
a whole stage; it is exact for the order of the list, and fast. Use it for chains, also for chains
with skip connections: a U-Net in which every operator reads the previous one has only one order,
so there is nothing to decide here. Use `split_graph` if branches run side by side (towers, experts,
side inputs), or contain operators that could be at either end of a long connection, provided that
the submeshes of the stages are equal and the time of a stage is about the sum of its nodes' times.
To combine both, give `slice_stages` the nodes in the order of `GraphSplit.order`.
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
"""Relative tolerance: times are sums of floats, and a stage at exactly the limit must be allowed.
"""


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

    The search starts from the best linear cut, which `slice_stages` finds for the nodes in the
    order of the input, and never returns a longer step. It needs the extra `ilp`. In the worst case
    its time grows exponentially, so cluster a graph of thousands of operators first, as Rhino does
    (4.3).

    Args:
        nodes: The cost of each operator or layer on the submesh of a stage, in an order in which
            each comes after those that it reads from. A stage costs the sum of its nodes, but its
            temporary memory is that of one node at a time.
        values: The values between nodes. A stage receives a value once, even if several of its
            nodes read it. It receives it from the stage that produced it, which holds the value in
            memory for stages after the next one. Rhino counts every edge; pass one `Boundary` for
            each consumer to do so, too.
        n_stages: Number of stages; none of them is empty.
        n_microbatches: Microbatches of a step. With 1, the objective is the time to receive values,
            as in Rhino.
        transfer_s: Seconds to bring a value of one microbatch into a stage, and its gradient back.
            Its argument is the bytes of the value.
        tolerance: How far the computation of a stage may exceed the average, as a fraction of it.
        memory_bytes: Memory of one device; None for no limit.
        in_flight: As for `slice_stages`.
        time_limit_s: Wall-clock limit of the integer program; the linear cut comes in addition.
            When the time is over, the best split so far is returned with its gap. Then equal input
            may give different output.
        max_search_nodes: Limit on the nodes of the branch and bound, which is deterministic.

    Raises:
        InvalidInputError: A size is below 1, there are fewer nodes than stages, a value is read
            before it is produced, or a time or the tolerance is negative.
        InfeasibleStagesError: No split keeps to the tolerance and the memory.
        UnfinishedSearchError: A limit was reached before a first split was found, which can only
            happen if no linear cut fits.
        MissingExtraError: python-mip or HiGHS is not installed.

    Examples:
        Two towers of three nodes each; the last node of the second tower also reads the last one of
        the first. The input has nodes of both towers in turns, so each run of it has nodes of both,
        and a linear cut goes through both towers.

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
            "no cut of the nodes in the order given keeps to the limits, and the search for "
            f"another split was stopped before it found one; got time_limit_s={time_limit_s}, "
            f"max_search_nodes={max_search_nodes}; raise them, the tolerance or memory_bytes"
        )
    if not splits:
        raise _infeasible(problem, tolerance)
    best = min(splits, key=lambda split: split.time_s)  # the linear cut if both take equally long
    return replace(
        best,
        lower_bound_s=best.time_s if outcome.is_finished else min(outcome.bound_s, best.time_s),
        linear_s=None if start is None else start.time_s,
    )


def _linear_cut(problem: GraphProblem) -> tuple[int, ...] | None:
    """The stage of each node in the best linear cut; None if no linear cut keeps to the limits."""
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
    temporary_bytes = np.zeros((n, n), dtype=np.int64)  # of each run, indexed [first, last]
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
    """The error that no split keeps to the limits.

    It says which tolerance a linear cut needs without the memory limit, and which memory it needs
    without the tolerance.
    """
    # If there is nothing to receive, the sum of times is constant. So with two microbatches the
    # slowest stage decides, and the best linear cut is the most balanced one.
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
        f"memory_bytes={problem.memory_bytes}; with only one of the two limits, a cut of the nodes "
        f"in the order given needs tolerance={slowest_s / average_s - 1 if average_s else 0.0} or "
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
            "there is at least one stage, a node for each stage, and one microbatch, and tolerance "
            f"is not negative; got n_stages={n_stages}, {n} nodes, "
            f"n_microbatches={n_microbatches}, tolerance={tolerance}"
        )
    has_limit = is_amount(time_limit_s) or time_limit_s == math.inf
    if not has_limit or not (max_search_nodes is None or is_count(max_search_nodes, least=0)):
        raise InvalidInputError(
            "limits of the search are not negative; "
            f"got time_limit_s={time_limit_s}, max_search_nodes={max_search_nodes}"
        )
    check_values(values, n, among="nodes")
