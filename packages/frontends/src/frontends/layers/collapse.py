"""Collapse runs of equal layers to three layers each, so that a search is fast.

The cost of a long run of equal layers follows from that of a few: the first, one between, and the
last. (The first and last have other neighbours.) So a search sees at most three layers of each run,
however long it is, and the layers that are left out do what the one between does.

Layers are equal if their operators are, and if these read and feed corresponding values: their own
ones, those of a neighbour, or the very same value from farther away. It does not matter which
scalars they read from elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from autoshard import Graph, Operator

from frontends.layers.layers import LayeredStep

COPIES = 3
"""Layers that are kept of a run of equal ones: one at either end, and one between."""


@dataclass(frozen=True)
class Repeated:
    """A step, the same step with fewer repeated layers, and the relation between their layers."""

    whole: LayeredStep
    short: LayeredStep
    """The layers that are kept. Operators and values have the names that they have in `whole`."""

    runs: tuple[tuple[int, int], ...]
    """First and last layer, in `whole`, of each run of equal layers."""

    kept: tuple[int, ...]
    """By layer of `short`, the layer of `whole` that it is."""

    def shortened(self, first: int, last: int) -> tuple[tuple[int, ...], int, int]:
        """The short layer that stands for each of the layers `first` to `last`.

        Returns:
            By layer from `first` to `last`, its short layer; then the first and the last of these.
        """
        index = {layer: i for i, layer in enumerate(self.kept)}
        chosen: list[int] = []
        for begin, end in self.runs:
            low, high = max(first, begin), min(last, end)
            if low > high:
                continue
            available = [index[k] for k in range(begin, end + 1) if k in index]
            n = high - low + 1
            if n >= len(available):
                between = available[1] if len(available) > 1 else available[0]
                chosen += (
                    [available[0], *[between] * (n - 2), available[-1]] if n > 1 else available
                )
            elif high == end:
                chosen += available[-n:]
            else:
                chosen += available[:n]
        return tuple(chosen), chosen[0], chosen[-1]


def without_repeats(layered: LayeredStep, marks: Mapping[str, Hashable] | None = None) -> Repeated:
    """Leave out all but three layers of each run of equal ones.

    Args:
        layered: The step.
        marks: Marks of values, such as the specs of pinned ones. Layers are equal only if the marks
            of their values are.
    """
    described = _described(layered, marks or {})
    runs, first = [], 0
    for _, equal in groupby(described):
        n = len(list(equal))
        runs.append((first, first + n - 1))
        first += n
    kept: list[int] = []
    for begin, end in runs:
        kept += [*range(begin, min(begin + COPIES - 1, end)), end]
    if len(kept) == layered.n_layers:
        return Repeated(layered, layered, tuple(runs), tuple(kept))
    return Repeated(layered, _short(layered, runs, kept), tuple(runs), tuple(kept))


def all_layers(layered: LayeredStep) -> Repeated:
    """The step without any layer left out."""
    every = tuple(range(layered.n_layers))
    return Repeated(layered, layered, tuple((k, k) for k in every), every)


def _neighbourly(layered: LayeredStep) -> dict[str, tuple[int, int]]:
    """Values that, outside their layer, only one neighbour reads.

    Returns:
        By value: -1 or 1 for the previous or next layer, and the value's number among those that
        its layer sends to this neighbour.
    """
    graph = layered.step.graph
    counts: dict[tuple[int, int], int] = defaultdict(int)
    near = {}
    for layer, operators in enumerate(layered.operators_of):
        for index in operators:
            for name in graph.operators[index].outputs:
                others = [k for k in layered.readers_of.get(name, ()) if k != layer]
                if len(others) == 1 and abs(others[0] - layer) == 1:
                    near[name] = (others[0] - layer, counts[layer, others[0]])
                    counts[layer, others[0]] += 1
    return near


def _described(layered: LayeredStep, marks: Mapping[str, Hashable]) -> list[Hashable]:
    """By layer, a description that is the same for equal layers."""
    graph = layered.step.graph
    own, near = layered.own_values, _neighbourly(layered)
    place = {name: (layer, i) for layer, names in enumerate(own) for i, name in enumerate(names)}
    leaves: dict[str, list[tuple[object, bool]]] = defaultdict(list)
    for output in graph.outputs:
        alias = output.alias and place.get(output.alias, (None, output.alias))[1]
        leaves[output.value].append((alias, output.whole))

    def value(layer: int, name: str) -> Hashable:
        its = graph.value(name)
        kind = (its.shape, its.dtype, its.role, marks.get(name))
        if place.get(name, (None, 0))[0] == layer:
            return ("own", place[name][1], kind)
        if its.shape == ():
            return ("number", kind)
        if name in near:
            return ("near", near[name], kind)
        return ("far", name)

    def sent(name: str) -> Hashable:
        readers = layered.readers_of.get(name, ())
        if name in near:
            return near[name]
        layer = place[name][0] if name in place else None
        return any(k != layer for k in readers) and (graph.value(name).shape == () or name)

    described: list[Hashable] = []
    for layer, operators in enumerate(layered.operators_of):
        every = tuple(
            (
                op.kind,
                op.rule,
                op.flops,
                op.accesses,
                op.phase,
                tuple(value(layer, name) for name in op.inputs),
                tuple((value(layer, name), sent(name)) for name in op.outputs),
                tuple(tuple(leaves.get(name, ())) for name in op.outputs),
            )
            for op in map(graph.operators.__getitem__, operators)
        )
        described.append((every, tuple(value(layer, name) for name in own[layer])))
    return described


def _short(
    layered: LayeredStep, runs: Sequence[tuple[int, int]], kept: Sequence[int]
) -> LayeredStep:
    """The step with the layers `kept` only."""
    graph = layered.step.graph
    own, near = layered.own_values, _neighbourly(layered)
    place = {name: (layer, i) for layer, names in enumerate(own) for i, name in enumerate(names)}
    index = {layer: i for i, layer in enumerate(kept)}
    run_of = {
        k: [r for r in range(a, b + 1) if r in index] for a, b in runs for k in range(a, b + 1)
    }
    by_nearness = {(place[n][0], *near[n]): n for n in near}

    def instead(reader: int, name: str) -> str:
        """What a kept layer reads in place of a value, whose layer may be left out."""
        if name not in place or place[name][0] == reader or name not in graph.producers:
            return name
        layer, position = place[name]
        if name in near:  # the corresponding value of its neighbour among the kept layers
            neighbour = kept[index[reader] - near[name][0]]
            return by_nearness[neighbour, *near[name]]
        if layer in index:
            return name
        return own[run_of[layer][0]][position]

    operators: list[Operator] = []
    for op in graph.operators:
        layer = layered.layer_of[op.name]
        if layer in index:
            inputs = tuple(instead(layer, name) for name in op.inputs)
            operators.append(op if inputs == op.inputs else replace(op, inputs=inputs))
    lost = {name for k in range(layered.n_layers) if k not in index for name in own[k]}
    inputs = tuple(name for name in graph.inputs if name not in lost)
    produced = {name for op in operators for name in op.outputs}
    outputs = tuple(o for o in graph.outputs if o.value in produced)
    values = tuple(value for value in graph.values if value.name not in lost)
    short = Graph(graph.phases, values, tuple(operators), inputs, outputs)
    step = replace(
        layered.step, graph=short, summed=tuple(n for n in layered.step.summed if n in produced)
    )
    layer_of = {op.name: index[layered.layer_of[op.name]] for op in operators}
    home = {name: _near(index, layered.home[name], run_of) for name in inputs}
    return LayeredStep(step, len(kept), layer_of, home, layered.local, layered.held)


def _near(index: Mapping[int, int], layer: int, run_of: Mapping[int, list[int]]) -> int:
    """The short layer of a layer; if it is left out, that of the first kept one of its run."""
    return index[layer if layer in index else run_of[layer][0]]
