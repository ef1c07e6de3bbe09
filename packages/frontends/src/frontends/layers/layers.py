"""Cut a step into layers, of which stages are runs, and extract the graph of such a run.

Forward operators are clustered in program order (Alpa Eq. 6); operators that read no example, such
as casts of weights and masks, go to the layer that reads their results. Backward operators go to
the layer of the forward values that they read, as Alpa colocates them (§5.1), but without markers
in the user's code. Apply goes to the layer of the state that it updates. The result is a graph that
can be cut between any two layers: each value that crosses a cut is known by name, and flows to
later layers in forward and to earlier ones in backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import stagecut
from autoshard import Graph, Operator, Output

from frontends.layers.layer_assignment import (
    add_in_apply,
    convert_where_read,
    hand_over_totals,
    in_levels,
    place_apply,
    place_backward,
    place_constants,
    sum_where_kept,
)
from frontends.layers.local_copies import (
    is_local_copy,
    once_a_stage,
    release_made,
    with_local_copies,
)
from frontends.layers.repeated_blocks import blocks_of, boundaries_of
from frontends.layers.saved_layouts import is_saved, with_saved_layouts
from frontends.plan.plan_fields import PlanFields, TransferPhase
from frontends.step.step import FORWARD, PHASE_NAMES, TrainingStep

_DEFAULT_LAYERS = 8


@dataclass(frozen=True)
class LayeredStep:
    """A step in which every operator and every argument has a layer."""

    step: TrainingStep
    n_layers: int
    layer_of: Mapping[str, int]
    """By operator name, its layer."""

    home: Mapping[str, int]
    """By input name, the layer where the input is kept. Other layers that read it get a copy."""

    local: Mapping[str, str] = field(default_factory=dict)
    """By operator that makes in its layer what another one makes, too, the one that it is a copy
    of. A stage runs one of those in its layers."""

    held: frozenset[str] = frozenset()
    """The inputs that this step only reads, and that an earlier plan keeps in one stage."""

    @cached_property
    def kept(self) -> frozenset[str]:
        """The inputs that one layer keeps; stages without it are sent a copy in every step."""
        return self.updated | self.held

    @cached_property
    def updated(self) -> frozenset[str]:
        """The inputs that the step returns a new version of: parameters, optimizer state."""
        return frozenset(o.alias for o in self.step.graph.outputs if o.alias is not None)

    @cached_property
    def operators_of(self) -> tuple[tuple[int, ...], ...]:
        """By layer, its operators as indices in program order."""
        operators: list[list[int]] = [[] for _ in range(self.n_layers)]
        for index, op in enumerate(self.step.graph.operators):
            operators[self.layer_of[op.name]].append(index)
        return tuple(map(tuple, operators))

    @cached_property
    def readers_of(self) -> dict[str, tuple[int, ...]]:
        """By value that is read, the layers that read it, in order."""
        readers: dict[str, set[int]] = defaultdict(set)
        for op in self.step.graph.operators:
            for name in op.inputs:
                readers[name].add(self.layer_of[op.name])
        return {name: tuple(sorted(layers)) for name, layers in readers.items()}

    @cached_property
    def own_values(self) -> list[list[str]]:
        """By layer, its private inputs and the results of its operators, in this order.

        Private inputs are those that no other layer reads or keeps. Equal layers have the values in
        the same order.
        """
        graph = self.step.graph
        values: list[list[str]] = [[] for _ in range(self.n_layers)]
        for name in graph.inputs:
            layers = {*self.readers_of.get(name, ())} | {self.home[name]}
            if len(layers) == 1:
                values[layers.pop()].append(name)
        for layer, operators in enumerate(self.operators_of):
            values[layer] += [name for i in operators for name in graph.operators[i].outputs]
        return values

    @cached_property
    def kept_in(self) -> tuple[tuple[str, ...], ...]:
        """By layer, the inputs that are kept there, and nowhere else."""
        kept: list[list[str]] = [[] for _ in range(self.n_layers)]
        for name in self.step.graph.inputs:
            if name in self.kept:
                kept[self.home[name]].append(name)
        return tuple(map(tuple, kept))

    @cached_property
    def _outputs_of(self) -> dict[str, list[int]]:
        """By value, its indices among the graph's outputs."""
        indices: dict[str, list[int]] = defaultdict(list)
        for index, output in enumerate(self.step.graph.outputs):
            indices[output.value].append(index)
        return indices

    @cached_property
    def _place_of(self) -> dict[str, int]:
        """By input, its index among the graph's inputs."""
        return {name: index for index, name in enumerate(self.step.graph.inputs)}

    def merged(self, spans: Sequence[tuple[int, int]]) -> LayeredStep:
        """The step in which each stage makes once what several of its layers read.

        Args:
            spans: First and last layer, included, of every stage.
        """
        if not self.local:
            return self
        stages = (self._inside(first, last) for first, last in spans)
        kept = {op.name: op for operators in stages for op in operators}
        graph = self.step.graph
        operators = tuple(kept[op.name] for op in graph.operators if op.name in kept)
        produced = {name for op in operators for name in op.outputs}
        values = tuple(v for v in graph.values if v.name in produced or v.name in self._place_of)
        step = replace(self.step, graph=replace(graph, values=values, operators=operators))
        layer_of = {name: self.layer_of[name] for name in kept}
        local = {name: original for name, original in self.local.items() if name in kept}
        return replace(self, step=step, layer_of=layer_of, local=local)

    def exchanges(
        self, spans: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[str, TransferPhase, int, int]]:
        """What stages send each other: value, phase that computes it, source and destination.

        Args:
            spans: First and last layer, included, of every stage.
        """
        graph = self.step.graph
        stage_of_layer = {k: i for i, (a, b) in enumerate(spans) for k in range(a, b + 1)}
        stage_of = {name: stage_of_layer[k] for name, k in self.layer_of.items()}
        for name in graph.inputs:
            if name in self.kept:
                home = stage_of_layer[self.home[name]]
                readers = {stage_of_layer[k] for k in self.readers_of.get(name, ())}
                yield from ((name, "state", home, to) for to in sorted(readers - {home}))
        for name, (source, destinations) in crossings(graph, stage_of).items():
            producer, _ = graph.producers[name]
            phase = PHASE_NAMES[graph.operators[producer].phase]
            yield from ((name, phase, source, to) for to in destinations)

    def stage(self, first: int, last: int) -> Graph:
        """The graph of layers `first` to `last`, both included.

        A value that another layer computes is an input of role `activation`; one that another layer
        keeps is an input with the role that it has. Values that other layers read are outputs, in
        any layout without partial sums.
        """
        if (first, last) not in self._stages:
            self._stages[first, last] = self._extracted(first, last)
        return self._stages[first, last]

    @cached_property
    def _stages(self) -> dict[tuple[int, int], Graph]:
        """Cache of `stage`: planning asks for the same stages many times."""
        return {}

    def _inside(self, first: int, last: int) -> list[Operator]:
        """The operators of layers `first` to `last`, each that several layers have once."""
        indices = sorted(i for k in range(first, last + 1) for i in self.operators_of[k])
        return [*once_a_stage(map(self.step.graph.operators.__getitem__, indices), self.local)]

    def _extracted(self, first: int, last: int) -> Graph:
        graph = self.step.graph
        inside = self._inside(first, last)
        produced = {name for op in inside for name in op.outputs}
        read = {name for op in inside for name in op.inputs}
        kept = {name for k in range(first, last + 1) for name in self.kept_in[k]}
        stored = kept | {name for name in read if name in self._place_of}
        inputs = sorted(stored, key=self._place_of.__getitem__)
        received = sorted(read - produced - stored, key=graph.producers.__getitem__)
        places = sorted(i for name in produced for i in self._outputs_of.get(name, ()))
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


def layer(
    step: TrainingStep,
    n_layers: int | None = None,
    *,
    send_less: bool = True,
    choose_saved: bool = True,
) -> LayeredStep:
    """Assign every operator and argument of `step` to a layer.

    Args:
        step: The step of a frontend's trace.
        n_layers: How many layers at most. By default, each repetition of the model's repeated
            blocks is a layer, so that equal blocks are equal layers. If no blocks repeat, 8 layers
            have about an eighth of the FLOPs each; the exact number matters little (Alpa, §5.2).
        send_less: Whether layers make themselves what is cheap to make there, and numbers of state
            are kept where they are read. Plans of version 0.2 send these from layer to layer.
        choose_saved: Whether layers choose the layouts of what they save for backward
            (`saved_layouts`). Plans of version 0.2 save values as they are computed.
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
    if send_less:
        release_made(step, layer_of)
    place_constants(graph, layer_of)
    place_backward(step, layer_of, len(spans))
    sum_where_kept(step, layer_of)
    if send_less:
        convert_where_read(step, layer_of)
    step = add_in_apply(step, layer_of)
    home = place_apply(step.graph, layer_of, pull_state=send_less)
    step = hand_over_totals(step, layer_of)
    step = replace(step, graph=in_levels(step.graph, layer_of))
    step, local = with_local_copies(step, layer_of) if send_less else (step, {})
    if choose_saved:
        step = with_saved_layouts(step, layer_of)
    return LayeredStep(step, len(spans), layer_of, home, local)


def layer_as(step: TrainingStep, plan: PlanFields) -> LayeredStep:
    """The layers that a plan was made with: the default ones if they fit it, or as many as it has.

    Operators of replicas are in the plan, but not in these layers, and are ignored.
    """
    n_layers = plan.stages[-1].last_layer + 1
    for n in (None, n_layers):
        for send_less, choose_saved in ((True, True), (True, False), (False, False)):
            layered = layer(step, n, send_less=send_less, choose_saved=choose_saved)
            if _fits(layered, plan):
                return layered
    default = layer(step)
    return default if default.n_layers == n_layers else layer(step, n_layers)


def _fits(layered: LayeredStep, plan: PlanFields) -> bool:
    """Whether a plan has an operator of each of its stages only in the stage's layers.

    A stage that would run copies of what other stages make runs them in the plan, too.
    """
    if layered.n_layers != plan.stages[-1].last_layer + 1:
        return False
    saves = {op.name for op in layered.step.graph.operators if is_saved(op.name)}
    if not saves.issubset(p.operator for stage in plan.stages for p in stage.placements):
        return False
    for stage in plan.stages:
        layers = range(stage.first_layer, stage.last_layer + 1)
        placed = {p.operator for p in stage.placements}
        if any(layered.layer_of.get(name, layers[0]) not in layers for name in placed):
            return False
    copies = any(is_local_copy(p.operator) for stage in plan.stages for p in stage.placements)
    spans = {(stage.first_layer, stage.last_layer): None for stage in plan.stages}
    return copies or not layered.merged([*spans]).local


def _depends_on_batch(graph: Graph) -> set[str]:
    """The operators of forward whose inputs depend on examples."""
    varying = {name for name in graph.inputs if graph.value(name).role == "batch"}
    dependent = set()
    for op in graph.operators:
        if op.phase == FORWARD and not varying.isdisjoint(op.inputs):
            dependent.add(op.name)
            varying.update(op.outputs)
    return dependent


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
    """Values computed in one stage and read in others: name -> (source, destinations)."""
    source = {name: stage_of[op.name] for op in graph.operators for name in op.outputs}
    readers: dict[str, set[int]] = defaultdict(set)
    for op in graph.operators:
        for name in op.inputs:
            if name in source and source[name] != stage_of[op.name]:
                readers[name].add(stage_of[op.name])
    return {n: (stage, tuple(sorted(readers[n]))) for n, stage in source.items() if n in readers}
