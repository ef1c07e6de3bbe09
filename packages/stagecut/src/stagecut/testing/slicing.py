"""Layers to cut into stages with one cost each: a strategy, and brute force."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from stagecut.base.types import Span, StageCost, Submesh
from stagecut.placement.submesh import submesh_shapes
from stagecut.testing.runs import all_runs


@dataclass(frozen=True, slots=True)
class SlicingProblem:
    """The arguments of `slice_stages` as tables; times are multiples of 1/8, so sums are exact."""

    n_layers: int
    cluster_shape: tuple[int, int]
    n_microbatches: int
    costs: Mapping[Span, StageCost | None]
    """The cost of every run of layers on every submesh."""
    memory_bytes: int | None
    boundaries_s: tuple[float, ...]
    """For each layer, seconds to enter a stage that begins there; 0 for the first."""

    def cost(self, first: int, last: int, submesh: Submesh) -> StageCost | None:
        """The argument of `slice_stages`."""
        return self.costs[first, last, submesh]

    def boundary_s(self, layer: int) -> float:
        """The argument of `slice_stages`."""
        return self.boundaries_s[layer]


@st.composite
def slicing_problems(
    draw: st.DrawFn,
    max_layers: int = 5,
    shapes: Sequence[tuple[int, int]] = ((1, 1), (1, 3), (1, 4), (2, 2), (3, 1), (2, 4)),
) -> SlicingProblem:
    """Unrelated costs for all stages, some of them impossible, with and without a memory limit."""
    n_layers = draw(st.integers(1, max_layers))
    cluster_shape = draw(st.sampled_from(shapes))
    seconds = st.integers(0, 64).map(lambda eighths: eighths / 8)
    costs = st.builds(StageCost, seconds, st.integers(0, 8), st.integers(0, 4))
    optional_costs = st.one_of(costs, costs, costs, st.none()) if draw(st.booleans()) else costs
    return SlicingProblem(
        n_layers=n_layers,
        cluster_shape=cluster_shape,
        n_microbatches=draw(st.integers(1, 6)),
        costs={
            (first, last, shape): draw(optional_costs)
            for first in range(n_layers)
            for last in range(first, n_layers)
            for shape in submesh_shapes(*cluster_shape)
        },
        memory_bytes=draw(st.none() | st.integers(4, 24)),
        boundaries_s=(0.0, *draw(st.tuples(*[seconds] * (n_layers - 1)))),
    )


def all_slicings(n_layers: int, cluster_shape: tuple[int, int]) -> Iterator[tuple[Span, ...]]:
    """All ways to cut the layers into stages and to give them all devices of the cluster."""
    shapes = submesh_shapes(*cluster_shape)

    def all_submeshes(n_stages: int, n_devices: int) -> Iterator[tuple[Submesh, ...]]:
        if n_stages == 0:
            yield from () if n_devices else ((),)
            return
        for shape in shapes:
            left = n_devices - shape[0] * shape[1]
            if left >= n_stages - 1:  # a device for each of the other stages
                for others in all_submeshes(n_stages - 1, left):
                    yield (shape, *others)

    for runs in all_runs(n_layers):
        for submeshes in all_submeshes(len(runs), cluster_shape[0] * cluster_shape[1]):
            yield tuple(
                (first, last, submesh)
                for (first, last), submesh in zip(runs, submeshes, strict=True)
            )


def brute_force_slicing(problem: SlicingProblem) -> dict[int, float]:
    """The shortest time for each number of stages that has any slicing under 1F1B."""
    best: dict[int, float] = {}
    for spans in all_slicings(problem.n_layers, problem.cluster_shape):
        times = []
        for stage, span in enumerate(spans):
            cost = problem.costs[span]
            held = min(len(spans) - stage, problem.n_microbatches)
            if cost is None or (
                problem.memory_bytes is not None
                and cost.fixed_bytes + held * cost.activation_bytes > problem.memory_bytes
            ):
                break
            times.append(cost.time_s + problem.boundaries_s[span[0]])
        else:
            time_s = sum(times) + (problem.n_microbatches - 1) * max(times)
            best[len(spans)] = min(time_s, best.get(len(spans), time_s))
    return best


def brute_force_peak(problem: SlicingProblem) -> int | None:
    """The smallest memory with which a slicing fits; None if each has a stage without a cost."""
    peaks = []
    for spans in all_slicings(problem.n_layers, problem.cluster_shape):
        costs = [problem.costs[span] for span in spans]
        priced = [cost for cost in costs if cost is not None]
        if len(priced) == len(costs):
            held = [min(n, problem.n_microbatches) for n in range(len(spans), 0, -1)]
            peaks.append(
                max(
                    cost.fixed_bytes + n * cost.activation_bytes
                    for cost, n in zip(priced, held, strict=True)
                )
            )
    return min(peaks, default=None)
