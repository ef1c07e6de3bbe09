"""`shard`: the whole way from a graph on a mesh to a priced sharding."""

from __future__ import annotations

import math

import numpy as np
from costmodel import Cluster
from numpy.typing import NDArray
from shardspec import Mesh, Spec

from autoshard.baseline import Baseline, baseline_inputs
from autoshard.build import Built, build
from autoshard.conversion import Converter, converter_of, spec_set
from autoshard.errors import BaselineError, InfeasibleError
from autoshard.evaluate import evaluate
from autoshard.graph import Graph, verify
from autoshard.lifetime import saved_activations
from autoshard.run import Solution
from autoshard.sharding import Conversion, Options, Sharding
from autoshard.solve import solve
from autoshard.strategy import Target
from autoshard.tables import compute_seconds, operator_table

ILP_COLUMNS = 6_000
"""Of the largest ILP that is tried. Small, because a planner prices many graphs: CBC needs half a
minute for 70,000 variables [measured on IOPDDL instance B]."""
BASELINES: tuple[Baseline, ...] = ("data_parallel", "megatron", "zero")


def shard(
    graph: Graph,
    mesh: Mesh,
    cluster: Cluster,
    *,
    memory_bytes: int | None = None,
    in_flight: int = 1,
    restrict: Baseline | None = None,
    time_s: float = 60.0,
    compare: bool = True,
) -> Sharding:
    """Find how to run a graph on a mesh in the least time.

    Args:
        graph: See `verify`.
        mesh: The devices to use.
        cluster: Prices compute and communication; the mesh's devices are its.
        memory_bytes: What a device may hold; `None` is no limit.
        in_flight: Microbatches whose saved activations are held at a time.
        restrict: Only shardings that store the inputs as this baseline does.
        time_s: For the ILP, where it is used (see `solve`).
        compare: Where the sharding is not proved optimal, solve the baselines too and return the
            best. Takes four times as long; a planner that prices many graphs may do without.

    Returns:
        The best sharding found; with `compare` no worse than any baseline.

    Raises:
        GraphError: the graph is not well-formed.
        InfeasibleError: nothing fits in `memory_bytes`; says the least that was found to fit.
        BaselineError: the inputs cannot be stored as `restrict` asks.
    """
    verify(graph)
    converter = converter_of(mesh.shape, cluster.links(mesh))
    stored = {} if restrict is None else baseline_inputs(graph, mesh, restrict)
    built = build(
        graph, cluster, converter, stored=stored, memory_bytes=memory_bytes, in_flight=in_flight
    )
    try:
        solution = solve(
            built.problem,
            time_s=time_s,
            points=_points(graph, mesh, built),
            ilp_columns=ILP_COLUMNS,
        )
    except InfeasibleError as error:
        if error.smallest_usage is None or memory_bytes is None:
            raise
        raise InfeasibleError(
            f"no sharding over {mesh.size} devices fits in memory_bytes={memory_bytes}; the "
            f"smallest peak found is {math.ceil(error.smallest_usage)} bytes a device; raise "
            "memory_bytes or use more devices",
            error.smallest_usage,
        ) from error
    options = Options(memory_bytes, in_flight, restrict)
    found = _decode(graph, mesh, cluster, options, converter, built, solution)
    if compare and restrict is None and found.solution.gap > 1e-9:
        for name in BASELINES:
            try:
                other = baseline(
                    graph, mesh, cluster, name, memory_bytes=memory_bytes, in_flight=in_flight
                )
            except (BaselineError, InfeasibleError):
                continue
            if other.objective_s < found.objective_s:
                found = other
    return found


def baseline(
    graph: Graph,
    mesh: Mesh,
    cluster: Cluster,
    name: Baseline,
    *,
    memory_bytes: int | None = None,
    in_flight: int = 1,
) -> Sharding:
    """The best sharding that stores the inputs as a baseline does; see `baseline_inputs`."""
    return shard(
        graph, mesh, cluster, memory_bytes=memory_bytes, in_flight=in_flight, restrict=name
    )


def _points(graph: Graph, mesh: Mesh, built: Built) -> list[NDArray[np.intp]]:
    """What each mesh axis does in every strategy of every node, as numbers."""
    points: dict[int, list[list[int]]] = {}
    placed = [*built.inputs.values(), *built.outputs, *built.relays.values()]
    for node, specs in placed:
        points[node] = [_spec_point(spec, mesh.ndim) for spec in specs]
    for index, operator in enumerate(graph.operators):
        table = operator_table(operator.rule, mesh.shape)
        points[len(graph.inputs) + index] = [
            [_target_number(target) for target in strategy.mapping] for strategy in table.strategies
        ]
    return [np.array(points[node], dtype=np.intp) for node in range(len(points))]


def _spec_point(spec: Spec, n_axes: int) -> list[int]:
    """Per axis the dim it splits, -1 for none, or below that for partial results."""
    point = [-1] * n_axes
    for dim, axes in enumerate(spec.plain_dims):
        for axis in axes:
            point[axis] = dim
    for axis, partial in zip(spec.partial_axes, spec.partial, strict=True):
        point[axis] = -2 - ("sum", "max", "min").index(partial.kind)
    return point


def _target_number(target: Target) -> int:
    if target is None:
        return -1
    return target if isinstance(target, int) else -2 - target[1]


def _decode(
    graph: Graph,
    mesh: Mesh,
    cluster: Cluster,
    options: Options,
    converter: Converter,
    built: Built,
    solution: Solution,
) -> Sharding:
    """Read a choice as a sharding, and price what it really does."""
    choice = solution.choice
    input_specs = {name: specs[choice[node]] for name, (node, specs) in built.inputs.items()}
    copies = {key: specs[choice[node]] for key, (node, specs) in built.relays.items()}
    strategies = []
    made = dict(input_specs)
    compute = [0.0] * len(graph.phases)
    for index, operator in enumerate(graph.operators):
        table = operator_table(operator.rule, mesh.shape)
        chosen = choice[len(graph.inputs) + index]
        strategies.append(table.strategies[chosen])
        made.update(zip(operator.outputs, table.strategies[chosen].result_specs, strict=True))
        read, results = map(graph.value, operator.inputs), map(graph.value, operator.outputs)
        seconds = compute_seconds(operator, list(read), list(results), cluster.device, table)
        compute[operator.phase] += float(seconds[chosen]) * graph.phases[operator.phase].repeats

    plan = _Conversions(graph, converter, made, copies)
    output_specs = []
    leaving: dict[int, list[int]] = {}
    for position, output in enumerate(graph.outputs):
        leaving.setdefault(graph.phase_of_output(output), []).append(position)
        node, specs = built.outputs[position]
        spec = specs[choice[node]]
        if output.alias is None and not output.whole and not made[output.value].is_partial:
            spec = made[output.value]  # any layout will do, so the one it is in
        output_specs.append(spec)
    for phase in range(len(graph.phases)):
        for operator, strategy in zip(graph.operators, strategies, strict=True):
            if operator.phase == phase:
                for name, spec in zip(operator.inputs, strategy.operand_specs, strict=True):
                    plan.need(name, phase, spec)
        for position in leaving.get(phase, []):
            plan.need(graph.outputs[position].value, phase, output_specs[position])

    communication = [
        seconds * phase.repeats for seconds, phase in zip(plan.seconds, graph.phases, strict=True)
    ]
    objective = sum(compute) + sum(communication)
    activation_bytes = 0.0
    for name in saved_activations(graph):
        parts = mesh.axis_size(made[name].axes)
        activation_bytes += graph.value(name).n_bytes / parts
    return Sharding(
        graph,
        mesh,
        cluster,
        options,
        tuple(input_specs.items()),
        tuple(strategies),
        tuple(plan.conversions),
        tuple(output_specs),
        tuple(compute),
        tuple(communication),
        objective,
        min(objective, solution.lower_bound),
        evaluate(built.problem, choice).peak_usage,
        activation_bytes,
        solution,
    )


class _Conversions:
    """The conversions of a sharding in order of execution, each one once."""

    def __init__(
        self,
        graph: Graph,
        converter: Converter,
        made: dict[str, Spec],
        copies: dict[tuple[str, int], Spec],
    ) -> None:
        self.graph = graph
        self.converter = converter
        self.made = made
        self.copies = copies
        """What a relay keeps, by value and phase."""
        self.there: dict[tuple[str, int], list[Spec]] = {}
        self.conversions: list[Conversion] = []
        self.seconds = [0.0] * len(graph.phases)

    def need(self, name: str, phase: int, spec: Spec) -> None:
        """Make a value available as `spec`, from the cheapest of what is there."""
        there = self.there.setdefault((name, phase), [self.made[name]])
        if spec in there:
            return
        copy = self.copies.get((name, phase), spec)
        if (
            copy != spec
            and copy not in there
            and self._cost(name, copy, spec) < min(self._cost(name, src, spec) for src in there)
        ):
            self.need(name, phase, copy)
        src = min(there, key=lambda src: self._cost(name, src, spec))
        for step in self.converter.steps(self.graph.value(name), src, spec):
            before, after = step.src.spec, step.dst.spec
            if after not in there:  # conversions share the steps that they begin with
                self.conversions.append(Conversion(phase, name, before, after))
                self.seconds[phase] += self._cost(name, before, after)
                there.append(after)

    def _cost(self, name: str, src: Spec, dst: Spec) -> float:
        value = self.graph.value(name)
        return float(self.converter.seconds(value, spec_set((src,)), spec_set((dst,)))[0, 0])
