"""Equal layers: a model with most copies of its repeated layers left out, and the way back.

What a sharding of a long run of equal layers costs, that of a few tells: the first, one between,
and the last, whose neighbours differ. So a search needs to see three of each, however many there
are, and what it finds for those is what all others do.

Layers are equal if their operators are, and read and feed the same: their own values, those of the
neighbours, or the very same value from farther away. Numbers (scalars) do not matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from autoshard import Graph, Operator

from frontends.layers.layers import LayeredStep

COPIES = 3
"""Of equal layers in a row that are kept: one at either end, and one between."""


@dataclass(frozen=True)
class Repeated:
    """A step, the same with fewer copies of its repeated layers, and which stands for which."""

    whole: LayeredStep
    short: LayeredStep
    """Layers that are kept; their operators and values have their own names."""

    runs: tuple[tuple[int, int], ...]
    """First and last layer of each run of equal layers of the whole."""

    kept: tuple[int, ...]
    """The layer of the whole that each layer of the short step is."""

    def shortened(self, first: int, last: int) -> tuple[tuple[int, ...], int, int]:
        """What stands for layers `first` to `last`: the short layer of each, and their ends."""
        place = {layer: index for index, layer in enumerate(self.kept)}
        found: list[int] = []
        for begin, end in self.runs:
            low, high = max(first, begin), min(last, end)
            if low > high:
                continue
            there = [place[k] for k in range(begin, end + 1) if k in place]
            n = high - low + 1
            if n >= len(there):
                between = there[1] if len(there) > 1 else there[0]
                found += [there[0], *[between] * (n - 2), there[-1]] if n > 1 else there
            elif high == end:
                found += there[-n:]
            else:
                found += there[:n]
        return tuple(found), found[0], found[-1]


def without_repeats(layered: LayeredStep, marks: Mapping[str, Hashable] | None = None) -> Repeated:
    """Leave out all but three of equal layers in a row.

    Args:
        layered: The step.
        marks: Of values, such as the specs of pinned ones: layers are equal only if theirs are.
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
    """Nothing left out."""
    every = tuple(range(layered.n_layers))
    return Repeated(layered, layered, tuple((k, k) for k in every), every)


def _neighbourly(layered: LayeredStep) -> dict[str, tuple[int, int]]:
    """Values that only neighbours of their layer read: which neighbour, and the how many-th."""
    graph = layered.step.graph
    counts: dict[tuple[int, int], int] = defaultdict(int)
    found = {}
    for layer, operators in enumerate(layered.operators_of):
        for index in operators:
            for name in graph.operators[index].outputs:
                others = [k for k in layered.readers_of.get(name, ()) if k != layer]
                if len(others) == 1 and abs(others[0] - layer) == 1:
                    found[name] = (others[0] - layer, counts[layer, others[0]])
                    counts[layer, others[0]] += 1
    return found


def _described(layered: LayeredStep, marks: Mapping[str, Hashable]) -> list[Hashable]:
    """Per layer all that makes it equal to another."""
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
    """The step with only the layers `kept`."""
    graph = layered.step.graph
    own, near = layered.own_values, _neighbourly(layered)
    place = {name: (layer, i) for layer, names in enumerate(own) for i, name in enumerate(names)}
    index = {layer: i for i, layer in enumerate(kept)}
    run_of = {
        k: [r for r in range(a, b + 1) if r in index] for a, b in runs for k in range(a, b + 1)
    }
    by_nearness = {(place[n][0], *near[n]): n for n in near}

    def instead(reader: int, name: str) -> str:
        """What a kept layer reads in place of a value, which may be made in one that is not."""
        if name not in place or place[name][0] == reader or name not in graph.producers:
            return name
        layer, position = place[name]
        if name in near:  # of its neighbour among those that are kept
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
    made = {name for op in operators for name in op.outputs}
    outputs = tuple(o for o in graph.outputs if o.value in made)
    values = tuple(value for value in graph.values if value.name not in lost)
    short = Graph(graph.phases, values, tuple(operators), inputs, outputs)
    step = replace(
        layered.step, graph=short, summed=tuple(n for n in layered.step.summed if n in made)
    )
    layer_of = {op.name: index[layered.layer_of[op.name]] for op in operators}
    home = {name: _near(index, layered.home[name], run_of) for name in inputs}
    return LayeredStep(step, len(kept), layer_of, home)


def _near(index: Mapping[int, int], layer: int, run_of: Mapping[int, list[int]]) -> int:
    """The short layer of a layer, or of one that it is equal to."""
    return index[layer if layer in index else run_of[layer][0]]
