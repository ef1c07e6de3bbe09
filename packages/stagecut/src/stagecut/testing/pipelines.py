"""Problems with all features of `slice_stages`: a strategy, the time of a pipeline, brute force."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from stagecut.base.edges import Boundary
from stagecut.base.types import Span, StageCost, Submesh
from stagecut.placement.submesh import submesh_shapes
from stagecut.testing.slicing import all_slicings


@dataclass(frozen=True, slots=True)
class PipelineProblem:
    """The arguments of `slice_stages` as tables; times are multiples of 1/8, so sums are exact."""

    n_layers: int
    cluster_shape: tuple[int, int]
    n_microbatches: int
    options: Mapping[Span, tuple[StageCost, ...]]
    """The options of every run of layers on every submesh; empty if it cannot run there."""
    memory_bytes: int | None
    schedule: str
    edges: tuple[Boundary, ...]
    """The values between layers."""
    transfers_s: Mapping[tuple[int, Submesh, Submesh], float]
    """Seconds for each number of bytes, sending submesh and receiving submesh."""

    def cost(self, first: int, last: int, submesh: Submesh) -> tuple[StageCost, ...]:
        """The argument of `slice_stages`."""
        return self.options[first, last, submesh]

    def transfer_s(self, n_bytes: int, sender: Submesh, receiver: Submesh) -> float:
        """The argument of `slice_stages`."""
        return self.transfers_s[n_bytes, sender, receiver]


@st.composite
def pipeline_problems(
    draw: st.DrawFn,
    max_layers: int = 4,
    shapes: Sequence[tuple[int, int]] = ((1, 1), (1, 3), (1, 4), (2, 2), (3, 1)),
) -> PipelineProblem:
    """Stages with up to two options, and values that skip layers and are read more than once."""
    n_layers = draw(st.integers(1, max_layers))
    cluster_shape = draw(st.sampled_from(shapes))
    submeshes = submesh_shapes(*cluster_shape)
    seconds = st.integers(0, 64).map(lambda eighths: eighths / 8)
    cost = st.builds(
        StageCost,
        time_s=seconds,
        fixed_bytes=st.integers(0, 8),
        activation_bytes=st.integers(0, 4),
        once_s=seconds,
        temporary_bytes=st.integers(0, 2),
    )
    some = st.lists(cost, min_size=draw(st.integers(0, 1)), max_size=2).map(tuple)
    edges = []
    for producer in range(n_layers - 1):
        consumers = st.lists(
            st.integers(producer + 1, n_layers - 1), min_size=1, max_size=2, unique=True
        ).map(tuple)
        edge = st.builds(Boundary, st.just(producer), st.integers(1, 3), consumers)
        edges += draw(st.lists(edge, max_size=2))
    return PipelineProblem(
        n_layers=n_layers,
        cluster_shape=cluster_shape,
        n_microbatches=draw(st.integers(1, 5)),
        options={
            (first, last, submesh): draw(some)
            for first in range(n_layers)
            for last in range(first, n_layers)
            for submesh in submeshes
        },
        memory_bytes=draw(st.none() | st.integers(6, 30)),
        schedule=draw(st.sampled_from(("gpipe", "1f1b", "eager-1f1b"))),
        edges=tuple(edges),
        transfers_s={
            (n_bytes, sender, receiver): draw(seconds)
            for n_bytes in sorted({edge.n_bytes for edge in edges})
            for sender in submeshes
            for receiver in submeshes
        },
    )


def pipeline_step_s(
    problem: PipelineProblem, spans: Sequence[Span], costs: Sequence[StageCost]
) -> float | None:
    """Seconds of a step of one pipeline; None if it does not fit in memory."""
    n, times, once = problem.n_microbatches, [], []
    for j, ((first, last, submesh), cost) in enumerate(zip(spans, costs, strict=True)):
        n_after = len(spans) - j - 1
        held = {"gpipe": n, "1f1b": min(n_after + 1, n), "eager-1f1b": min(2 * n_after + 1, n)}
        kept = cost.activation_bytes
        time_s = cost.time_s
        for edge in problem.edges:
            readers = {
                i
                for i, (a, b, _) in enumerate(spans)
                if any(a <= consumer <= b for consumer in edge.consumers)
            }
            if first <= edge.producer <= last and any(i > j + 1 for i in readers):
                kept += math.ceil(edge.n_bytes / (submesh[0] * submesh[1]))
            if edge.producer < first and j in readers:
                (sender,) = (mesh for a, b, mesh in spans if a <= edge.producer <= b)
                time_s += problem.transfers_s[edge.n_bytes, sender, submesh]
        peak = cost.fixed_bytes + cost.temporary_bytes + held[problem.schedule] * kept
        if problem.memory_bytes is not None and peak > problem.memory_bytes:
            return None
        times.append(time_s)
        once.append(cost.once_s)
    return sum(times) + max((n - 1) * t + o for t, o in zip(times, once, strict=True))


def brute_force_pipelines(problem: PipelineProblem) -> dict[int, float]:
    """The shortest time for each number of stages that has any pipeline."""
    best: dict[int, float] = {}
    for spans in all_slicings(problem.n_layers, problem.cluster_shape):
        for costs in itertools.product(*(problem.options[span] for span in spans)):
            time_s = pipeline_step_s(problem, spans, costs)
            if time_s is not None:
                best[len(spans)] = min(time_s, best.get(len(spans), time_s))
    return best
