"""From a graph on a mesh to a `Problem`.

Nodes: one an input (how it is stored), one an operator (its strategies), one an output (how it
leaves), and one *relay* for each value that is read more than once in a phase. An edge between
producer and reader costs the conversion, times the repeats of the reader's phase; so what crosses
from an earlier phase is converted again in each phase, and a gradient that was accumulated as
partial sums is reduced once, in apply. An alias is an edge back to its input.

A relay makes a shared conversion cost once and keeps the problem pairwise: its strategies are the
sets of copies that its readers start from (see `relay`).

What an operator computes from nothing, such as a mask, is never sent: every device can compute it
as it needs it, and XLA would merge or fold such a collective away.

Memory: see `lifetime` for values. With `copies`, what conversions make counts too, while it is
read: every operand then has a node of its own, which knows whether the operand is the value as it
is stored (nothing more is held) or a copy. A problem without them is a relaxation, and smaller by
half; `shard` begins with that. A result that is stored back into an input takes the input's place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from costmodel import Cluster
from numpy.typing import NDArray
from shardspec import Mesh, Spec

from autoshard.conversion import Converter, spec_set
from autoshard.graph import Graph, Value
from autoshard.lifetime import lifetimes, phase_ends
from autoshard.options import Options
from autoshard.problem import Array, Problem
from autoshard.relay import CopySet, copy_sets, making, own_copies, serving
from autoshard.strategy import stored_specs
from autoshard.tables import Column, column, compute_seconds, largest_part, operator_table

Copies = tuple[tuple[Spec, ...], ...]
"""Per strategy of a node that is no operator: the specs in which it makes a value available."""


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


@dataclass(frozen=True, slots=True)
class _Use:
    """One operand of an operator, or an output."""

    node: int
    asked: Column
    time: int | None
    """The operator's; `None` for what is stored back into an input, and so takes no memory."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A node that makes a value available: its producer, or a relay."""

    node: int
    specs: tuple[Spec, ...]
    sets: tuple[CopySet, ...]
    """Positions in `specs` that are available together."""
    of_set: NDArray[np.intp]
    """Per strategy: which of the sets."""

    def copies(self) -> Copies:
        """Per strategy the specs."""
        return tuple(tuple(self.specs[i] for i in self.sets[of]) for of in self.of_set)


class _Builder:
    """The growing lists of a problem, and who makes and reads each value."""

    def __init__(self, graph: Graph, mesh: Mesh, converter: Converter, *, copies: bool) -> None:
        self.graph = graph
        self.mesh = mesh
        self.converter = converter
        self.with_copies = copies
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

    def seconds(self, value: Value, src: tuple[Spec, ...], dst: tuple[Spec, ...]) -> Array:
        """The price of each conversion between distinct specs; `inf` to send a constant."""
        seconds = self.converter.seconds(value, spec_set(src), spec_set(dst))
        is_constant = value.name in self.graph.constants
        return np.where(seconds > 0.0, np.inf, seconds) if is_constant else seconds

    def connect(self, name: str, phase: int) -> None:
        """Edges from a value to those who read it in a phase, and the relays between them."""
        value, uses = self.graph.value(name), self.read[name, phase]
        node, part = self.produced[name]
        repeats = self.graph.phases[phase].repeats
        singles = tuple((i,) for i in range(len(part.distinct.specs)))
        source = _Source(node, part.distinct.specs, singles, part.index)
        times = [use.time for use in uses if use.time is not None]
        until = max(times, default=0) + 1
        if len(uses) > 1:
            asked = [spec for use in uses for spec in use.asked.distinct.specs]
            specs = tuple(dict.fromkeys((*source.specs, *asked)))
            sets, every = copy_sets(specs, self.seconds(value, specs, specs), len(uses))
            self.is_exact &= every
            # Without copies the interval is empty, and the bytes only break ties.
            held = (min(times, default=0), until if self.with_copies and times else 0)
            source = self.add_relay(value, source, specs, sets, repeats, held)
            self.relays[name, phase] = source.node
        by_node: dict[int, list[_Use]] = {}
        for use in uses:
            by_node.setdefault(use.node, []).append(use)
        for reader, of_node in by_node.items():
            cost = np.zeros((len(source.of_set), len(of_node[0].asked.index)))
            for position, use in enumerate(of_node):
                asked_specs = use.asked.distinct.specs
                if self.with_copies and use.time is not None:
                    of_use = tuple((i,) for i in range(len(asked_specs)))
                    held = (use.time, until)
                    own = self.add_relay(value, source, asked_specs, of_use, repeats, held)
                    is_it = np.array([copy[0] for copy in map(own.sets.__getitem__, own.of_set)])
                    match = is_it[:, None] == use.asked.index[None, :]
                    self.add_edge(own.node, reader, np.where(match, 0.0, np.inf))
                    continue
                seconds = serving(source.sets, self.seconds(value, source.specs, asked_specs))
                # a reader that asks for the same spec twice pays once
                again = [_same(use.asked, earlier.asked) for earlier in of_node[:position]]
                paid = seconds[np.ix_(source.of_set, use.asked.index)] * repeats
                cost += np.where(np.any(again, axis=0), 0.0, paid) if again else paid
            if not self.with_copies or of_node[0].time is None:
                self.add_edge(source.node, reader, cost)

    def add_relay(
        self,
        value: Value,
        source: _Source,
        specs: tuple[Spec, ...],
        sets: tuple[CopySet, ...],
        repeats: int,
        interval: tuple[int, int],
    ) -> _Source:
        """A node whose strategies are sets of copies of a value, and its edge from the source."""
        every = tuple(dict.fromkeys((*source.specs, *specs)))
        position = [every.index(spec) for spec in specs]
        moved = tuple(tuple(sorted(position[i] for i in held)) for held in sets)
        cost = making(moved, self.seconds(value, every, every))[: len(source.specs)]
        cost = serving(source.sets, cost)[source.of_set] * repeats
        sizes = [
            value.itemsize * largest_part(spec, value.shape, self.mesh.shape) for spec in specs
        ]
        usage = np.array([float(sum(sizes[i] for i in held)) for held in sets])
        of_set = np.arange(len(sets))
        if self.with_copies:
            of_set, own = own_copies(sets)
            usage = usage[of_set] - np.where(own < 0, 0.0, np.array(sizes, dtype=np.float64)[own])
            available = np.zeros((len(source.sets), len(every)), dtype=np.bool_)
            for i, held in enumerate(source.sets):
                available[i, held] = True
            there = available[source.of_set][:, np.array(position)[own]]
            cost = np.where((own < 0) | there, cost[:, of_set], np.inf)
        node = self.add_node(np.zeros(len(of_set)), usage, interval)
        self.add_edge(source.node, node, cost)
        relay = _Source(node, specs, sets, of_set)
        self.copies[node] = relay.copies()
        return relay


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
    builder = _Builder(graph, mesh, converter, copies=copies)
    life = lifetimes(graph, options.in_flight)
    inputs = {}
    for name in graph.inputs:
        value, held = graph.value(name), life[name]
        specs = stored_specs(value.shape, mesh.shape, options.uneven)
        part = column(specs, value.shape, mesh.shape)
        inputs[name] = builder.add_stored(value, part, (held.first, held.last), held.copies)
        builder.produced[name] = (inputs[name], part)
    in_place = {output.value for output in graph.outputs if output.alias is not None}
    for index, operator in enumerate(graph.operators):
        table = operator_table(operator.rule, mesh.shape, options.uneven, options.strided)
        read = [graph.value(name) for name in operator.inputs]
        made = [graph.value(name) for name in operator.outputs]
        cost = compute_seconds(operator, read, made, cluster.device, table)
        usage = np.zeros_like(cost)
        for value, part in zip(made, table.results, strict=True):
            if value.name not in in_place:
                usage += value.itemsize * life[value.name].copies * part.elements
        first = min(life[name].first for name in operator.outputs)
        last = max(life[name].last for name in operator.outputs)
        cost *= graph.phases[operator.phase].repeats
        node = builder.add_node(cost, usage, (first, last))
        for name, part in zip(operator.inputs, table.operands, strict=True):
            builder.add_use(name, operator.phase, _Use(node, part, index))
        for name, part in zip(operator.outputs, table.results, strict=True):
            builder.produced[name] = (node, part)
    outputs = _add_outputs(builder, uneven=options.uneven)
    for name, phase in builder.read:
        builder.connect(name, phase)
    problem = Problem(
        tuple(builder.costs),
        tuple(builder.edges),
        tuple(builder.edge_costs),
        tuple(builder.usages),
        tuple(builder.intervals),
    )
    return Built(problem, inputs, outputs, builder.relays, builder.copies, builder.is_exact)


def _add_outputs(builder: _Builder, *, uneven: bool) -> tuple[int, ...]:
    """A node for each output, but for what is stored back into an input: that is the input's."""
    graph, mesh_shape = builder.graph, builder.mesh.shape
    ends = phase_ends(graph)
    nodes = []
    for output in graph.outputs:
        value, phase = graph.value(output.value), graph.phase_of_output(output)
        if output.alias is not None:
            node, part = builder.produced[output.alias]
            time = None
        else:
            whole = (Spec.replicated(len(value.shape)),)
            specs = whole if output.whole else stored_specs(value.shape, mesh_shape, uneven)
            part = column(specs, value.shape, mesh_shape)
            # the copy that leaves is a copy like any other, read at the end of the phase
            node = builder.add_stored(value, part, (0, 0), 0)
            time = max(ends[phase] - 1, 0)
        if output.alias != output.value:
            builder.add_use(output.value, phase, _Use(node, part, time))
        nodes.append(node)
    return tuple(nodes)
