"""From a graph on a mesh to a `Problem`.

Nodes: one an input (how it is stored), one an operator (its strategies), one an output (how it
leaves), and one *relay* for each value that is read more than once in a phase. An edge between
producer and reader costs the conversion, times the repeats of the reader's phase; so what crosses
from an earlier phase is converted again in each phase, and a gradient that was accumulated as
partial sums is reduced once, in apply. An alias is an edge back to its input.

A relay makes a shared conversion cost once and keeps the problem pairwise: its strategies are the
sets of copies that its readers start from (see `copy_sets`). Tables are made once for all that is
alike (see `structure` and `copy_edges`).

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

from dataclasses import dataclass

import numpy as np
from costmodel import Cluster, Device
from shardspec import Spec

from autoshard.base.arrays import Array, frozen
from autoshard.graph.graph import Graph
from autoshard.graph.graph_fields import Operator
from autoshard.graph.outline import Outline, Reading
from autoshard.graph.structure import outline_of
from autoshard.problem.copy_edges import Copies, CopyTables, Relay, copy_tables_of
from autoshard.problem.problem import Problem
from autoshard.space.conversion import Converter
from autoshard.space.options import Options
from autoshard.space.strategy_tables import (
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
class _Link:
    """What leads to one reader, from a value or from the copies that its readers share."""

    use: int
    """The first of the reading's uses that is this reader's."""
    own: Relay | None
    """The copy that only this operand reads, where the memory of copies counts."""
    seconds: Array
    """Of making that copy, or else of what the reader asks for."""
    match: Array | None
    """Which copies the strategies of the reader take."""


@dataclass(frozen=True, slots=True)
class _Wiring:
    """What is between a value and all that read it in a phase."""

    shared: Relay | None
    seconds: Array | None
    """Of making the copies that are shared."""
    links: tuple[_Link, ...]


class _Builder:
    """The growing lists of a problem."""

    def __init__(self, graph: Graph, outline: Outline, tables: CopyTables) -> None:
        self.graph = graph
        self.outline = outline
        self.tables = tables
        self.costs: list[Array] = []
        self.usages: list[Array] = []
        self.intervals = list(outline.intervals)
        self.edges: list[tuple[int, int]] = []
        self.edge_costs: list[Array] = []
        self.relays: dict[tuple[str, int], int] = {}
        self.copies: dict[int, Copies] = {}
        self.is_exact = True

    def add_stored(self, part: Column, of_element: int) -> None:
        """A node for how a value lies, with that many bytes of an element."""
        usage = of_element * part.elements
        self.copies[len(self.costs)] = tuple((part.distinct.specs[i],) for i in part.index)
        self.costs.append(np.zeros_like(usage))
        self.usages.append(usage)

    def repeat(self, node: int) -> None:
        """A node like an earlier one."""
        if node in self.copies:
            self.copies[len(self.costs)] = self.copies[node]
        self.costs.append(self.costs[node])
        self.usages.append(self.usages[node])

    def add_edge(self, i: int, j: int, cost: Array) -> None:
        self.edges.append((i, j))
        self.edge_costs.append(cost)

    def wire(self, reading: Reading, wiring: _Wiring) -> None:
        """Edges from a value to those who read it, and the relays between them."""
        node = reading.maker
        if wiring.shared is not None and wiring.seconds is not None:
            times = [time for time in reading.times if time is not None]
            # Without their memory the interval is empty, and the bytes only break ties.
            until = max(times) + 1 if self.tables.with_memory and times else 0
            held = min(times, default=0), until
            node = self.add_relay(node, wiring.shared, wiring.seconds, held)
            self.relays[reading.value, reading.phase] = node
        for link in wiring.links:
            reader = reading.readers[link.use]
            if link.own is None or link.match is None:
                self.add_edge(node, reader, link.seconds)
                continue
            begin = reading.times[link.use] or 0
            own = self.add_relay(node, link.own, link.seconds, (begin, begin + 1))
            self.add_edge(own, reader, link.match)

    def add_relay(
        self, source: int, relay: Relay, seconds: Array, interval: tuple[int, int]
    ) -> int:
        """A node whose strategies are sets of copies of a value, and its edge from the source."""
        node = len(self.costs)
        self.costs.append(
            self.tables.once(("nothing", relay), lambda: frozen(np.zeros_like(relay.usage)))
        )
        self.usages.append(relay.usage)
        self.intervals.append(interval)
        self.add_edge(source, node, seconds)
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
    mesh_shape = converter.mesh.shape
    outline = outline_of(graph, options.in_flight, options.strided)
    tables = copy_tables_of(converter, copies)
    builder = _Builder(graph, outline, tables)
    stored = _add_inputs(builder, mesh_shape, options)
    of_operators = _add_operators(builder, mesh_shape, options, cluster.device)
    asked = _add_outputs(builder, stored, mesh_shape, options)
    wirings: dict[int, _Wiring] = {}
    pairs = zip(outline.readings, outline.readings_alike, strict=True)
    for index, (reading, first) in enumerate(pairs):
        if first == index:
            made = _made(graph, reading, stored, of_operators)
            uses = [
                asked[position] if operator < 0 else of_operators[operator].operands[position]
                for operator, position in reading.asked
            ]
            wirings[index] = _wiring(tables, graph, reading, made, uses)
        builder.wire(reading, wirings[first])
    problem = Problem(
        tuple(builder.costs),
        tuple(builder.edges),
        tuple(builder.edge_costs),
        tuple(builder.usages),
        tuple(builder.intervals),
    )
    inputs = {name: node for node, name in enumerate(graph.inputs)}
    where = (inputs, outline.outputs, builder.relays, builder.copies)
    return Built(problem, *where, builder.is_exact, of_operators)


def _add_inputs(
    builder: _Builder, mesh_shape: tuple[int, ...], options: Options
) -> tuple[Column, ...]:
    """A node for each input; the specs that it may be stored in."""
    graph, outline, parts = builder.graph, builder.outline, list[Column]()
    for node, (name, first) in enumerate(zip(graph.inputs, outline.inputs, strict=True)):
        if first < node:
            parts.append(parts[first])
            builder.repeat(first)
            continue
        value = graph.value(name)
        specs = stored_specs_of(graph, name, mesh_shape, options)
        parts.append(column(specs, value.shape, mesh_shape))
        builder.add_stored(parts[-1], value.itemsize * outline.copies[node])
    return tuple(parts)


def _add_operators(
    builder: _Builder, mesh_shape: tuple[int, ...], options: Options, device: Device
) -> tuple[OperatorTable, ...]:
    """A node for each operator; its strategies."""
    graph, outline, tables = builder.graph, builder.outline, builder.tables
    found: list[OperatorTable] = []
    n_inputs = len(graph.inputs)
    for index, (operator, first) in enumerate(zip(graph.operators, outline.operators, strict=True)):
        if first < index:
            found.append(found[first])
            builder.repeat(n_inputs + first)
            continue
        found.append(table_of(graph, operator, mesh_shape, options))
        builder.costs.append(_seconds(tables, graph, operator, found[-1], device))
        builder.usages.append(_usage(tables, found[-1], outline.held[index]))
    return tuple(found)


def _add_outputs(
    builder: _Builder,
    stored: tuple[Column, ...],
    mesh_shape: tuple[int, ...],
    options: Options,
) -> list[Column]:
    """A node for each output, but for what is stored back into an input: that is the input's.

    Returns:
        What is asked of each output.
    """
    graph, asked = builder.graph, list[Column]()
    for output, node in zip(graph.outputs, builder.outline.outputs, strict=True):
        if output.alias is not None:
            asked.append(stored[node])
            continue
        value = graph.value(output.value)
        specs = stored_specs_of(graph, output.value, mesh_shape, options)
        if output.whole:
            specs = (Spec.replicated(len(value.shape)),)
        asked.append(column(specs, value.shape, mesh_shape))
        builder.add_stored(asked[-1], 0)
    return asked


def _made(
    graph: Graph,
    reading: Reading,
    stored: tuple[Column, ...],
    of_operators: tuple[OperatorTable, ...],
) -> Column:
    """The specs that the value which is read may be made or stored in."""
    if reading.maker < len(graph.inputs):
        return stored[reading.maker]
    index, position = graph.producers[reading.value]
    return of_operators[index].results[position]


def _wiring(
    tables: CopyTables, graph: Graph, reading: Reading, made: Column, uses: list[Column]
) -> _Wiring:
    """What is between a value and its readers, on one mesh."""
    name, repeats = reading.value, graph.phases[reading.phase].repeats
    kind = tables.kind(graph.value(name), is_constant=name in graph.constants)
    source, shared, seconds = tables.made(made), None, None
    if len(uses) > 1:
        shared = tables.shared(kind, source, tuple(uses))
        seconds, source = tables.times(shared.making, repeats), shared.available
    by_node: dict[int, list[int]] = {}
    for use, node in enumerate(reading.readers):
        by_node.setdefault(node, []).append(use)
    links = []
    for of_node in by_node.values():
        asked = tuple(uses[use] for use in of_node)
        if not tables.with_memory or reading.times[of_node[0]] is None:
            price = tables.times(tables.reading(kind, source, asked), repeats)
            links.append(_Link(of_node[0], None, price, None))
            continue
        # operands that are asked for alike are one copy
        for use in {id(uses[use]): use for use in of_node}.values():
            own, match = tables.own(kind, source, uses[use])
            links.append(_Link(use, own, tables.times(own.making, repeats), match))
    return _Wiring(shared, seconds, tuple(links))


def _seconds(
    tables: CopyTables, graph: Graph, operator: Operator, table: OperatorTable, device: Device
) -> Array:
    """Per strategy, of all runs in a step."""
    read, made = (list(map(graph.value, names)) for names in (operator.inputs, operator.outputs))
    seconds = compute_seconds(operator, read, made, device, table)
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
        return frozen(usage)

    return tables.once(("usage", table, held), make)
