"""From a graph on a mesh to a `Problem`.

Nodes: one an input (how it is stored), one an operator (its strategies), one an output (how it
leaves), and one *relay* for each value that is read more than once in a phase. An edge between
producer and reader costs the conversion, times the repeats of the reader's phase; so what crosses
from an earlier phase is converted again in each phase, and a gradient that was accumulated as
partial sums is reduced once, in apply. An alias is an edge back to its input.

A relay makes a shared conversion cost once and keeps the problem pairwise: its strategies are the
sets of copies that its readers start from (see `relay`). Tables are made once for all layers that
are alike (see `copies`).

What an operator computes from nothing, such as a mask, is never sent: every device can compute it
as it needs it, and XLA would merge or fold such a collective away.

Memory: see `lifetime` for values. With `copies`, what conversions make counts too, while it is
read: every operand then has a node of its own, which knows whether the operand is the value as it
is stored (nothing more is held) or a copy. An operand's own copy is held while its operator runs,
one that operands share from the first of its readers to the last: a relay's, which may not all take
it. So where more than two read a value the problem may hold too much, and where two make copies of
their own that turn out alike, too little; `shard` judges what it has found (see `memory`). A
problem without copies is a relaxation, and smaller by half; `shard` begins with that. A result that
is stored back into an input takes the input's place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from costmodel import Cluster, Device
from shardspec import Spec

from autoshard.conversion import Converter
from autoshard.copies import Copies, CopyTables, Relay
from autoshard.graph import Graph, Operator, Value
from autoshard.lifetime import lifetimes, phase_ends
from autoshard.options import Options
from autoshard.problem import Array, Problem
from autoshard.tables import (
    Column,
    OperatorTable,
    column,
    compute_seconds,
    stored_specs_of,
    table_of,
)


@dataclass(frozen=True, slots=True)
class Built:
    """A problem, and which node stands for what; operator i is node `len(inputs) + i`."""

    problem: Problem
    inputs: dict[str, int]
    """The node of each input."""
    outputs: tuple[int, ...]
    """The node of each output (an aliased input's)."""
    relays: dict[tuple[str, int], int]
    """Per value and phase the node of the copies that readers share."""
    copies: dict[int, Copies]
    """Of every node that is no operator; inputs and outputs have one spec a strategy."""
    is_exact: bool
    """Whether every relay may hold all sets of copies that can be of use."""
    tables: tuple[OperatorTable, ...]
    """Of each operator."""


@dataclass(frozen=True, slots=True)
class _Use:
    """One operand of an operator, or an output."""

    node: int
    asked: Column
    time: int | None
    """The operator's; `None` for what is stored back into an input, and so takes no memory."""


class _Builder:
    """The growing lists of a problem, and who makes and reads each value."""

    def __init__(self, graph: Graph, tables: CopyTables) -> None:
        self.graph = graph
        self.tables = tables
        self.costs: list[Array] = []
        self.usages: list[Array] = []
        self.intervals: list[tuple[int, int]] = []
        self.edges: list[tuple[int, int]] = []
        self.edge_costs: list[Array] = []
        self.produced: dict[str, tuple[int, Column]] = {}
        self.read: dict[tuple[str, int], list[_Use]] = {}
        self.relays: dict[tuple[str, int], int] = {}
        self.copies: dict[int, Copies] = {}
        self.is_exact = True

    def add_node(self, cost: Array, usage: Array, interval: tuple[int, int] = (0, 0)) -> int:
        self.costs.append(cost)
        self.usages.append(usage)
        self.intervals.append(interval)
        return len(self.costs) - 1

    def add_stored(self, value: Value, part: Column, interval: tuple[int, int], held: int) -> int:
        """A node for how a value lies; `held` times in memory."""
        usage = value.itemsize * held * part.elements
        node = self.add_node(np.zeros_like(usage), usage, interval)
        self.copies[node] = tuple((part.distinct.specs[i],) for i in part.index)
        return node

    def add_edge(self, i: int, j: int, cost: Array) -> None:
        self.edges.append((i, j))
        self.edge_costs.append(cost)

    def add_use(self, name: str, phase: int, use: _Use) -> None:
        self.read.setdefault((name, phase), []).append(use)

    def connect(self, name: str, phase: int) -> None:
        """Edges from a value to those who read it in a phase, and the relays between them."""
        tables, uses = self.tables, self.read[name, phase]
        kind = tables.kind(self.graph.value(name), is_constant=name in self.graph.constants)
        repeats = self.graph.phases[phase].repeats
        node, part = self.produced[name]
        source = tables.made(part)
        times = [use.time for use in uses if use.time is not None]
        until = max(times, default=0) + 1
        if len(uses) > 1:
            # Without their memory the interval is empty, and the bytes only break ties.
            held = (min(times, default=0), until if tables.with_memory and times else 0)
            relay = tables.shared(kind, source, tuple(use.asked for use in uses))
            node = self.add_relay(node, relay, repeats, held)
            source = relay.available
            self.relays[name, phase] = node
        by_node: dict[int, list[_Use]] = {}
        for use in uses:
            by_node.setdefault(use.node, []).append(use)
        for reader, of_node in by_node.items():
            if not tables.with_memory or of_node[0].time is None:
                seconds = tables.reading(kind, source, tuple(use.asked for use in of_node))
                self.add_edge(node, reader, tables.times(seconds, repeats))
                continue
            # operands that are asked for alike are one copy
            for use in {id(use.asked): use for use in of_node}.values():
                own, match = tables.own(kind, source, use.asked)
                begin = use.time or 0
                held = (begin, begin + 1)
                self.add_edge(self.add_relay(node, own, repeats, held), reader, match)

    def add_relay(self, source: int, relay: Relay, repeats: int, interval: tuple[int, int]) -> int:
        """A node whose strategies are sets of copies of a value, and its edge from the source."""
        node = self.add_node(np.zeros_like(relay.usage), relay.usage, interval)
        self.add_edge(source, node, self.tables.times(relay.making, repeats))
        self.copies[node] = relay.copies
        self.is_exact &= relay.is_exact
        return node


def build(
    graph: Graph,
    cluster: Cluster,
    converter: Converter,
    options: Options,
    *,
    copies: bool = False,
) -> Built:
    """The problem of sharding a verified graph on the converter's mesh, without a memory limit.

    Args:
        graph: Verified.
        cluster: Its device prices the operators.
        converter: Prices the conversions, and says on which mesh.
        options: Of the search; those of single solves, such as limits, play no role.
        copies: Whether the memory of what conversions make counts.
    """
    mesh = converter.mesh
    tables = CopyTables(converter, with_memory=copies)
    builder = _Builder(graph, tables)
    one = options.in_flight == 1
    life = graph.lifetimes[0] if one else lifetimes(graph, options.in_flight)
    of_operators = tuple(_tables(graph, mesh.shape, options))
    inputs = {}
    for name in graph.inputs:
        value, held = graph.value(name), life[name]
        specs = stored_specs_of(graph, name, mesh.shape, options)
        part = column(specs, value.shape, mesh.shape)
        inputs[name] = builder.add_stored(value, part, (held.first, held.last), held.copies)
        builder.produced[name] = (inputs[name], part)
    in_place = {output.value for output in graph.outputs if output.alias is not None}
    for index, (operator, table) in enumerate(zip(graph.operators, of_operators, strict=True)):
        cost = _seconds(tables, graph, operator, table, cluster.device)
        made = [graph.value(name) for name in operator.outputs]
        of_element = [0 if v.name in in_place else v.itemsize * life[v.name].copies for v in made]
        usage = _usage(tables, table, tuple(of_element))
        first = min(life[name].first for name in operator.outputs)
        last = max(life[name].last for name in operator.outputs)
        node = builder.add_node(cost, usage, (first, last))
        for name, part in zip(operator.inputs, table.operands, strict=True):
            builder.add_use(name, operator.phase, _Use(node, part, index))
        for name, part in zip(operator.outputs, table.results, strict=True):
            builder.produced[name] = (node, part)
    outputs = _add_outputs(builder, mesh.shape, options)
    for name, phase in builder.read:
        builder.connect(name, phase)
    problem = Problem(
        tuple(builder.costs),
        tuple(builder.edges),
        tuple(builder.edge_costs),
        tuple(builder.usages),
        tuple(builder.intervals),
    )
    where = (inputs, outputs, builder.relays, builder.copies)
    return Built(problem, *where, builder.is_exact, of_operators)


def _tables(graph: Graph, mesh_shape: tuple[int, ...], options: Options) -> Iterator[OperatorTable]:
    """Of each operator; repeated layers share rules, and these are long to compare."""
    known: dict[int, OperatorTable] = {}
    for op in graph.operators:
        if options.strided:  # then it depends on the values, too
            yield table_of(graph, op, mesh_shape, options)
            continue
        if id(op.rule) not in known:
            known[id(op.rule)] = table_of(graph, op, mesh_shape, options)
        yield known[id(op.rule)]


def _seconds(
    tables: CopyTables, graph: Graph, operator: Operator, table: OperatorTable, device: Device
) -> Array:
    """Per strategy, of all runs in a step."""
    read, made = (list(map(graph.value, names)) for names in (operator.inputs, operator.outputs))
    dtypes = tuple(value.dtype for value in read + made)
    seconds = tables.once(
        ("seconds", table, operator.flops, dtypes),
        lambda: compute_seconds(operator, read, made, device, table),
    )
    return tables.times(seconds, graph.phases[operator.phase].repeats)


def _usage(tables: CopyTables, table: OperatorTable, held: tuple[int, ...]) -> Array:
    """Bytes of the results, per strategy.

    Args:
        tables: To make it once.
        table: Of the operator.
        held: Per result the bytes of an element, of all copies of it.
    """

    def make() -> Array:
        usage = np.zeros(len(table.strategies))
        for n_bytes, part in zip(held, table.results, strict=True):
            usage += n_bytes * part.elements
        return usage

    return tables.once(("usage", table, held), make)


def _add_outputs(
    builder: _Builder, mesh_shape: tuple[int, ...], options: Options
) -> tuple[int, ...]:
    """A node for each output, but for what is stored back into an input: that is the input's."""
    graph = builder.graph
    ends = phase_ends(graph)
    nodes = []
    for output in graph.outputs:
        value, phase = graph.value(output.value), graph.phase_of_output(output)
        if output.alias is not None:
            node, part = builder.produced[output.alias]
            time = None
        else:
            whole = (Spec.replicated(len(value.shape)),)
            stored = stored_specs_of(graph, output.value, mesh_shape, options)
            specs = whole if output.whole else stored
            part = column(specs, value.shape, mesh_shape)
            # the copy that leaves is a copy like any other, read at the end of the phase
            node = builder.add_stored(value, part, (0, 0), 0)
            time = max(ends[phase] - 1, 0)
        if output.alias != output.value:
            builder.add_use(output.value, phase, _Use(node, part, time))
        nodes.append(node)
    return tuple(nodes)
