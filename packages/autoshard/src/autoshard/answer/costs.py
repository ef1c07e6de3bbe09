"""The seconds and bytes of each operator and conversion of a sharding, in order of execution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from costmodel import Cluster
from shardspec import Mesh, Spec, Step

from autoshard.answer.sharding_fields import ShardingFields
from autoshard.graph.graph import Graph
from autoshard.graph.graph_fields import Operator, Value
from autoshard.space.conversion import Conversion, Converter, converter_of, spec_set
from autoshard.space.strategy import Strategy
from autoshard.space.strategy_tables import (
    OperatorTable,
    compute_seconds,
    largest_part,
    sent_seconds,
    table_of,
)


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """An operator with its strategy and costs."""

    operator: Operator
    strategy: Strategy
    seconds: float
    """Of all runs in a step, with what devices send to each other while it runs."""
    n_bytes: int
    """Bytes that a device holds of its results after one run."""

    @property
    def phase(self) -> int:
        """The phase in which it runs."""
        return self.operator.phase


@dataclass(frozen=True, slots=True)
class ConversionCost:
    """A conversion with its costs; `step` is a collective or a slice."""

    conversion: Conversion
    value: Value
    step: Step
    seconds: float
    """Of all runs in a step."""
    n_bytes: int
    """Bytes that a device receives in one run."""

    @property
    def phase(self) -> int:
        """The phase in which it runs."""
        return self.conversion.phase


def entries(sharding: ShardingFields) -> tuple[OperatorCost | ConversionCost, ...]:
    """The costs of all operators and conversions, in order of execution.

    A conversion comes right before the first operator that needs it; the conversions of outputs
    come after the last operator of their phase.
    """
    return tuple(_entries(sharding))


def _entries(sharding: ShardingFields) -> Iterator[OperatorCost | ConversionCost]:
    graph = sharding.graph
    waiting: dict[tuple[int, str], list[Conversion]] = {}
    for conversion in sharding.conversions:
        waiting.setdefault((conversion.phase, conversion.value), []).append(conversion)
    works = list(zip(graph.operators, sharding.strategies, strict=True))
    for phase in range(len(graph.phases)):
        for operator, strategy in works:
            if operator.phase != phase:
                continue
            for name, spec in zip(operator.inputs, strategy.operand_specs, strict=True):
                queue = waiting.get((phase, name), [])
                if spec in (conversion.dst for conversion in queue):
                    while queue and (conversion := queue.pop(0)):
                        yield move(sharding, conversion)
                        if conversion.dst == spec:
                            break
            yield work(sharding, operator, strategy)
        for (of, _), queue in waiting.items():
            if of == phase:
                yield from (move(sharding, conversion) for conversion in queue)


class WorkSeconds(NamedTuple):
    """Seconds of all runs of an operator in a step."""

    computed: float
    sent: float
    """Of the messages between devices while it runs."""


def work(sharding: ShardingFields, operator: Operator, strategy: Strategy) -> OperatorCost:
    """The costs of an operator in a strategy."""
    graph, mesh = sharding.graph, sharding.mesh
    table = table_of(graph, operator, mesh.shape, sharding.options)
    chosen = table.strategies.index(strategy)
    seconds = work_seconds(graph, mesh, sharding.cluster, operator, table, chosen)
    n_bytes = sum(
        held_bytes(graph.value(name), spec, mesh)
        for name, spec in zip(operator.outputs, strategy.result_specs, strict=True)
    )
    return OperatorCost(operator, strategy, sum(seconds), n_bytes)


def work_seconds(
    graph: Graph, mesh: Mesh, cluster: Cluster, operator: Operator, table: OperatorTable, index: int
) -> WorkSeconds:
    """The seconds of an operator in one of its strategies."""
    operands, results = (
        [graph.value(name) for name in names] for names in (operator.inputs, operator.outputs)
    )
    computed = compute_seconds(operator, operands, results, cluster.slowest(mesh), table)
    sent = sent_seconds(graph, operator, mesh, cluster.links(mesh), table)
    repeats = graph.phases[operator.phase].repeats
    of_sent = 0.0 if sent is None else float(sent[index])
    return WorkSeconds(float(computed[index]) * repeats, of_sent * repeats)


def move(sharding: ShardingFields, conversion: Conversion) -> ConversionCost:
    """The costs of a conversion."""
    value = sharding.graph.value(conversion.value)
    step = converter(sharding).steps(value, conversion.src, conversion.dst)[0]
    table = converter(sharding).seconds(
        value, spec_set((conversion.src,)), spec_set((conversion.dst,))
    )
    repeats = sharding.graph.phases[conversion.phase].repeats
    received = step.received_bytes(value.itemsize)
    return ConversionCost(conversion, value, step, float(table[0, 0]) * repeats, received)


def converter(sharding: ShardingFields) -> Converter:
    """The converter that prices the conversions of a sharding."""
    links = sharding.cluster.links(sharding.mesh)
    return converter_of(sharding.mesh.shape, links, sharding.options.uneven)


def held_bytes(value: Value, spec: Spec, mesh: Mesh) -> int:
    """Bytes of the largest shard of a value."""
    return value.itemsize * largest_part(spec, value.shape, mesh.shape)
