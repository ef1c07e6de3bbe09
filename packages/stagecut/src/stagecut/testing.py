"""Hypothesis strategies for small problems, and brute force with no code of the searches."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from stagecut.boundary import Boundary
from stagecut.hosts import HostKind
from stagecut.places import Places, SubmeshOfKind
from stagecut.plan import Span, StageCost, Submesh
from stagecut.submesh import submesh_shapes


@dataclass(frozen=True, slots=True)
class SlicingProblem:
    """The arguments of `slice_stages` as tables; times are multiples of 1/8, so sums are exact."""

    n_layers: int
    cluster_shape: tuple[int, int]
    n_microbatches: int
    costs: Mapping[Span, StageCost | None]
    """Of every run of layers on every submesh."""
    memory_bytes: int | None
    boundaries_s: tuple[float, ...]
    """Of each layer; 0 for the first."""

    def cost(self, first: int, last: int, submesh: Submesh) -> StageCost | None:
        """As `slice_stages` wants it."""
        return self.costs[first, last, submesh]

    def boundary_s(self, layer: int) -> float:
        """As `slice_stages` wants it."""
        return self.boundaries_s[layer]


@dataclass(frozen=True, slots=True)
class PipelineProblem:
    """All that `slice_stages` can be told, as tables; times are multiples of 1/8."""

    n_layers: int
    cluster_shape: tuple[int, int]
    n_microbatches: int
    options: Mapping[Span, tuple[StageCost, ...]]
    """Of every run of layers on every submesh; none if it cannot run there."""
    memory_bytes: int | None
    schedule: str
    edges: tuple[Boundary, ...]
    """Between layers."""
    transfers_s: Mapping[tuple[int, Submesh, Submesh], float]
    """Of bytes, the submesh that has them, and the one that needs them."""

    def cost(self, first: int, last: int, submesh: Submesh) -> tuple[StageCost, ...]:
        """As `slice_stages` wants it."""
        return self.options[first, last, submesh]

    def transfer_s(self, n_bytes: int, sender: Submesh, receiver: Submesh) -> float:
        """As `slice_stages` wants it."""
        return self.transfers_s[n_bytes, sender, receiver]


@dataclass(frozen=True, slots=True)
class ClusteringProblem:
    """The arguments of `cluster_operators`. FLOPs are small integers, so sums are exact."""

    flops: tuple[float, ...]
    values: tuple[Boundary, ...]
    n_layers: int
    delta: float


@st.composite
def cluster_shapes(
    draw: st.DrawFn, max_hosts: int = 4, max_devices_per_host: int = 12
) -> tuple[int, int]:
    """Hosts and devices per host, whether or not a power of two."""
    return draw(st.integers(1, max_hosts)), draw(st.integers(1, max_devices_per_host))


@st.composite
def tilings(draw: st.DrawFn, max_devices: int = 48) -> tuple[tuple[int, int], tuple[Submesh, ...]]:
    """A cluster, and submeshes of possible shapes that together have as many devices."""
    shape = draw(cluster_shapes().filter(lambda shape: shape[0] * shape[1] <= max_devices))
    rest, submeshes = shape[0] * shape[1], []
    while rest:
        fitting = [(n, m) for n, m in submesh_shapes(*shape) if n * m <= rest]
        submeshes.append(draw(st.sampled_from(fitting)))
        rest -= submeshes[-1][0] * submeshes[-1][1]
    return shape, tuple(draw(st.permutations(submeshes)))


@st.composite
def host_kinds(draw: st.DrawFn, name: str = "", max_devices: int = 6) -> HostKind:
    """A kind of host with the usual parts or any others."""
    n_devices = draw(st.integers(1, max_devices))
    parts = draw(st.none() | st.sets(st.integers(1, n_devices)))
    return HostKind(n_devices, name, () if parts is None else tuple(sorted({*parts, n_devices})))


@st.composite
def clusters(draw: st.DrawFn, max_hosts: int = 4) -> Places:
    """Up to three kinds of hosts in any order, all used or not, mixed or not."""
    kinds = [draw(host_kinds(name)) for name in draw(st.sampled_from(("a", "ab", "abc")))]
    hosts = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=max_hosts))
    return Places(
        tuple((kind, 1) for kind in hosts), use_all=draw(st.booleans()), mix=draw(st.booleans())
    )


@st.composite
def requests(draw: st.DrawFn, places: Places) -> tuple[Submesh, ...]:
    """Submeshes with at most as many devices as the cluster, whether or not they can be placed."""
    rest = places.n_devices
    wanted: list[Submesh] = []
    while fitting := [shape for shape in places.shapes if math.prod(shape) <= rest]:
        if not places.use_all and draw(st.integers(0, 4)) == 0:
            break
        wanted.append(draw(st.sampled_from(fitting)))
        rest -= math.prod(wanted[-1])
    return tuple(draw(st.permutations(wanted)))


def all_assignments(
    submeshes: Sequence[Submesh], places: Places
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every way to give each stage its hosts: one with room, or whole ones in a row of its kind."""
    kind_of = [kind for kind, n in places.hosts for _ in range(n)]
    rows = {
        kind.name: [host for host, each in enumerate(kind_of) if each == kind]
        for kind in places.kinds
    }

    def assign(stage: int, free: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
        if stage == len(submeshes):
            if not (places.use_all and any(free)):
                yield ()
            return
        n, m = submesh = submeshes[stage]
        named = submesh.hosts if isinstance(submesh, SubmeshOfKind) else ((kind_of[0].name, n),)
        runs = [
            [rows[name][at : at + count] for at in range(len(rows[name]) - count + 1)]
            for name, count in named
        ]
        for chosen in itertools.product(*runs):
            hosts = tuple(sorted(itertools.chain(*chosen)))
            if all(free[host] >= m for host in hosts):
                left = tuple(each - m * (host in hosts) for host, each in enumerate(free))
                for rest in assign(stage + 1, left):
                    yield (hosts, *rest)

    yield from assign(0, tuple(kind.n_devices for kind in kind_of))


def pipeline_distance(hosts: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Hosts that lie between neighbours in the pipeline, and how many of these do not share one."""
    steps = [min(abs(a - b) for a in one for b in two) for one, two in itertools.pairwise(hosts)]
    return sum(max(0, step - 1) for step in steps), sum(step > 0 for step in steps)


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


@st.composite
def pipeline_problems(
    draw: st.DrawFn,
    max_layers: int = 4,
    shapes: Sequence[tuple[int, int]] = ((1, 1), (1, 3), (1, 4), (2, 2), (3, 1)),
) -> PipelineProblem:
    """Stages with up to two options, and values that are read far away and more than once."""
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


@st.composite
def clustering_problems(draw: st.DrawFn, max_operators: int = 7) -> ClusteringProblem:
    """Operators with any values between them, skipping ahead or read more than once."""
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


def all_slicings(n_layers: int, cluster_shape: tuple[int, int]) -> Iterator[tuple[Span, ...]]:
    """Every way to cut the layers into stages and to give them all devices of the cluster."""
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

    for runs in _all_runs(n_layers):
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
    """The smallest memory with which some slicing fits; None if each has a stage without a cost."""
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


def pipeline_step_s(
    problem: PipelineProblem, spans: Sequence[Span], costs: Sequence[StageCost]
) -> float | None:
    """The time of one pipeline, stage by stage; None if it does not fit the memory."""
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


def layer_quality(
    problem: ClusteringProblem, layers: Sequence[tuple[int, int]]
) -> tuple[float, int, float]:
    """Most FLOPs of a layer over their average, most bytes received, and sum of squared FLOPs."""
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
    """Fewest bytes received by the layer that receives most, then least sum of squared FLOPs.

    None if no clustering keeps to `delta`.
    """
    qualities = [
        layer_quality(problem, runs)
        for runs in _all_runs(len(problem.flops))
        if len(runs) == problem.n_layers
    ]
    return min((q[1:] for q in qualities if q[0] <= 1 + problem.delta + 1e-12), default=None)


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
        """As `split_graph` wants it, with a latency."""
        return 0.25 + n_bytes * self.seconds_per_byte if n_bytes else 0.0


@st.composite
def graph_splitting_problems(
    draw: st.DrawFn, max_nodes: int = 6, max_stages: int = 3
) -> GraphSplittingProblem:
    """Any graph of a few nodes, with and without limits on computation and memory."""
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
    """Seconds of a step under 1F1B with each node in the stage given; None if that is no split."""
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
    """The shortest step of all splits of the graph; None if there is none."""
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
    """The shortest step of the splits into runs of the nodes in the order given."""
    times = (
        graph_split_time_s(
            problem,
            [s for s, (first, last) in enumerate(runs) for _ in range(first, last + 1)],
        )
        for runs in _all_runs(len(problem.nodes))
        if len(runs) == problem.n_stages
    )
    return min((time_s for time_s in times if time_s is not None), default=None)


def _all_runs(n: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every way to cut 0 to n - 1 into runs."""
    for n_cuts in range(n):
        for cuts in itertools.combinations(range(1, n), n_cuts):
            edges = (0, *cuts, n)
            yield tuple((start, stop - 1) for start, stop in itertools.pairwise(edges))
