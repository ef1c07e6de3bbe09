"""Checkers of whole shardings: by running them, by recomputing their numbers, and by trying all.

They share nothing with building, relays, decoding or the tables of conversions: prices are those of
`judge`, one plan of shardspec at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from costmodel import Cluster, reshard_time
from numpy.typing import NDArray
from shardspec import (
    Layout,
    Mesh,
    Partial,
    ReshardError,
    Spec,
    assemble,
    reshard,
    reshard_whole_axes,
    simulate,
)
from shardspec import shard as cut

from autoshard.answer.judge import (
    conversion_misfits,
    made_specs,
    operator_seconds,
    padded_plan,
    sent_seconds,
)
from autoshard.answer.sharding import Sharding
from autoshard.graph.graph import Graph
from autoshard.graph.graph_fields import Operator
from autoshard.space.strategy import Strategy, enumerate_strategies, stored_specs

Shards = dict[int, Any]
"""The shard of a value on each device."""
Run = Callable[[Operator, list[Any], list[tuple[int, ...]]], list[Any]]
"""(operator, a device's operands, shapes of its results) -> its results. Also runs the whole
operator, on whole operands and with the shapes of whole results."""


def run_whole(graph: Graph, inputs: Mapping[str, Any], run: Run) -> list[Any]:
    """The outputs of a graph on one device."""
    values = dict(inputs)
    for operator in graph.operators:
        operands = [values[name] for name in operator.inputs]
        results = run(operator, operands, list(operator.rule.result_shapes))
        values.update(zip(operator.outputs, results, strict=True))
    return [values[output.value] for output in graph.outputs]


def run_sharded(sharding: Sharding, inputs: Mapping[str, Any], run: Run) -> list[Any]:
    """The outputs if every device does exactly what a sharding prescribes.

    An operator reads the spec that it needs: the value as it was computed, or the result of a
    conversion in its phase. If there is neither, this raises `KeyError`.
    """
    graph, mesh = sharding.graph, sharding.mesh
    made = made_specs(sharding)

    def layout(name: str, spec: Spec) -> Layout:
        return Layout(graph.value(name).shape, mesh, spec)

    shards: dict[str, Shards] = {
        name: cut(layout(name, made[name]), array) for name, array in inputs.items()
    }
    sources = {(c.phase, c.value, c.dst): c.src for c in sharding.conversions}
    converted: dict[tuple[int, str, Spec], Shards] = {}

    def fetch(phase: int, name: str, spec: Spec) -> Shards:
        if spec == made[name]:
            return shards[name]
        key = (phase, name, spec)
        if key not in converted:
            src, dst = layout(name, sources[key]), layout(name, spec)
            plain = all(end.is_even and end.spec.is_plain for end in (src, dst))
            plan = reshard_whole_axes(src, dst) if plain else reshard(src, dst)
            converted[key] = simulate(plan, fetch(phase, name, sources[key]))
        return converted[key]

    for operator, strategy in zip(graph.operators, sharding.strategies, strict=True):
        operands = [
            fetch(operator.phase, name, spec)
            for name, spec in zip(operator.inputs, strategy.operand_specs, strict=True)
        ]
        targets = [layout(name, made[name]) for name in operator.outputs]
        for name in operator.outputs:
            shards[name] = {}
        for device in mesh.device_ids:
            shapes = [target.local_shape(device) for target in targets]
            results = run(operator, [of[device] for of in operands], shapes)
            for name, result in zip(operator.outputs, results, strict=True):
                shards[name][device] = result
    return [
        assemble(
            layout(output.value, spec), fetch(graph.phase_of_output(output), output.value, spec)
        )
        for output, spec in zip(graph.outputs, sharding.output_specs, strict=True)
    ]


def check_results(sharding: Sharding, run: Run, seed: int = 0) -> None:
    """Check that a sharding computes the outputs of the whole program, on integer inputs."""
    graph = sharding.graph
    rng = np.random.default_rng(seed)
    inputs = {name: rng.integers(-3, 4, graph.value(name).shape) for name in graph.inputs}
    actual, expected = run_sharded(sharding, inputs, run), run_whole(graph, inputs, run)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def check_conversions(sharding: Sharding) -> None:
    """Check conversions and outputs (`conversion_misfits`), and that phases are in order."""
    assert not list(conversion_misfits(sharding))
    phases = [c.phase for c in sharding.conversions]
    assert phases == sorted(phases)


def check_sharding(sharding: Sharding) -> None:
    """Check all numbers of a sharding by recomputing them, and the order of its conversions."""
    sharding.verify()
    check_conversions(sharding)


def least_seconds(graph: Graph, mesh: Mesh, cluster: Cluster, *, uneven: bool = False) -> float:
    """The objective of the best sharding of a tiny graph, by trying all.

    It tries all strategies and all specs of inputs, with the cheapest tree of conversions for every
    value in every phase. Only on meshes of one axis is the tree the cheapest of all; see
    `cheapest_tree`.
    """
    shapes = [graph.value(name).shape for name in graph.inputs]
    stored = [stored_specs(shape, mesh.shape, uneven) for shape in shapes]
    of_operators = [enumerate_strategies(op.rule, mesh.shape, uneven) for op in graph.operators]
    device, links = cluster.slowest(mesh), cluster.links(mesh)
    seconds = [
        [
            operator_seconds(graph, operator, s, mesh, device)
            + sent_seconds(graph, operator, s, mesh, links)
            for s in strategies
        ]
        for operator, strategies in zip(graph.operators, of_operators, strict=True)
    ]
    choices = [range(len(strategies)) for strategies in of_operators]
    best = math.inf
    for choice in itertools.product(*choices):
        chosen = [strategies[i] for strategies, i in zip(of_operators, choice, strict=True)]
        compute = sum(
            of_operator[i] * graph.phases[operator.phase].repeats
            for operator, of_operator, i in zip(graph.operators, seconds, choice, strict=True)
        )
        for specs in itertools.product(*stored) if compute < best else ():
            made = dict(zip(graph.inputs, specs, strict=True))
            least = _least_communication(graph, mesh, cluster, made, chosen, uneven)
            best = min(best, compute + least)
    return best


def _least_communication(
    graph: Graph,
    mesh: Mesh,
    cluster: Cluster,
    made: dict[str, Spec],
    strategies: list[Strategy],
    uneven: bool,
) -> float:
    """The least seconds of all conversions, given the specs of inputs and the strategies.

    Args:
        graph: The program.
        mesh: The mesh.
        cluster: Prices the conversions.
        made: The spec of each input; the specs of results are added to it.
        strategies: The strategy of each operator.
        uneven: Whether outputs may be split unevenly.
    """
    asked: dict[tuple[str, int], set[Spec]] = {}
    for operator, strategy in zip(graph.operators, strategies, strict=True):
        made.update(zip(operator.outputs, strategy.result_specs, strict=True))
        for name, spec in zip(operator.inputs, strategy.operand_specs, strict=True):
            asked.setdefault((name, operator.phase), set()).add(spec)
    free: list[tuple[str, int]] = []
    for output in graph.outputs:
        key = (output.value, graph.phase_of_output(output))
        if output.alias is not None:
            asked.setdefault(key, set()).add(made[output.alias])
        elif output.whole:
            replicated = Spec.replicated(len(graph.value(output.value).shape))
            asked.setdefault(key, set()).add(replicated)
        elif made[output.value].is_partial:
            free.append(key)
    total = 0.0
    for (name, phase), specs in asked.items():
        if (name, phase) not in free:
            total += _tree(graph, mesh, cluster, name, phase, made[name], specs)
    for name, phase in set(free):
        total += min(
            _tree(
                graph, mesh, cluster, name, phase, made[name], {*asked.get((name, phase), ()), spec}
            )
            for spec in stored_specs(graph.value(name).shape, mesh.shape, uneven)
        )
    return total


def _tree(
    graph: Graph,
    mesh: Mesh,
    cluster: Cluster,
    name: str,
    phase: int,
    made: Spec,
    asked: set[Spec],
) -> float:
    value = graph.value(name)
    seconds = cheapest_tree(
        value.shape, value.itemsize, mesh, cluster, made, frozenset(asked - {made})
    )
    if seconds > 0.0 and name in graph.constants:
        return math.inf
    return seconds * graph.phases[phase].repeats


@lru_cache(maxsize=100_000)
def cheapest_tree(
    shape: tuple[int, ...],
    itemsize: int,
    mesh: Mesh,
    cluster: Cluster,
    made: Spec,
    asked: frozenset[Spec],
) -> float:
    """The least seconds of conversions to all specs that are needed: a directed Steiner tree.

    Dreyfus and Wagner, "The Steiner Problem in Graphs", Networks 1(3), 1971, over the specs of
    whole axes that have some of the partial results, with the axes of a dim in mesh order.
    """
    specs, seconds = _all_conversions(shape, itemsize, mesh, cluster, made.partial)
    if not asked <= set(specs):
        return math.inf
    terminals = [specs.index(spec) for spec in asked]
    least: dict[int, NDArray[np.float64]] = {}
    for mask in range(1, 2 ** len(terminals)):
        parts = [part for part in range(1, mask) if part & mask == part]
        if parts:
            joined = np.min([least[part] + least[mask ^ part] for part in parts], axis=0)
            least[mask] = (seconds + joined[None, :]).min(axis=1)
        else:
            least[mask] = seconds[:, terminals[mask.bit_length() - 1]]
    return float(least[mask][specs.index(made)]) if terminals else 0.0


@lru_cache(maxsize=1000)
def _all_conversions(
    shape: tuple[int, ...],
    itemsize: int,
    mesh: Mesh,
    cluster: Cluster,
    partial: tuple[Partial, ...],
) -> tuple[list[Spec], NDArray[np.float64]]:
    """Every spec that keeps some of the partial results, and the seconds between all pairs."""
    specs = [
        Spec(spec.dims, kept)
        for spec in stored_specs(shape, mesh.shape, uneven=True)
        for count in range(len(partial) + 1)
        for kept in itertools.combinations(partial, count)
        if not {p.axis for p in kept} & set(spec.axes)
    ]
    links = cluster.links(mesh)
    seconds = np.full((len(specs),) * 2, math.inf)
    for (i, src), (j, dst) in itertools.product(enumerate(specs), repeat=2):
        with contextlib.suppress(ReshardError):
            plan = padded_plan(shape, mesh, src, dst)
            seconds[i, j] = reshard_time(plan, itemsize, links)
    for middle in range(len(specs)):  # a path of several plans may be faster than one plan
        seconds = np.minimum(seconds, seconds[:, middle, None] + seconds[None, middle, :])
    return specs, seconds
