"""Builds the `Problem` of sharding a graph on a mesh.

Nodes: one for each input (its strategies are specs to store it in), operator (its strategies),
output (specs in which it leaves), and one *relay* for each value that is read more than once in a
phase. An edge between producer and reader costs the conversion times the repeats of the reader's
phase. So a value from an earlier phase is converted again in each phase that reads it, and a
gradient that was accumulated as partial sums is reduced once, in apply. An output that is stored
back into an input is an edge to that input's node.

With a relay, a shared conversion is paid for once and all costs stay pairwise: its strategies are
the sets of copies from which its readers start (see `copy_sets`). The tables of everything that is
alike are built once (see `structure` and `copy_edges`).

Values that depend on no input, such as a mask, are never sent: every device can compute the part
that it needs, and XLA would merge or fold such a collective away.

Memory: for values see `lifetime`. With `copies`, the results of conversions count too, while they
are read. Every operand then has a node, which tells whether the operand is the value as it is
stored (so nothing more is held) or a copy. The copy of a single operand is held while its operator
runs; a copy in a relay, from the first of the relay's readers to the last, although not all of them
may use it. So the problem counts too much where more than two operators read a value, and too
little where the separate copies of two operands turn out to be equal; `shard` therefore checks the
sharding that it gets (see `memory`). A problem without copies is a relaxation of half the size;
`shard` begins with that. A result that is stored back into an input takes the memory of the input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from costmodel import Device
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
    sent_seconds,
    stored_specs_of,
    table_of,
)


@dataclass(frozen=True, slots=True)
class Built:
    """A problem, and the meaning of its nodes; operator i is node `len(inputs) + i`."""

    problem: Problem
    inputs: dict[str, int]
    """The node of each input."""
    outputs: tuple[int, ...]
    """The node of each output; for an output with an alias, the node of that input."""
    relays: dict[tuple[str, int], int]
    """For each value and phase, the node of the copies that readers share."""
    copies: dict[int, Copies]
    """For every node that is not an operator, the specs of each strategy; inputs and outputs have
    one spec for each."""
    is_exact: bool
    """Whether every relay may hold all sets of copies that can be useful."""
    tables: tuple[OperatorTable, ...]
    """The strategies of each operator."""


@dataclass(frozen=True, slots=True)
class _Link:
    """The edges to one reader, from a value or from the copies that its readers share."""

    use: int
    """The index of the reader's first use in the reading."""
    own: Relay | None
    """The copy that only this operand reads, if the memory of copies counts."""
    seconds: Array
    """The table of making that copy; without one, that of the reader's conversions."""
    match: Array | None
    """The table that says which copy each strategy of the reader takes; `None` without a copy."""


@dataclass(frozen=True, slots=True)
class _Wiring:
    """Everything between a value and its readers in a phase."""

    shared: Relay | None
    """The copies that several readers share."""
    seconds: Array | None
    """The table of making these."""
    links: tuple[_Link, ...]


class _Builder:
    """A problem under construction."""

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
        """Add a node whose strategies are specs of a value, with `of_element` bytes an element."""
        usage = of_element * part.elements
        self.copies[len(self.costs)] = tuple((part.distinct.specs[i],) for i in part.index)
        self.costs.append(np.zeros_like(usage))
        self.usages.append(usage)

    def repeat(self, node: int) -> None:
        """Add a node like an earlier one."""
        if node in self.copies:
            self.copies[len(self.costs)] = self.copies[node]
        self.costs.append(self.costs[node])
        self.usages.append(self.usages[node])

    def add_edge(self, i: int, j: int, cost: Array) -> None:
        self.edges.append((i, j))
        self.edge_costs.append(cost)

    def wire(self, reading: Reading, wiring: _Wiring) -> None:
        """Add the edges from a value to its readers, and the relays between them."""
        node = reading.maker
        if wiring.shared is not None and wiring.seconds is not None:
            times = [time for time in reading.times if time is not None]
            # If the memory of copies does not count, the interval is empty and bytes break ties.
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
        """Add a node whose strategies are sets of copies, and the edge to it; returns the node."""
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
    device: Device,
    converter: Converter,
    options: Options,
    *,
    copies: bool = False,
) -> Built:
    """The problem of sharding a verified graph on the converter's mesh, without a memory limit.

    Args:
        graph: Verified.
        device: What each device of the mesh is; it prices the operators.
        converter: Prices the conversions on its mesh.
        options: Options of the problem; those of a single solve, such as limits, are not used.
        copies: Whether the memory of the results of conversions counts.
    """
    mesh_shape = converter.mesh.shape
    outline = outline_of(graph, options.in_flight, options.strided)
    tables = copy_tables_of(converter, copies)
    builder = _Builder(graph, outline, tables)
    stored = _add_inputs(builder, mesh_shape, options)
    of_operators = _add_operators(builder, mesh_shape, options, device)
    asked = _add_outputs(builder, stored, mesh_shape, options)
    wirings: dict[int, _Wiring] = {}
    pairs = zip(outline.readings, outline.readings_alike, strict=True)
    for index, (reading, first) in enumerate(pairs):
        if first == index:
            source = _source(graph, reading, stored, of_operators)
            uses = [
                asked[position] if operator < 0 else of_operators[operator].operands[position]
                for operator, position in reading.asked
            ]
            wirings[index] = _wiring(tables, graph, reading, source, uses)
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
    """Add a node for each input; returns the specs in which each may be stored."""
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
    """Add a node for each operator; returns the strategies of each."""
    graph, outline, tables = builder.graph, builder.outline, builder.tables
    of_operators: list[OperatorTable] = []
    n_inputs = len(graph.inputs)
    for index, (operator, first) in enumerate(zip(graph.operators, outline.operators, strict=True)):
        if first < index:
            of_operators.append(of_operators[first])
            builder.repeat(n_inputs + first)
            continue
        of_operators.append(table_of(graph, operator, mesh_shape, options))
        builder.costs.append(_costs(tables, graph, operator, of_operators[-1], device))
        builder.usages.append(_usage(tables, of_operators[-1], outline.held[index]))
    return tuple(of_operators)


def _add_outputs(
    builder: _Builder,
    stored: tuple[Column, ...],
    mesh_shape: tuple[int, ...],
    options: Options,
) -> list[Column]:
    """Add a node for each output that is not stored back into an input.

    Returns:
        The specs that each output may have.
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


def _source(
    graph: Graph,
    reading: Reading,
    stored: tuple[Column, ...],
    of_operators: tuple[OperatorTable, ...],
) -> Column:
    """The specs in which the value of a reading may be computed or stored."""
    if reading.maker < len(graph.inputs):
        return stored[reading.maker]
    index, position = graph.producers[reading.value]
    return of_operators[index].results[position]


def _wiring(
    tables: CopyTables, graph: Graph, reading: Reading, produced: Column, uses: list[Column]
) -> _Wiring:
    """Everything between a value and its readers in a phase.

    Args:
        tables: The tables of the mesh.
        graph: The program.
        reading: The value and its uses.
        produced: The specs in which the value may be computed or stored.
        uses: For each use, the specs that it needs.
    """
    name, repeats = reading.value, graph.phases[reading.phase].repeats
    kind = tables.kind(graph.value(name), is_constant=name in graph.constants)
    source, shared, seconds = tables.made(produced), None, None
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
        # operands of one reader that need the same specs share one copy
        for use in {id(uses[use]): use for use in of_node}.values():
            own, match = tables.own(kind, source, uses[use])
            links.append(_Link(use, own, tables.times(own.making, repeats), match))
    return _Wiring(shared, seconds, tuple(links))


def _costs(
    tables: CopyTables, graph: Graph, operator: Operator, table: OperatorTable, device: Device
) -> Array:
    """Seconds of all runs of an operator in a step, for each strategy, with what it sends."""
    operands, results = (
        list(map(graph.value, names)) for names in (operator.inputs, operator.outputs)
    )
    repeats = graph.phases[operator.phase].repeats
    computed = tables.times(compute_seconds(operator, operands, results, device, table), repeats)
    sent = sent_seconds(graph, operator, tables.converter.mesh, tables.converter.links, table)
    return computed if sent is None else frozen(computed + repeats * sent)


def _usage(tables: CopyTables, table: OperatorTable, held: tuple[int, ...]) -> Array:
    """Bytes of an operator's results, for each strategy.

    Args:
        tables: Keep the array, so that it is computed once.
        table: The operator's strategies.
        held: For each result, bytes of an element times the number of copies held.
    """

    def make() -> Array:
        usage = np.zeros(len(table.strategies))
        for n_bytes, part in zip(held, table.results, strict=True):
            usage += n_bytes * part.elements
        return frozen(usage)

    return tables.once(("usage", table, held), make)
