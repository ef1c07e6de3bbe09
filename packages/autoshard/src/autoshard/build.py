"""From a graph on a mesh to a `Problem`.

Nodes: one an input (how it is stored), one an operator (its strategies), one an output (how it
leaves), and one *relay* for each value that several operators read in one phase. An edge between
producer and reader costs the conversion, times the repeats of the reader's phase; so what crosses
from an earlier phase is converted again in each phase, and a gradient that was accumulated as
partial sums is reduced once, in apply. An alias is an edge back to its input.

A relay makes a shared conversion cost once and keeps the problem pairwise: its strategies are the
spec q of a copy that all readers in the phase start from. Its producer pays p -> q (nothing if q is
what it made), a reader that asks for r pays q -> r (a slice is free). For two readers nothing is
lost: if only one of them gains by a copy, it could as well convert by itself. With three or more,
serving some from p and others from q is left to decoding, which never pays more than this price.

What an operator computes from nothing, such as a mask, is never sent: every device can compute it
as it needs it, and XLA would merge or fold such a collective away.

Memory: see `lifetime`. A result that is stored back into an input takes the input's place. The
passing copies that conversions make are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from costmodel import Cluster
from numpy.typing import NDArray
from shardspec import Mesh, Spec

from autoshard.conversion import Converter
from autoshard.graph import Graph, Value
from autoshard.lifetime import lifetimes
from autoshard.problem import Array, Problem
from autoshard.strategy import stored_specs
from autoshard.tables import Column, column, compute_seconds, operator_table


@dataclass(frozen=True, slots=True)
class Built:
    """A problem, and which node stands for what; operator i is node `len(inputs) + i`."""

    problem: Problem
    inputs: dict[str, tuple[int, tuple[Spec, ...]]]
    """Per input its node and the specs it may be stored in."""
    outputs: tuple[tuple[int, tuple[Spec, ...]], ...]
    """Per output its node (an aliased input's) and the specs it may leave in."""
    relays: dict[tuple[str, int], tuple[int, tuple[Spec, ...]]]
    """Per value and phase the relay's node and the specs of its copy."""


class _Builder:
    """The growing lists of a problem, and who makes and reads each value."""

    def __init__(self, graph: Graph, mesh: Mesh, converter: Converter) -> None:
        self.graph = graph
        self.mesh = mesh
        self.converter = converter
        self.costs: list[Array] = []
        self.usages: list[Array] = []
        self.intervals: list[tuple[int, int]] = []
        self.edges: list[tuple[int, int]] = []
        self.edge_costs: list[Array] = []
        self.constants = _constants(graph)
        self.produced: dict[str, tuple[int, Column]] = {}
        self.read: dict[tuple[str, int], dict[int, list[Column]]] = {}
        """Per value and phase: each reading node and the columns of what it asks for."""

    def add_node(self, cost: Array, usage: Array, interval: tuple[int, int] = (0, 0)) -> int:
        self.costs.append(cost)
        self.usages.append(usage)
        self.intervals.append(interval)
        return len(self.costs) - 1

    def add_edge(self, i: int, j: int, cost: Array) -> None:
        self.edges.append((i, j))
        self.edge_costs.append(cost)

    def add_reader(self, value: str, phase: int, node: int, asked: Column) -> None:
        self.read.setdefault((value, phase), {}).setdefault(node, []).append(asked)

    def seconds(self, value: Value, src: Column, dst: Column) -> Array:
        """The price of each conversion between distinct specs; `inf` to send a constant."""
        seconds = self.converter.seconds(value, src.distinct, dst.distinct)
        return np.where(seconds > 0.0, np.inf, seconds) if value.name in self.constants else seconds

    def connect(self, name: str, phase: int) -> tuple[int, tuple[Spec, ...]] | None:
        """Edges from a value to its readers in a phase; the relay between them, if there is one."""
        value, readers = self.graph.value(name), self.read[name, phase]
        node, there = self.produced[name]
        repeats = self.graph.phases[phase].repeats
        relay = None
        if len(readers) > 1:
            asked = [part for columns in readers.values() for part in columns]
            specs = dict.fromkeys(s for part in [there, *asked] for s in part.distinct.specs)
            copy = column(tuple(specs), self.mesh.shape)
            cost = self.seconds(value, there, copy)[there.index]
            # an empty interval: the copy passes, and its bytes only break ties
            relay = self.add_node(np.zeros(len(specs)), value.n_bytes / copy.shards)
            self.add_edge(node, relay, cost * repeats)
            node, there = relay, copy
        for reader, columns in readers.items():
            cost = np.zeros((len(there.index), len(columns[0].index)))
            for use, part in enumerate(columns):
                # a reader that asks for the same spec twice pays once
                again = [_same(part, earlier) for earlier in columns[:use]]
                seconds = self.seconds(value, there, part)
                seconds = seconds[np.ix_(there.index, part.index)]
                cost += np.where(np.any(again, axis=0), 0.0, seconds) if again else seconds
            self.add_edge(node, reader, cost * repeats)
        return None if relay is None else (relay, there.distinct.specs)


def _constants(graph: Graph) -> frozenset[str]:
    """Values that depend on no input."""
    found: set[str] = set()
    for operator in graph.operators:
        if found.issuperset(operator.inputs):
            found.update(operator.outputs)
    return frozenset(found)


def _same(a: Column, b: Column) -> NDArray[np.bool_]:
    """Per strategy whether two uses ask for the same spec."""
    ids = {spec: index for index, spec in enumerate(a.distinct.specs + b.distinct.specs)}
    ids_a, ids_b = ([ids[spec] for spec in part.distinct.specs] for part in (a, b))
    same: NDArray[np.bool_] = np.array(ids_a)[a.index] == np.array(ids_b)[b.index]
    return same


def build(
    graph: Graph,
    cluster: Cluster,
    converter: Converter,
    *,
    stored: dict[str, tuple[Spec, ...]],
    memory_bytes: int | None,
    in_flight: int,
) -> Built:
    """The problem of sharding a verified graph on the converter's mesh.

    Args:
        graph: Verified.
        cluster: Its device prices the operators.
        converter: Prices the conversions, and says on which mesh.
        stored: Per input the specs that it may be stored in; any even ones, for those left out.
        memory_bytes: The limit, per device.
        in_flight: Microbatches whose activations are held at a time.
    """
    mesh = converter.mesh
    builder = _Builder(graph, mesh, converter)
    life = lifetimes(graph, in_flight)
    inputs = {}
    for name in graph.inputs:
        value, held = graph.value(name), life[name]
        part = column(stored.get(name) or stored_specs(value.shape, mesh.shape), mesh.shape)
        usage = value.n_bytes * held.copies / part.shards
        node = builder.add_node(np.zeros_like(usage), usage, (held.first, held.last))
        builder.produced[name] = (node, part)
        inputs[name] = (node, part.distinct.specs)

    in_place = {output.value for output in graph.outputs if output.alias is not None}
    for operator in graph.operators:
        table = operator_table(operator.rule, mesh.shape)
        read = [graph.value(name) for name in operator.inputs]
        made = [graph.value(name) for name in operator.outputs]
        cost = compute_seconds(operator, read, made, cluster.device, table)
        usage = np.zeros_like(cost)
        for value, part in zip(made, table.results, strict=True):
            if value.name not in in_place:
                usage += value.n_bytes * life[value.name].copies / part.shards
        first = min(life[name].first for name in operator.outputs)
        last = max(life[name].last for name in operator.outputs)
        cost *= graph.phases[operator.phase].repeats
        node = builder.add_node(cost, usage, (first, last))
        for name, part in zip(operator.inputs, table.operands, strict=True):
            builder.add_reader(name, operator.phase, node, part)
        for name, part in zip(operator.outputs, table.results, strict=True):
            builder.produced[name] = (node, part)

    outputs = []
    for output in graph.outputs:
        shape = graph.value(output.value).shape
        if output.alias is not None:
            node, part = builder.produced[output.alias]
        else:
            free = stored_specs(shape, mesh.shape)
            part = column((Spec.replicated(len(shape)),) if output.whole else free, mesh.shape)
            node = builder.add_node(np.zeros(len(part.index)), np.zeros(len(part.index)))
        if output.alias != output.value:
            builder.add_reader(output.value, graph.phase_of_output(output), node, part)
        outputs.append((node, part.distinct.specs))

    relays = {}
    for name, phase in builder.read:
        relay = builder.connect(name, phase)
        if relay is not None:
            relays[name, phase] = relay
    problem = Problem(
        tuple(builder.costs),
        tuple(builder.edges),
        tuple(builder.edge_costs),
        tuple(builder.usages),
        tuple(builder.intervals),
        memory_bytes,
    )
    return Built(problem, inputs, tuple(outputs), relays)
