"""Computes a graph's outline, from which a problem is built on any mesh.

A graph of many layers has few different operators, and few different ways in which values are read.
Which of them are alike does not depend on the mesh. So the outline is computed once for a graph,
and on each mesh only the first of those that are alike is priced (see `from_graph`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from autoshard.graph.graph import Graph
from autoshard.graph.lifetime import Lifetime, phase_ends
from autoshard.graph.outline import Outline, Reading
from autoshard.graph.rule import Rule


def outline_of(graph: Graph, in_flight: int, strided: bool) -> Outline:
    """The outline of a graph; computed at the first call, then kept with the graph.

    Args:
        graph: Verified.
        in_flight: Microbatches whose saved activations are held.
        strided: Whether shards may be strided; then values are alike only if their dims may also
            be cut into the same numbers of pieces.
    """
    key = in_flight, strided
    if key not in graph.outlines:
        graph.outlines[key] = _Drawing(graph, graph.lifetimes_of(in_flight), strided).outline()
    return graph.outlines[key]


class _Drawing:
    """An outline under construction."""

    def __init__(self, graph: Graph, life: dict[str, Lifetime], strided: bool) -> None:
        self._graph, self._life, self._strided = graph, life, strided
        self._input = {name: index for index, name in enumerate(graph.inputs)}
        self._n_inputs = len(graph.inputs)
        self._read: dict[tuple[str, int], list[tuple[int, tuple[int, int], int | None]]] = {}

    def outline(self) -> Outline:
        graph, life = self._graph, self._life
        kinds = {value.name: (value.shape, value.dtype) for value in graph.values}
        pieces = graph.pieces if self._strided else dict.fromkeys(kinds)
        in_place = {output.value for output in graph.outputs if output.alias is not None}
        intervals = [(life[name].first, life[name].last) for name in graph.inputs]
        inputs = _firsts((kinds[n], life[n].copies, pieces[n]) for n in graph.inputs)
        held = []
        likenesses: list[Hashable] = []
        rules: dict[Rule, int] = {}
        by_id: dict[int, int] = {}  # repeated layers may share rules, which are slow to compare
        for index, op in enumerate(graph.operators):
            lives = [life[name] for name in op.outputs]
            first, last = min(one.first for one in lives), max(one.last for one in lives)
            intervals.append((first, last))
            sizes = [
                0 if name in in_place else graph.value(name).itemsize * one.copies
                for name, one in zip(op.outputs, lives, strict=True)
            ]
            held.append(tuple(sizes))
            names = (*op.inputs, *op.outputs)
            if id(op.rule) not in by_id:
                by_id[id(op.rule)] = rules.setdefault(op.rule, len(rules))
            rule = by_id[id(op.rule)]
            likeness = (
                rule,
                op.flops,
                op.accesses,
                op.phase,
                *(kinds[n][1] for n in names),
                *sizes,
            )
            likenesses.append(
                (*likeness, *(pieces[n] for n in names)) if self._strided else likeness
            )
            for position, name in enumerate(op.inputs):
                self._use(name, op.phase, self._n_inputs + index, (index, position), index)
        operators = _firsts(likenesses)
        outputs = self._outputs(intervals)
        readings = tuple(self._reading(*key) for key in self._read)

        def asked(operator: int, position: int) -> Hashable:
            if operator >= 0:
                return operators[operator], position
            output = graph.outputs[position]
            if output.alias is not None:
                return "input", inputs[self._input[output.alias]]
            return output.whole, kinds[output.value][0], pieces[output.value]

        def likeness_of(reading: Reading) -> Hashable:
            name, numbers = reading.value, {node: n for n, node in enumerate(reading.readers)}
            if reading.maker < self._n_inputs:
                maker: Hashable = inputs[reading.maker]
            else:
                index, position = graph.producers[name]
                maker = operators[index], position
            return (
                *(kinds[name], name in graph.constants, maker, graph.phases[reading.phase].repeats),
                tuple(asked(*one) for one in reading.asked),
                tuple(numbers[node] for node in reading.readers),
                tuple(time is None for time in reading.times),
            )

        alike = _firsts(map(likeness_of, readings))
        copies = tuple(life[name].copies for name in graph.inputs)
        nodes = outputs, tuple(intervals)
        return Outline(inputs, copies, operators, tuple(held), *nodes, readings, alike)

    def _outputs(self, intervals: list[tuple[int, int]]) -> tuple[int, ...]:
        """The node of each output; records each output as a use of its value.

        Outputs that are stored back into an input have that input's node, all others a new one.
        """
        graph, ends = self._graph, phase_ends(self._graph)
        nodes = []
        for index, output in enumerate(graph.outputs):
            phase, time = graph.phase_of_output(output), None
            if output.alias is not None:
                node = self._input[output.alias]
            else:
                # the copy that leaves is like any other copy, read at the end of the phase
                node, time = len(intervals), max(ends[phase] - 1, 0)
                intervals.append((0, 0))
            if output.alias != output.value:
                self._use(output.value, phase, node, (-1, index), time)
            nodes.append(node)
        return tuple(nodes)

    def _use(
        self, name: str, phase: int, node: int, asked: tuple[int, int], time: int | None
    ) -> None:
        self._read.setdefault((name, phase), []).append((node, asked, time))

    def _reading(self, name: str, phase: int) -> Reading:
        readers, asked, times = zip(*self._read[name, phase], strict=True)
        if name in self._input:
            maker = self._input[name]
        else:
            maker = self._n_inputs + self._graph.producers[name][0]
        return Reading(name, phase, maker, readers, asked, times)


def _firsts(likenesses: Iterable[Hashable]) -> tuple[int, ...]:
    """For each item the index of the first one that is equal to it."""
    known: dict[Hashable, int] = {}
    return tuple(known.setdefault(one, index) for index, one in enumerate(likenesses))
