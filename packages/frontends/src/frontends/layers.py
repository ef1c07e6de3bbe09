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

from frontends.blocks import blocks_of, boundaries_of
from frontends.plan import Plan, TransferPhase
from frontends.step import APPLY, BACKWARD, FORWARD, PHASE_NAMES, Step, identity

_DEFAULT_LAYERS = 8

_COMBINATIONS = ("add", "add_any", "concatenate")


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

    def is_copy(self, name: str, first: int, last: int) -> bool:
        """Whether layers `first` to `last` read an updated input that is kept elsewhere.

        What is not updated (the batch, constants) is placed wherever it is read.
        """
        return name in self.updated and not first <= self.home[name] <= last

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

        Values of other layers are inputs (role `activation`); values that other layers read are
        outputs of any layout without partial sums.
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
        values = [
            replace(graph.value(name), role="activation")
            if name not in self._place_of or self.is_copy(name, first, last)
            else graph.value(name)
            for name in (*inputs, *received)
        ]
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
    _place_constants(graph, layer_of)
    _place_backward(graph, layer_of, len(spans))
    step = _add_in_apply(step, layer_of)
    home = _place_apply(step.graph, layer_of)
    step = _hand_over_totals(step, layer_of)
    step = replace(step, graph=_in_levels(step.graph, layer_of))
    return LayeredStep(step, len(spans), layer_of, home)


def layer_as(step: Step, plan: Plan) -> LayeredStep:
    """The layers that a plan was made with: those of the default, or as many as it has."""
    n_layers = plan.stages[-1].last_layer + 1
    found = layer(step)
    names = [{p.operator for p in stage.placements} for stage in plan.stages]
    if found.n_layers == n_layers and all(
        {op.name for op in found.stage(stage.first_layer, stage.last_layer).operators} == planned
        for stage, planned in zip(plan.stages, names, strict=True)
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


def _place_constants(graph: Graph, layer_of: dict[str, int]) -> None:
    """Put what does not depend on the batch where it is read first, or else with what it reads.

    A step that casts or transposes all its weights at its beginning would otherwise have all of
    them in its first layer, and send them on for every microbatch.
    """
    first: dict[str, int] = {}
    forward = [op for op in graph.operators if op.phase == FORWARD]
    for op in reversed(forward):
        read_by = [first[name] for name in op.outputs if name in first]
        if op.name not in layer_of and read_by:
            layer_of[op.name] = min(read_by)
        if op.name in layer_of:
            for name in op.inputs:
                first[name] = min(first.get(name, layer_of[op.name]), layer_of[op.name])
    made: dict[str, int] = {}
    for op in forward:
        if op.name not in layer_of:
            near = min((first[name] for name in op.inputs if name in first), default=0)
            layer_of[op.name] = max([near, *(made[name] for name in op.inputs if name in made)])
        made.update(dict.fromkeys(op.outputs, layer_of[op.name]))


def _place_backward(graph: Graph, layer_of: dict[str, int], n_layers: int) -> None:
    """Put each backward operator into the last layer that holds what it reads.

    Forward values are held where they are made and where forward reads them; gradients come from
    later layers and never go back up.
    """
    held: dict[str, set[int]] = defaultdict(set)
    for op in graph.operators:
        if op.phase == FORWARD:
            for name in (*op.inputs, *op.outputs):
                held[name].add(layer_of[op.name])
    gradient_layer: dict[str, int] = {}
    backward = [op for op in graph.operators if op.phase == BACKWARD]
    for op in backward:
        ceiling = min((gradient_layer[n] for n in op.inputs if n in gradient_layer), default=None)
        top = n_layers - 1 if ceiling is None else ceiling
        saved = [
            {k for k in held[name] if k <= top} for name in op.inputs if name not in gradient_layer
        ]
        common = set.intersection(*saved) if saved else {top}
        reachable = common or set().union(*saved) or {top}
        layer_of[op.name] = max(reachable)
        gradient_layer.update((name, layer_of[op.name]) for name in op.outputs)
    consumers: dict[str, list[Operator]] = defaultdict(list)
    for op in backward:
        for name in op.inputs:
            consumers[name].append(op)
    for op in reversed(backward):  # what depends on nothing is made where it is needed first
        is_constant = graph.constants.issuperset(op.outputs)
        if is_constant and (users := [u for name in op.outputs for u in consumers[name]]):
            layer_of[op.name] = max(layer_of[user.name] for user in users)


def _add_in_apply(step: Step, layer_of: dict[str, int]) -> Step:
    """Move what combines gradients from different layers into apply.

    A parameter used in two layers has a gradient from each, and one that holds the weights of many
    layers is made of theirs. Each is summed over the microbatches where it is made, and only the
    totals are added or stacked, instead of sending one of them along for every microbatch.
    """
    graph, summed = step.graph, list(step.summed)
    read_by_compute = {n for op in graph.operators if op.phase != APPLY for n in op.inputs}
    moved: list[Operator] = []
    for op in reversed(graph.operators):
        is_total = op.phase == BACKWARD and op.kind in _COMBINATIONS and op.outputs[0] in summed
        is_linear = tuple(range(len(op.inputs))) in op.rule.linear
        if not is_total or op.outputs[0] in read_by_compute or not is_linear:
            continue
        producers = [graph.producers.get(name) for name in op.inputs]
        layers = {layer_of[graph.operators[p[0]].name] for p in producers if p is not None}
        if len(layers) < 2:
            continue
        moved.append(replace(op, phase=APPLY))
        summed.remove(op.outputs[0])
        summed += [name for name in dict.fromkeys(op.inputs) if name not in summed]
        still_read = (o for o in graph.operators if o.phase != APPLY and o not in moved)
        read_by_compute = {
            n for o in still_read if o.name not in {m.name for m in moved} for n in o.inputs
        }
    if not moved:
        return step
    names = {op.name for op in moved}
    compute = [op for op in graph.operators if op.phase != APPLY and op.name not in names]
    apply = [op for op in graph.operators if op.phase == APPLY]
    operators = (*compute, *reversed(moved), *apply)
    return replace(step, graph=replace(graph, operators=operators), summed=tuple(summed))


def _place_apply(graph: Graph, layer_of: dict[str, int]) -> dict[str, int]:
    """Put apply where the largest thing it reads is kept; return the layer of every input.

    A parameter is kept where forward reads it first, and optimizer state with what updates it.
    """
    home: dict[str, int] = {}
    for op in graph.operators:
        if op.phase != APPLY:
            for name in op.inputs:
                if name in graph.inputs:
                    home[name] = min(home.get(name, layer_of[op.name]), layer_of[op.name])
    for _ in range(2):  # the second time with the optimizer's state in place
        place = dict(home)
        for op in graph.operators:
            if op.phase == APPLY:
                known = [(-graph.value(n).n_bytes, place[n]) for n in op.inputs if n in place]
                if known:
                    layer_of[op.name] = min(known)[1]
            if op.name in layer_of:
                place.update((name, layer_of[op.name]) for name in op.outputs)
        for output in graph.outputs:
            if output.alias is not None and output.value in place:
                home.setdefault(output.alias, place[output.value])
    for op in graph.operators:
        layer_of.setdefault(op.name, 0)
    _pull_scalars(graph, layer_of)
    for output in graph.outputs:
        if output.alias is not None:
            producer, _ = graph.producers[output.value]
            home[output.alias] = layer_of[graph.operators[producer].name]
    return {name: home.get(name, 0) for name in graph.inputs}


def _pull_scalars(graph: Graph, layer_of: dict[str, int]) -> None:
    """Compute with scalars and constants where the result is read, if that is one layer only.

    Optimizers copy the learning rate once for each parameter; it should cross a cut once. Norms
    that allow for complex numbers add zeros as large as the gradients; these should cross none.
    """
    readers: dict[str, set[int]] = defaultdict(set)
    outputs = {output.value for output in graph.outputs}
    for op in reversed(graph.operators):
        if op.phase != APPLY:
            break
        wanted = set().union(*(readers[name] for name in op.outputs))
        is_scalar = all(graph.value(name).shape == () for name in (*op.inputs, *op.outputs))
        is_free = is_scalar or graph.constants.issuperset(op.outputs)
        if is_free and len(wanted) == 1 and outputs.isdisjoint(op.outputs):
            layer_of[op.name] = wanted.pop()
        for name in op.inputs:
            readers[name].add(layer_of[op.name])


def _hand_over_totals(step: Step, layer_of: dict[str, int]) -> Step:
    """Let apply hand compute's values to other layers, so that totals cross and not each part."""
    graph = step.graph
    made = {n: op for op in graph.operators if op.phase != APPLY for n in op.outputs}
    crossing = dict.fromkeys(
        name
        for op in graph.operators
        if op.phase == APPLY
        for name in op.inputs
        if name in made and layer_of[made[name].name] != layer_of[op.name]
    )
    if not crossing:
        return step
    renamed = {name: f"total.{name}" for name in crossing}
    handed = [identity(graph.value(name), new) for name, new in renamed.items()]
    for name, op in zip(crossing, handed, strict=True):
        layer_of[op.name] = layer_of[made[name].name]
    operators = [op for op in graph.operators if op.phase != APPLY] + handed
    for op in graph.operators:
        if op.phase == APPLY:
            inputs = tuple(
                renamed[n] if n in renamed and layer_of[made[n].name] != layer_of[op.name] else n
                for n in op.inputs
            )
            operators.append(replace(op, inputs=inputs))
    values = (
        *graph.values,
        *(replace(graph.value(name), name=new) for name, new in renamed.items()),
    )
    return replace(step, graph=replace(graph, values=values, operators=tuple(operators)))


def _in_levels(graph: Graph, layer_of: Mapping[str, int]) -> Graph:
    """The graph with apply in the order of how often a value crossed layers before.

    Optimizers of PyTorch update one parameter after the other. What a layer reads of the next one,
    as the update of a bias whose gradient is made there, is then made before all that reads such
    things, also where another layer stands in for the next one.
    """
    level: dict[str, int] = {}
    levels: dict[str, int] = {}
    maker: dict[str, int] = {}
    for op in graph.operators:
        if op.phase == APPLY:
            mine = layer_of[op.name]
            known = [level[n] + (maker[n] != mine) for n in op.inputs if n in level]
            levels[op.name] = max(known, default=0)
            level.update(dict.fromkeys(op.outputs, levels[op.name]))
            maker.update(dict.fromkeys(op.outputs, mine))
    operators = sorted(graph.operators, key=lambda op: levels.get(op.name, -1))
    return replace(graph, operators=tuple(operators))


def crossings(graph: Graph, stage_of: Mapping[str, int]) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Values made in one stage and read in others: name -> (source, destinations)."""
    made = {name: stage_of[op.name] for op in graph.operators for name in op.outputs}
    readers: dict[str, set[int]] = defaultdict(set)
    for op in graph.operators:
        for name in op.inputs:
            if name in made and made[name] != stage_of[op.name]:
                readers[name].add(stage_of[op.name])
    return {name: (made[name], tuple(sorted(readers[name]))) for name in made if name in readers}
