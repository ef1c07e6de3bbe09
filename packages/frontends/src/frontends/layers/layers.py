"""Cut a step into layers, the units that stages are made of, and extract runs of them.

Forward operators are clustered in program order (Alpa Eq. 6); casts of weights, masks and the like
are made where they are read. Backward operators follow the forward values they read, as Alpa's
colocation asks (§5.1), without marks. Apply follows the state that it updates. The result is a
graph that can be cut between any two layers: whatever crosses a cut is known by name, and flows
forwards in forward, backwards in backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import stagecut
from autoshard import Graph, Operator, Output

from frontends.layers.layer_assignment import (
    add_in_apply,
    hand_over_totals,
    in_levels,
    place_apply,
    place_backward,
    place_constants,
    sum_where_kept,
)
from frontends.layers.repeated_blocks import blocks_of, boundaries_of
from frontends.plan.plan_fields import PlanFields, TransferPhase
from frontends.step.step import FORWARD, PHASE_NAMES, Step

_DEFAULT_LAYERS = 8


@dataclass(frozen=True)
class LayeredStep:
    """A step whose every operator and every argument has a layer."""

    step: Step
    n_layers: int
    layer_of: Mapping[str, int]
    """By operator name."""

    home: Mapping[str, int]
    """By input name: the layer where it is kept. Other layers that read it get a copy."""

    @cached_property
    def updated(self) -> frozenset[str]:
        """The inputs that the step returns a new version of: parameters, optimizer state."""
        return frozenset(o.alias for o in self.step.graph.outputs if o.alias is not None)

    @cached_property
    def operators_of(self) -> tuple[tuple[int, ...], ...]:
        """Per layer its operators, as indices in program order."""
        found: list[list[int]] = [[] for _ in range(self.n_layers)]
        for index, op in enumerate(self.step.graph.operators):
            found[self.layer_of[op.name]].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def readers_of(self) -> dict[str, tuple[int, ...]]:
        """Per value that is read the layers that read it, in order."""
        found: dict[str, set[int]] = defaultdict(set)
        for op in self.step.graph.operators:
            for name in op.inputs:
                found[name].add(self.layer_of[op.name])
        return {name: tuple(sorted(layers)) for name, layers in found.items()}

    @cached_property
    def own_values(self) -> list[list[str]]:
        """Per layer, in an order that is the same for equal layers: its inputs, and what it makes.

        Its inputs are those that no other layer reads or keeps.
        """
        graph = self.step.graph
        found: list[list[str]] = [[] for _ in range(self.n_layers)]
        for name in graph.inputs:
            layers = {*self.readers_of.get(name, ())} | {self.home[name]}
            if len(layers) == 1:
                found[layers.pop()].append(name)
        for layer, operators in enumerate(self.operators_of):
            found[layer] += [name for i in operators for name in graph.operators[i].outputs]
        return found

    @cached_property
    def kept_in(self) -> tuple[tuple[str, ...], ...]:
        """Per layer the inputs that the step updates and that are kept there."""
        found: list[list[str]] = [[] for _ in range(self.n_layers)]
        for name in self.step.graph.inputs:
            if name in self.updated:
                found[self.home[name]].append(name)
        return tuple(map(tuple, found))

    @cached_property
    def _outputs_of(self) -> dict[str, list[int]]:
        """Per value its places among the graph's outputs."""
        found: dict[str, list[int]] = defaultdict(list)
        for index, output in enumerate(self.step.graph.outputs):
            found[output.value].append(index)
        return found

    @cached_property
    def _place_of(self) -> dict[str, int]:
        """Per input its place."""
        return {name: index for index, name in enumerate(self.step.graph.inputs)}

    def exchanges(
        self, spans: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[str, TransferPhase, int, int]]:
        """What stages send each other: value, who makes it, source and destination.

        Args:
            spans: First and last layer, included, of every stage.
        """
        graph = self.step.graph
        stage_of_layer = {k: i for i, (a, b) in enumerate(spans) for k in range(a, b + 1)}
        stage_of = {name: stage_of_layer[k] for name, k in self.layer_of.items()}
        for name in graph.inputs:
            if name in self.updated:
                home = stage_of_layer[self.home[name]]
                readers = {stage_of_layer[k] for k in self.readers_of.get(name, ())}
                yield from ((name, "state", home, to) for to in sorted(readers - {home}))
        for name, (source, destinations) in crossings(graph, stage_of).items():
            producer, _ = graph.producers[name]
            phase = PHASE_NAMES[graph.operators[producer].phase]
            yield from ((name, phase, source, to) for to in destinations)

    def stage(self, first: int, last: int) -> Graph:
        """The program of layers `first` to `last`, both included.

        What other layers make is an input of role `activation`, and what they keep one of its own
        role; values that other layers read are outputs of any layout without partial sums.
        """
        if (first, last) not in self._stages:
            self._stages[first, last] = self._extracted(first, last)
        return self._stages[first, last]

    @cached_property
    def _stages(self) -> dict[tuple[int, int], Graph]:
        """Those that were asked for: planning asks again and again for the same ones."""
        return {}

    def _extracted(self, first: int, last: int) -> Graph:
        graph = self.step.graph
        own = sorted(i for k in range(first, last + 1) for i in self.operators_of[k])
        inside = [graph.operators[i] for i in own]
        made = {name for op in inside for name in op.outputs}
        read = {name for op in inside for name in op.inputs}
        kept = {name for k in range(first, last + 1) for name in self.kept_in[k]}
        stored = kept | {name for name in read if name in self._place_of}
        inputs = sorted(stored, key=self._place_of.__getitem__)
        received = sorted(read - made - stored, key=graph.producers.__getitem__)
        places = sorted(i for name in made for i in self._outputs_of.get(name, ()))
        outputs = [graph.outputs[i] for i in places]
        for op in inside:
            for name in op.outputs:
                readers = self.readers_of.get(name)
                if readers and not first <= readers[0] <= readers[-1] <= last:
                    outputs.append(Output(name))
        values = [graph.value(name) for name in inputs]
        values += [replace(graph.value(name), role="activation") for name in received]
        values += [graph.value(name) for op in inside for name in op.outputs]
        return Graph(
            graph.phases, tuple(values), tuple(inside), (*inputs, *received), tuple(outputs)
        )


def layer(step: Step, n_layers: int | None = None) -> LayeredStep:
    """Give every operator and argument of `step` a layer.

    Args:
        step: From a frontend's trace.
        n_layers: How many layers at most. By default one for each copy of the blocks that the
            model repeats, so that equal blocks are equal layers; where none repeat, one for each
            eighth of the heavy work, as Alpa finds that the exact number matters little (§5.2).
    """
    graph = step.graph
    with_examples = _depends_on_batch(graph)
    forward = [op for op in graph.operators if op.name in with_examples]
    spans = blocks_of(graph, forward) if n_layers is None else None
    if spans is None:
        wanted = min(_DEFAULT_LAYERS if n_layers is None else n_layers, len(forward))
        spans = _cluster(graph, forward, wanted) if forward else ((0, -1),)
    layer_of = {
        op.name: index
        for index, (first, last) in enumerate(spans)
        for op in forward[first : last + 1]
    }
    place_constants(graph, layer_of)
    place_backward(graph, layer_of, len(spans))
    sum_where_kept(step, layer_of)
    step = add_in_apply(step, layer_of)
    home = place_apply(step.graph, layer_of)
    step = hand_over_totals(step, layer_of)
    step = replace(step, graph=in_levels(step.graph, layer_of))
    return LayeredStep(step, len(spans), layer_of, home)


def layer_as(step: Step, plan: PlanFields) -> LayeredStep:
    """The layers that a plan was made with: those of the default, or as many as it has.

    Copies of stages have more operators than the layers without.
    """
    n_layers = plan.stages[-1].last_layer + 1
    found = layer(step)
    if found.n_layers == n_layers and all(
        {found.layer_of[p.operator] for p in stage.placements if p.operator in found.layer_of}
        <= {*range(stage.first_layer, stage.last_layer + 1)}
        for stage in plan.stages
    ):
        return found
    return layer(step, n_layers)


def _depends_on_batch(graph: Graph) -> set[str]:
    """The operators of forward that compute with examples."""
    varying = {name for name in graph.inputs if graph.value(name).role == "batch"}
    found = set()
    for op in graph.operators:
        if op.phase == FORWARD and not varying.isdisjoint(op.inputs):
            found.add(op.name)
            varying.update(op.outputs)
    return found


def _cluster(
    graph: Graph, forward: Sequence[Operator], n_layers: int
) -> tuple[tuple[int, int], ...]:
    boundaries = boundaries_of(graph, forward)
    flops = [op.flops for op in forward]
    try:
        return stagecut.cluster_operators(flops, boundaries, n_layers)
    except stagecut.InfeasibleClusteringError as error:
        return stagecut.cluster_operators(flops, boundaries, n_layers, delta=error.smallest_delta)


def crossings(graph: Graph, stage_of: Mapping[str, int]) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Values made in one stage and read in others: name -> (source, destinations)."""
    made = {name: stage_of[op.name] for op in graph.operators for name in op.outputs}
    readers: dict[str, set[int]] = defaultdict(set)
    for op in graph.operators:
        for name in op.inputs:
            if name in made and made[name] != stage_of[op.name]:
                readers[name].add(stage_of[op.name])
    return {name: (made[name], tuple(sorted(readers[name]))) for name in made if name in readers}
