"""Turns a choice of strategies into a `Sharding` with its conversions and its actual costs.

The problem prices each relay's set of copies; the conversions that `convert` finds for it never
cost more.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from costmodel import Cluster
from shardspec import Mesh, Spec

from autoshard.answer.bucket import bucket_savings
from autoshard.answer.costs import work_seconds
from autoshard.answer.memory import footprint
from autoshard.answer.sharding import Sharding
from autoshard.answer.verify import OWN
from autoshard.graph.graph import Graph
from autoshard.problem.from_graph import Built
from autoshard.problem.solution import Solution
from autoshard.space.conversion import Conversion, Converter
from autoshard.space.conversions import Hop, convert
from autoshard.space.options import Options
from autoshard.space.strategy import Strategy


def decode(
    built: Built,
    converter: Converter,
    graph: Graph,
    mesh: Mesh,
    cluster: Cluster,
    options: Options,
    solution: Solution,
) -> Sharding:
    """The sharding of a solution of a built problem, at its actual price.

    Args:
        built: The problem, and the meaning of its nodes.
        converter: The converter that the problem was built with.
        graph: The program.
        mesh: The mesh that it is sharded on.
        cluster: Its device priced the operators.
        options: The options of the sharding.
        solution: A choice with its bound.
    """
    choice = solution.choice
    made = {name: built.copies[node][choice[node]][0] for name, node in built.inputs.items()}
    input_specs = tuple(made.items())
    strategies = []
    compute, sent = ([0.0] * len(graph.phases) for _ in range(2))
    for node, (operator, table) in enumerate(
        zip(graph.operators, built.tables, strict=True), len(graph.inputs)
    ):
        strategy = table.strategies[choice[node]]
        strategies.append(strategy)
        made.update(zip(operator.outputs, strategy.result_specs, strict=True))
        seconds = built.problem.node_costs[node].item(choice[node])
        if table.messages is not None and table.messages[choice[node]]:
            of = work_seconds(graph, mesh, cluster, operator, table, choice[node])
            sent[operator.phase] += of.sent
            seconds = of.computed
        compute[operator.phase] += seconds
    output_specs = []
    for output, node in zip(graph.outputs, built.outputs, strict=True):
        spec = built.copies[node][choice[node]][0]
        if output.alias is None and not output.whole and not made[output.value].is_partial:
            spec = made[output.value]  # any layout is allowed, so it keeps the one it has
        output_specs.append(spec)
    asks = _asks(graph, strategies, output_specs)
    copies = {key: built.copies[node][choice[node]] for key, node in built.relays.items()}
    conversions, of_conversions = _conversions(graph, converter, made, asks, copies)
    communication = tuple(map(sum, zip(sent, of_conversions, strict=True)))
    hidden = tuple(
        min(options.overlap * sent, computed)
        for sent, computed in zip(communication, compute, strict=True)
    )
    objective = sum(compute) + sum(communication) - sum(hidden)
    sharding = Sharding(
        graph,
        mesh,
        cluster,
        options,
        input_specs,
        tuple(strategies),
        conversions,
        tuple(output_specs),
        tuple(compute),
        communication,
        objective,
        min(objective, solution.lower_bound),
        0,
        0,
        solution,
        hidden_s=hidden,
        is_bound_of_all=built.is_exact,
        bucketed_s=(0.0,) * len(graph.phases),
        memory_by=OWN,
    )
    if options.bucket_bytes is not None:
        sharding = replace(sharding, bucketed_s=bucket_savings(sharding, options.bucket_bytes))
    held = footprint(sharding)
    peak = held.peak_bytes(options.in_flight)
    return replace(sharding, peak_bytes=peak, activation_bytes=held.activation_bytes)


def _asks(
    graph: Graph, strategies: Sequence[Strategy], output_specs: Sequence[Spec]
) -> list[tuple[int, str, Spec]]:
    """(phase, value, spec) of everything that operators, then outputs, need, ordered by phase."""
    asks = [
        (operator.phase, name, spec)
        for operator, strategy in zip(graph.operators, strategies, strict=True)
        for name, spec in zip(operator.inputs, strategy.operand_specs, strict=True)
    ]
    asks += [
        (graph.phase_of_output(output), output.value, spec)
        for output, spec in zip(graph.outputs, output_specs, strict=True)
    ]
    return sorted(asks, key=lambda ask: ask[0])


def _conversions(
    graph: Graph,
    converter: Converter,
    made: dict[str, Spec],
    asks: list[tuple[int, str, Spec]],
    copies: dict[tuple[str, int], tuple[Spec, ...]],
) -> tuple[tuple[Conversion, ...], tuple[float, ...]]:
    """All conversions in order of execution, each one once; and their seconds in each phase.

    Args:
        graph: The program.
        converter: Prices the conversions.
        made: The spec in which each value is computed or stored.
        asks: As returned by `_asks`.
        copies: For each value and phase, the specs of the copies that its readers share.
    """
    # most values are needed as they are; comparing identities first is faster
    away = {
        (name, phase) for phase, name, spec in asks if spec is not made[name] and spec != made[name]
    }
    asks = [(phase, name, spec) for phase, name, spec in asks if (name, phase) in away]
    asked: dict[tuple[str, int], list[Spec]] = {}
    for phase, name, spec in asks:
        asked.setdefault((name, phase), []).append(spec)
    sources: dict[tuple[str, int], dict[Spec, Spec]] = {}
    seconds = [0.0] * len(graph.phases)
    known: dict[Hashable, tuple[tuple[Hop, ...], float]] = {}  # repeated layers need the same
    for (name, phase), specs in asked.items():
        value, kept = graph.value(name), copies.get((name, phase), ())
        key = (value.shape, value.dtype, made[name], *specs, None, *kept)
        if key not in known:
            known[key] = convert(converter, value, made[name], specs, kept)
        hops, once = known[key]
        sources[name, phase] = {dst: src for src, dst in hops}
        seconds[phase] += once * graph.phases[phase].repeats
    conversions: list[Conversion] = []
    # a conversion runs as late as possible, since its result is held from then on
    for phase, name, spec in asks:
        chain = list[Conversion]()
        while spec in sources[name, phase]:
            src = sources[name, phase].pop(spec)
            chain.append(Conversion(phase, name, src, spec))
            spec = src
        conversions += reversed(chain)
    return tuple(conversions), tuple(seconds)
