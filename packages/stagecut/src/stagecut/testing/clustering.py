"""Operators to cluster into layers: a strategy, the quality of layers, and brute force."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from stagecut.base.edges import Boundary
from stagecut.testing.runs import all_runs


@dataclass(frozen=True, slots=True)
class ClusteringProblem:
    """The arguments of `cluster_operators`. FLOPs are small integers, so sums are exact."""

    flops: tuple[float, ...]
    values: tuple[Boundary, ...]
    n_layers: int
    delta: float


@st.composite
def clustering_problems(draw: st.DrawFn, max_operators: int = 7) -> ClusteringProblem:
    """Operators with any values between them, which may skip operators or be read repeatedly."""
    n = draw(st.integers(1, max_operators))
    values: list[Boundary] = []
    for producer in range(n - 1):
        later = st.integers(producer + 1, n - 1)
        consumers = st.lists(later, max_size=3).map(tuple)
        value = st.builds(Boundary, st.just(producer), st.integers(0, 9), consumers)
        values += draw(st.lists(value, max_size=2))
    return ClusteringProblem(
        flops=tuple(float(each) for each in draw(st.tuples(*[st.integers(0, 9)] * n))),
        values=tuple(values),
        n_layers=draw(st.integers(1, n)),
        delta=draw(st.sampled_from((0.0, 0.25, 0.5, 1.0, 8.0))),
    )


def layer_quality(
    problem: ClusteringProblem, layers: Sequence[tuple[int, int]]
) -> tuple[float, int, float]:
    """The most FLOPs of a layer over the average, the most bytes received, the sum of squares."""
    flops = [sum(problem.flops[first : last + 1]) for first, last in layers]
    received = [
        sum(
            value.n_bytes
            for value in problem.values
            if value.producer < first and any(first <= c <= last for c in value.consumers)
        )
        for first, last in layers
    ]
    average = sum(flops) / len(layers)
    return (
        max(flops) / average if average else 0.0,
        max(received),
        sum(each * each for each in flops),
    )


def brute_force_clustering(problem: ClusteringProblem) -> tuple[int, float] | None:
    """The fewest bytes of the layer that receives most, and then the least sum of squared FLOPs.

    None if no clustering keeps to `delta`.
    """
    qualities = [
        layer_quality(problem, runs)
        for runs in all_runs(len(problem.flops))
        if len(runs) == problem.n_layers
    ]
    return min((q[1:] for q in qualities if q[0] <= 1 + problem.delta + 1e-12), default=None)
