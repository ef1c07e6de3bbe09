"""Graphs to cut into stages: a strategy, the time of a split, and brute force."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from stagecut.base.edges import Boundary
from stagecut.base.types import StageCost
from stagecut.testing.runs import all_runs


@dataclass(frozen=True, slots=True)
class GraphSplittingProblem:
    """The arguments of `split_graph`; times are multiples of 1/8, so sums are exact."""

    nodes: tuple[StageCost, ...]
    values: tuple[Boundary, ...]
    n_stages: int
    n_microbatches: int
    tolerance: float
    memory_bytes: int | None
    seconds_per_byte: float

    def transfer_s(self, n_bytes: int) -> float:
        """The argument of `split_graph`, with a latency."""
        return 0.25 + n_bytes * self.seconds_per_byte if n_bytes else 0.0


@st.composite
def graph_splitting_problems(
    draw: st.DrawFn, max_nodes: int = 6, max_stages: int = 3
) -> GraphSplittingProblem:
    """Graphs of a few nodes, with and without limits on computation and memory."""
    n = draw(st.integers(1, max_nodes))
    seconds = st.integers(0, 32).map(lambda eighths: eighths / 8)
    once = seconds if draw(st.booleans()) else st.just(0.0)
    sizes = st.integers(0, 4)
    nodes = st.builds(StageCost, seconds, sizes, sizes, once_s=once, temporary_bytes=sizes)
    values: list[Boundary] = []
    for producer in range(n - 1):
        consumers = st.lists(st.integers(producer + 1, n - 1), max_size=3).map(tuple)
        value = st.builds(Boundary, st.just(producer), st.integers(0, 16), consumers)
        values += draw(st.lists(value, max_size=2))
    return GraphSplittingProblem(
        nodes=draw(st.tuples(*[nodes] * n)),
        values=tuple(values),
        n_stages=draw(st.integers(1, min(n, max_stages))),
        n_microbatches=draw(st.integers(1, 6)),
        tolerance=draw(st.sampled_from((0.0, 0.25, 0.5, 1.0, math.inf, math.inf))),
        memory_bytes=draw(st.none() | st.integers(0, 48)),
        seconds_per_byte=draw(st.sampled_from((0.125, 0.125, 2.0**-20, 2.0**20))),
    )


def graph_split_time_s(problem: GraphSplittingProblem, stage_of: Sequence[int]) -> float | None:
    """Seconds of a step under 1F1B with each node in its stage; None if this is not allowed."""
    stages = range(problem.n_stages)
    members = [
        [node for node, at in zip(problem.nodes, stage_of, strict=True) if at == s] for s in stages
    ]
    if not all(members) or any(
        stage_of[value.producer] > stage_of[consumer]
        for value in problem.values
        for consumer in value.consumers
    ):
        return None
    computes = [sum(node.time_s for node in each) for each in members]
    if max(computes) > (1 + problem.tolerance) * sum(computes) / problem.n_stages + 1e-9:
        return None
    once, times = [], []
    for s in stages:
        in_flight = min(problem.n_stages - s, problem.n_microbatches)
        peak = max(node.temporary_bytes for node in members[s])
        for node in members[s]:
            peak += node.fixed_bytes + in_flight * node.activation_bytes
        for value in problem.values:
            if stage_of[value.producer] == s and any(stage_of[c] > s + 1 for c in value.consumers):
                peak += in_flight * value.n_bytes
        if problem.memory_bytes is not None and peak > problem.memory_bytes:
            return None
        read = [
            value.n_bytes
            for value in problem.values
            if stage_of[value.producer] != s and any(stage_of[c] == s for c in value.consumers)
        ]
        times.append(computes[s] + sum(map(problem.transfer_s, read)))
        once.append(sum(node.once_s for node in members[s]))
    after = [(problem.n_microbatches - 1) * t + o for t, o in zip(times, once, strict=True)]
    return sum(times) + max(after)


def brute_force_graph_split(problem: GraphSplittingProblem) -> float | None:
    """The shortest step of all splits of the graph; None if no split is allowed."""
    splits: list[tuple[int, ...]] = [()]
    for node in range(len(problem.nodes)):
        read = [value.producer for value in problem.values if node in value.consumers]
        splits = [
            (*stage_of, s)
            for stage_of in splits
            for s in range(max((stage_of[p] for p in read), default=0), problem.n_stages)
        ]
    times = (graph_split_time_s(problem, stage_of) for stage_of in splits)
    return min((time_s for time_s in times if time_s is not None), default=None)


def brute_force_linear_cut(problem: GraphSplittingProblem) -> float | None:
    """The shortest step of all cuts of the nodes in the order given; None if none is allowed."""
    times = (
        graph_split_time_s(
            problem,
            [s for s, (first, last) in enumerate(runs) for _ in range(first, last + 1)],
        )
        for runs in all_runs(len(problem.nodes))
        if len(runs) == problem.n_stages
    )
    return min((time_s for time_s in times if time_s is not None), default=None)
