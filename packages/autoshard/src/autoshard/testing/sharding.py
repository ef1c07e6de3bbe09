"""Judges of whole shardings: by running them, by recomputing what they say, and by trying all.

Shares nothing with build, relays, decoding or the tables of conversions: prices come from
`shardspec.reshard_whole_axes` (`reshard` for strided specs) and costmodel, one plan at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from costmodel import Cluster, operator_time, reshard_time
from numpy.typing import NDArray
from shardspec import (
    Layout,
    Mesh,
    Partial,
    ReshardError,
    ReshardPlan,
    Spec,
    assemble,
    reshard,
    reshard_whole_axes,
    simulate,
)
from shardspec import shard as cut

from autoshard.conversion import Conversion
from autoshard.graph import Graph, Operator, Value
from autoshard.sharding import Sharding
from autoshard.strategy import Strategy, enumerate_strategies, stored_specs

Shards = dict[int, Any]
"""A device's part of a value, by device."""
Run = Callable[[Operator, list[Any], list[tuple[int, ...]]], list[Any]]
"""(operator, a device's operands, shapes of its results) -> its results; whole values if they are
given and asked for."""


def run_whole(graph: Graph, inputs: Mapping[str, Any], run: Run) -> list[Any]:
    """The outputs of a graph on one device."""
    values = dict(inputs)
    for operator in graph.operators:
        operands = [values[name] for name in operator.inputs]
        results = run(operator, operands, list(operator.rule.result_shapes))
        values.update(zip(operator.outputs, results, strict=True))
    return [values[output.value] for output in graph.outputs]


def run_sharded(sharding: Sharding, inputs: Mapping[str, Any], run: Run) -> list[Any]:
    """The outputs when every device does exactly what a sharding says.

    An operator reads what it asks for: the value as it is made, or what a conversion of its phase
    made of it. Anything else is a `KeyError`.
    """
    graph, mesh = sharding.graph, sharding.mesh
    made = made_specs(sharding)

    def layout(name: str, spec: Spec) -> Layout:
        return Layout(graph.value(name).shape, mesh, spec)

    shards: dict[str, Shards] = {
        name: cut(layout(name, made[name]), array) for name, array in inputs.items()
    }
    sources = {(c.phase, c.value, c.dst): c.src for c in sharding.conversions}
    there: dict[tuple[int, str, Spec], Shards] = {}

    def fetch(phase: int, name: str, spec: Spec) -> Shards:
        if spec == made[name]:
            return shards[name]
        key = (phase, name, spec)
        if key not in there:
            src, dst = layout(name, sources[key]), layout(name, spec)
            plain = all(end.is_even and end.spec.is_plain for end in (src, dst))
            plan = reshard_whole_axes(src, dst) if plain else reshard(src, dst)
            there[key] = simulate(plan, fetch(phase, name, sources[key]))
        return there[key]

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
    """Compare the outputs of a sharding with those of the whole program, in whole numbers."""
    graph = sharding.graph
    rng = np.random.default_rng(seed)
    inputs = {name: rng.integers(-3, 4, graph.value(name).shape) for name in graph.inputs}
    found, expected = run_sharded(sharding, inputs, run), run_whole(graph, inputs, run)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def check_conversions(sharding: Sharding) -> None:
    """Each conversion is needed, made once, of something that is there; outputs leave as asked."""
    graph, made = sharding.graph, made_specs(sharding)
    needed = {(read.phase, read.value, read.spec) for read in reads(sharding)}
    there: dict[tuple[int, str], set[Spec]] = {}
    for c in sharding.conversions:
        copies = there.setdefault((c.phase, c.value), {made[c.value]})
        assert c.src in copies, f"{c} starts from what is not there"
        assert c.dst not in copies, f"{c} makes what is there"
        copies.add(c.dst)
    sources = {(c.phase, c.value, c.src) for c in sharding.conversions}
    for c in sharding.conversions:
        assert (c.phase, c.value, c.dst) in needed | sources, f"{c} is not needed"
    for phase, name, spec in needed:
        assert spec in there.get((phase, name), {made[name]}), f"nobody makes {name} as {spec}"
    phases = [c.phase for c in sharding.conversions]
    assert phases == sorted(phases)
    for output, spec in zip(graph.outputs, sharding.output_specs, strict=True):
        assert not spec.is_partial
        assert not output.whole or not spec.axes
        assert output.alias is None or spec == made[output.alias]


def made_specs(sharding: Sharding) -> dict[str, Spec]:
    """How each value is stored or made."""
    made = dict(sharding.input_specs)
    for operator, strategy in zip(sharding.graph.operators, sharding.strategies, strict=True):
        made.update(zip(operator.outputs, strategy.result_specs, strict=True))
    return made


@dataclass(frozen=True, slots=True)
class Read:
    """An operand, or an output."""

    time: int
    """The operator; of an output, the last one of its phase."""
    phase: int
    value: str
    spec: Spec
    in_place: bool = False
    """Whether it is stored back into an input."""


def reads(sharding: Sharding) -> list[Read]:
    """All that operators read, then all outputs."""
    graph = sharding.graph
    found = [
        Read(time, operator.phase, name, spec)
        for time, (operator, strategy) in enumerate(
            zip(graph.operators, sharding.strategies, strict=True)
        )
        for name, spec in zip(operator.inputs, strategy.operand_specs, strict=True)
    ]
    for output, spec in zip(graph.outputs, sharding.output_specs, strict=True):
        phase = graph.phase_of_output(output)
        last = sum(operator.phase <= phase for operator in graph.operators) - 1
        in_place = output.alias is not None
        found.append(Read(max(last, 0), phase, output.value, spec, in_place))
    return found


def recompute_seconds(sharding: Sharding) -> tuple[list[float], list[float]]:
    """Compute and communication of each phase, from the specs and conversions alone."""
    graph, mesh, cluster = sharding.graph, sharding.mesh, sharding.cluster
    links = cluster.links(mesh)
    compute, communication = ([0.0] * len(graph.phases) for _ in range(2))
    for operator, strategy in zip(graph.operators, sharding.strategies, strict=True):
        seconds = _operator_seconds(graph, operator, strategy, mesh, cluster)
        compute[operator.phase] += seconds * graph.phases[operator.phase].repeats
    for c in sharding.conversions:
        value = graph.value(c.value)
        plan = _padded_plan(value.shape, mesh, c.src, c.dst)
        seconds = reshard_time(plan, value.itemsize, links)
        communication[c.phase] += seconds * graph.phases[c.phase].repeats
    return compute, communication


def _padded_plan(shape: tuple[int, ...], mesh: Mesh, src: Spec, dst: Spec) -> ReshardPlan:
    """The conversion of a tensor that is padded until both specs cut it evenly."""
    whole = list(shape)
    for dim in range(len(shape)):
        while any(whole[dim] % mesh.axis_size(s.sharding_of(dim)) for s in (src, dst)):
            whole[dim] += 1
    layouts = [Layout(tuple(whole), mesh, spec) for spec in (src, dst)]
    return reshard_whole_axes(*layouts) if src.is_plain and dst.is_plain else reshard(*layouts)


def _operator_seconds(
    graph: Graph, operator: Operator, strategy: Strategy, mesh: Mesh, cluster: Cluster
) -> float:
    part = 1.0
    for index, factor in enumerate(operator.rule.factors):
        targets = zip(mesh.shape, strategy.mapping, strict=True)
        n = math.prod(size for size, target in targets if target == index)
        part *= math.ceil(factor.size / n) / max(factor.size, 1)
    values = [graph.value(name) for name in operator.inputs + operator.outputs]
    specs = strategy.operand_specs + strategy.result_specs
    n_bytes = sum(_bytes(value, mesh, spec) for value, spec in zip(values, specs, strict=True))
    floating = [value for value in values if "float" in value.dtype]
    dtype = max(floating or values, key=lambda value: value.itemsize).dtype
    return float(operator_time(operator.flops * part, n_bytes, cluster.device, dtype))


def _bytes(value: Value, mesh: Mesh, spec: Spec) -> int:
    return Layout(value.shape, mesh, spec, "padded").local_bytes(value.itemsize)


def recompute_peak(sharding: Sharding) -> int:
    """The most bytes that a device holds while any operator runs, moment by moment."""
    spans = list(_spans(sharding))
    times = range(max(len(sharding.graph.operators), 1))
    return max(sum(n for n, first, last in spans if first <= now <= last) for now in times)


def _spans(sharding: Sharding) -> Iterator[tuple[int, int, int]]:
    """(bytes, first, last operator) of each thing that is held."""
    graph, mesh, in_flight = sharding.graph, sharding.mesh, sharding.options.in_flight
    phase_of = [operator.phase for operator in graph.operators]
    stored_back = {output.value for output in graph.outputs if output.alias is not None}
    every = reads(sharding)
    for name, spec in made_specs(sharding).items():
        n_bytes = _bytes(graph.value(name), mesh, spec)
        times = [time for time, operator in enumerate(graph.operators) if name in operator.inputs]
        starts_in_first = name not in graph.producers or phase_of[graph.producers[name][0]] == 0
        is_saved = starts_in_first and any(phase_of[time] > 0 for time in times)
        if name in graph.inputs:
            batch = graph.value(name).role in ("batch", "activation")
            used = any(phase_of[time] == 0 for time in times)
            yield n_bytes * (in_flight if batch and used and is_saved else 1), 0, len(phase_of)
            continue
        if name in stored_back:
            continue
        begin = graph.producers[name][0]
        end = max([begin, *(read.time for read in every if read.value == name)])
        if is_saved and in_flight > 1:
            last_phase = max(phase_of[time] for time in times)
            end = max(end, sum(phase <= last_phase for phase in phase_of) - 1)
            yield n_bytes * in_flight, 0, end
            continue
        runs = [graph.phases[phase_of[time]].repeats for time in (begin, *times[-1:])]
        is_sum = runs[0] > runs[-1]
        yield n_bytes, 0 if is_sum else begin, end
    for c in sharding.conversions:
        direct, times = _needed_at(sharding.conversions, every, c)
        if times and (direct or min(times) < max(times)):
            yield _bytes(graph.value(c.value), mesh, c.dst), min(times), max(times)


def _needed_at(
    conversions: Sequence[Conversion], every: list[Read], c: Conversion
) -> tuple[list[int], list[int]]:
    """When what a conversion makes is read; and also when others start from it, all together.

    Another conversion runs when what it makes is needed for the first time.
    """
    direct = [
        read.time
        for read in every
        if (read.phase, read.value, read.spec) == (c.phase, c.value, c.dst) and not read.in_place
    ]
    after = [
        _needed_at(conversions, every, other)[1]
        for other in conversions
        if (other.phase, other.value, other.src) == (c.phase, c.value, c.dst)
    ]
    return direct, direct + [min(times) for times in after if times]


def check_sharding(sharding: Sharding) -> None:
    """Everything that a sharding says about itself, from scratch: conversions, seconds, bytes."""
    check_conversions(sharding)
    compute, communication = recompute_seconds(sharding)
    np.testing.assert_allclose(sharding.compute_s, compute, rtol=1e-9)
    np.testing.assert_allclose(sharding.communication_s, communication, rtol=1e-9)
    overlap = sharding.options.overlap
    hidden = [min(overlap * sent, busy) for sent, busy in zip(communication, compute, strict=True)]
    np.testing.assert_allclose(sharding.hidden_s, hidden, rtol=1e-9)
    total = sum(compute) + sum(communication) - sum(hidden)
    np.testing.assert_allclose(sharding.objective_s, total, rtol=1e-9)
    assert sharding.lower_bound_s <= sharding.objective_s
    assert sharding.peak_bytes == recompute_peak(sharding)
    limit = sharding.options.memory_bytes
    assert limit is None or sharding.peak_bytes <= limit


def least_seconds(graph: Graph, mesh: Mesh, cluster: Cluster, *, uneven: bool = False) -> float:
    """The objective of the best sharding of a tiny graph, by trying all.

    All strategies and all specs of inputs, with the cheapest tree of conversions for every value in
    every phase. Only for meshes of one axis is the tree the cheapest of all; see `cheapest_tree`.
    """
    shapes = [graph.value(name).shape for name in graph.inputs]
    stored = [stored_specs(shape, mesh.shape, uneven) for shape in shapes]
    ways = [enumerate_strategies(op.rule, mesh.shape, uneven) for op in graph.operators]
    seconds = [
        [_operator_seconds(graph, operator, s, mesh, cluster) for s in strategies]
        for operator, strategies in zip(graph.operators, ways, strict=True)
    ]
    choices = [range(len(strategies)) for strategies in ways]
    best = math.inf
    for choice in itertools.product(*choices):
        chosen = [strategies[i] for strategies, i in zip(ways, choice, strict=True)]
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
    """Of all conversions, given how inputs are stored (to which `made` adds the results)."""
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
    """Least seconds of conversions that make all that is asked for: a directed Steiner tree.

    Dreyfus and Wagner, "The Steiner Problem in Graphs", Networks 1(3), 1971; over the specs of
    whole axes that have some of the partial results, and the axes of a dim in mesh order.
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
    """Every spec that keeps some of the partial results, and the seconds from each to each."""
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
            plan = _padded_plan(shape, mesh, src, dst)
            seconds[i, j] = reshard_time(plan, itemsize, links)
    for middle in range(len(specs)):  # one plan is not always the fastest way
        seconds = np.minimum(seconds, seconds[:, middle, None] + seconds[None, middle, :])
    return specs, seconds
