"""Assign constants, backward and apply to layers, after forward has been clustered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from autoshard import Graph, Operator

from frontends.step.step import APPLY, BACKWARD, FORWARD, TrainingStep, identity

_COMBINATIONS = ("add", "add_any", "concatenate")


def place_constants(graph: Graph, layer_of: dict[str, int]) -> None:
    """Put operators that do not depend on the batch into the first layer that reads their results.

    If no layer reads them, an operator goes to the layer of its operands. Otherwise, a step that
    casts or transposes all its weights at its beginning would have all of them in its first layer,
    and send them on for every microbatch.
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
    source: dict[str, int] = {}
    for op in forward:
        if op.name not in layer_of:
            near = min((first[name] for name in op.inputs if name in first), default=0)
            layer_of[op.name] = max([near, *(source[name] for name in op.inputs if name in source)])
        source.update(dict.fromkeys(op.outputs, layer_of[op.name]))


def place_backward(step: TrainingStep, layer_of: dict[str, int], n_layers: int) -> None:
    """Put each backward operator into the last layer that holds what it reads.

    Layers hold the forward values that their forward computes or reads. Gradients come from later
    layers and never return to them. What computes an activation again is where the first one is.
    """
    graph = step.graph
    held: dict[str, set[int]] = defaultdict(set)
    for op in graph.operators:
        if op.phase == FORWARD:
            for name in (*op.inputs, *op.outputs):
                held[name].add(layer_of[op.name])
    gradient_layer: dict[str, int] = {}
    backward = [op for op in graph.operators if op.phase == BACKWARD]
    for op in backward:
        if op.name in step.original:
            layer_of[op.name] = layer_of[step.original[op.name]]
            gradient_layer.update((name, layer_of[op.name]) for name in op.outputs)
            continue
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
    for op in reversed(backward):  # constants go to the layer that needs them first
        is_constant = graph.constants.issuperset(op.outputs) and op.name not in step.original
        if is_constant and (users := [u for name in op.outputs for u in consumers[name]]):
            layer_of[op.name] = max(layer_of[user.name] for user in users)


def sum_where_kept(step: TrainingStep, layer_of: dict[str, int]) -> None:
    """Sum a parameter's gradient where the parameter is kept, if its inputs are there anyway.

    The gradient of a bias needs only the gradient of its block's result, which the next layer
    computes. If that layer also summed the bias's gradient, it would keep the optimizer's state of
    the bias, and the update would cross the cut.
    """
    graph = step.graph
    kept_in = _layer_of_totals(step, _first_read(graph, layer_of))
    readers = _readers(graph)
    elsewhere = {output.value for output in graph.outputs} - kept_in.keys()
    leads_to: dict[str, int | None] = {}
    for op in reversed(graph.operators):  # the layer, if it is one, of all totals that it feeds
        if op.phase == BACKWARD:
            layers = {leads_to[reader] for name in op.outputs for reader in readers[name]}
            layers |= {kept_in[name] for name in op.outputs if name in kept_in}
            single = len(layers) == 1 and elsewhere.isdisjoint(op.outputs)
            leads_to[op.name] = layers.pop() if single else None
    _pull(graph, leads_to, layer_of)


def convert_where_read(step: TrainingStep, layer_of: dict[str, int]) -> None:
    """Compute in an earlier layer what it makes of a gradient that it receives anyway.

    The gradient of a block's result is needed as it is, for the residual connection, and in lower
    precision, for the products of the block. The layer that computes it would send both.
    """
    graph = step.graph
    readers = _readers(graph)
    leaving = {output.value for output in graph.outputs}.union(step.summed)
    leads_to: dict[str, int | None] = {}
    for op in reversed(graph.operators):
        if op.phase == BACKWARD:
            layers = {leads_to[name] for value in op.outputs for name in readers[value]}
            if len(layers) != 1 or not leaving.isdisjoint(op.outputs) or op.name in step.original:
                layers = {layer_of[op.name]}
            leads_to[op.name] = layers.pop()
    _pull(graph, leads_to, layer_of)


def _pull(graph: Graph, leads_to: Mapping[str, int | None], layer_of: dict[str, int]) -> None:
    """Move operators of backward to the earlier layer that they lead to, if it has their inputs."""
    backward = [op for op in graph.operators if op.phase == BACKWARD]
    held: dict[str, set[int]] = defaultdict(set)
    for op in graph.operators:
        if op.phase != APPLY:
            for name in op.inputs:
                held[name].add(layer_of[op.name])
        if op.phase == FORWARD:
            for name in op.outputs:
                held[name].add(layer_of[op.name])
    pulled: dict[str, int] = {}
    for op in backward:
        layer = leads_to[op.name]
        if layer is None or layer >= layer_of[op.name]:
            continue
        if all(layer in held[name] for name in op.inputs):
            pulled[op.name] = layer
            for name in op.outputs:
                held[name].add(layer)
    readers = _readers(graph)
    for op in reversed(backward):  # only if its readers are not in a later layer then
        layer = pulled.get(op.name, layer_of[op.name])
        if all(layer_of[reader] <= layer for name in op.outputs for reader in readers[name]):
            layer_of[op.name] = layer


def _readers(graph: Graph) -> dict[str, list[str]]:
    """By value, the operators of forward and backward that read it."""
    readers: dict[str, list[str]] = defaultdict(list)
    for op in graph.operators:
        if op.phase != APPLY:
            for name in op.inputs:
                readers[name].append(op.name)
    return readers


def _layer_of_totals(step: TrainingStep, home: Mapping[str, int]) -> dict[str, int | None]:
    """By total, the layer of the parameters that apply updates with it; None unless it is one.

    Only operators that keep the total's shape are followed from the total to the parameter.
    """
    graph = step.graph
    totals_in: dict[str, set[str]] = {name: {name} for name in step.summed}
    for op in graph.operators:
        if op.phase == APPLY:
            for out in op.outputs:
                alike = (n for n in op.inputs if graph.value(n).shape == graph.value(out).shape)
                totals_in[out] = set().union(*(totals_in.get(name, ()) for name in alike))
    layers: dict[str, set[int]] = {name: set() for name in step.summed}
    for output in graph.outputs:
        if output.alias is not None and output.alias in home:
            for name in totals_in.get(output.value, ()):
                layers[name].add(home[output.alias])
    return {name: homes.pop() if len(homes) == 1 else None for name, homes in layers.items()}


def _first_read(graph: Graph, layer_of: Mapping[str, int]) -> dict[str, int]:
    """By input that forward or backward reads, the first layer that does."""
    first: dict[str, int] = {}
    for op in graph.operators:
        if op.phase != APPLY:
            for name in op.inputs:
                first[name] = min(first.get(name, layer_of[op.name]), layer_of[op.name])
    return {name: first[name] for name in graph.inputs if name in first}


def add_in_apply(step: TrainingStep, layer_of: dict[str, int]) -> TrainingStep:
    """Move operators that combine gradients from different layers into apply.

    A parameter that two layers use has a gradient from each; the gradient of one that holds the
    weights of many layers is stacked from theirs. Each is summed over the microbatches in the layer
    that computes it, and only the totals are added or stacked, instead of sending gradients to
    another layer for every microbatch.
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


def place_apply(graph: Graph, layer_of: dict[str, int], *, pull_state: bool) -> dict[str, int]:
    """Put each operator of apply where its largest operand is; return the layer of every input.

    A parameter is kept where forward reads it first, and optimizer state where it is updated: with
    `pull_state`, a number of it where the only layer that reads its new version is.
    """
    home = _first_read(graph, layer_of)
    for _ in range(2):  # the second time, the layer of the optimizer's state is known
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
    _pull_scalars(graph, layer_of, pull_state=pull_state)
    for output in graph.outputs:
        if output.alias is not None:
            producer, _ = graph.producers[output.value]
            home[output.alias] = layer_of[graph.operators[producer].name]
    return {name: home.get(name, 0) for name in graph.inputs}


def _pull_scalars(graph: Graph, layer_of: dict[str, int], *, pull_state: bool) -> None:
    """Move operators on scalars and constants to the layer that reads the result, if it is one.

    Optimizers copy the learning rate once for each parameter; it should cross a cut once. Those of
    PyTorch count the updates of each parameter, which should be where the parameter is. Norms that
    allow for complex numbers add zeros as large as the gradients; these should cross no cut.
    """
    readers: dict[str, set[int]] = defaultdict(set)
    stay = {o.value for o in graph.outputs if not pull_state or o.alias is None}
    for op in reversed(graph.operators):
        if op.phase != APPLY:
            break
        wanted = set().union(*(readers[name] for name in op.outputs))
        is_scalar = all(graph.value(name).shape == () for name in (*op.inputs, *op.outputs))
        is_free = is_scalar or graph.constants.issuperset(op.outputs)
        if is_free and len(wanted) == 1 and stay.isdisjoint(op.outputs):
            layer_of[op.name] = wanted.pop()
        for name in op.inputs:
            readers[name].add(layer_of[op.name])


def hand_over_totals(step: TrainingStep, layer_of: dict[str, int]) -> TrainingStep:
    """Let values cross from compute into another layer's apply once a step, as totals.

    For each such value, apply gets an identity in the layer that computes the value, and the other
    layer reads its result.
    """
    graph = step.graph
    producer = {n: op for op in graph.operators if op.phase != APPLY for n in op.outputs}
    crossing = dict.fromkeys(
        name
        for op in graph.operators
        if op.phase == APPLY
        for name in op.inputs
        if name in producer and layer_of[producer[name].name] != layer_of[op.name]
    )
    if not crossing:
        return step
    renamed = {name: f"total.{name}" for name in crossing}
    identities = [identity(graph.value(name), new) for name, new in renamed.items()]
    for name, op in zip(crossing, identities, strict=True):
        layer_of[op.name] = layer_of[producer[name].name]
    operators = [op for op in graph.operators if op.phase != APPLY] + identities
    for op in graph.operators:
        if op.phase == APPLY:
            layer = layer_of[op.name]
            inputs = tuple(
                renamed[n] if n in renamed and layer_of[producer[n].name] != layer else n
                for n in op.inputs
            )
            operators.append(replace(op, inputs=inputs))
    values = (
        *graph.values,
        *(replace(graph.value(name), name=new) for name, new in renamed.items()),
    )
    return replace(step, graph=replace(graph, values=values, operators=tuple(operators)))


def in_levels(graph: Graph, layer_of: Mapping[str, int]) -> Graph:
    """The graph with apply sorted by the number of times that operands have crossed layers.

    Optimizers of PyTorch update one parameter after the other. A layer may read a result of the
    next layer's apply, such as the update of a bias whose gradient that layer computes. In the
    order of levels, all such results come before their readers, also if an equal layer stands in
    for the next one.
    """
    level: dict[str, int] = {}
    levels: dict[str, int] = {}
    source: dict[str, int] = {}
    for op in graph.operators:
        if op.phase == APPLY:
            layer = layer_of[op.name]
            known = [level[n] + (source[n] != layer) for n in op.inputs if n in level]
            levels[op.name] = max(known, default=0)
            level.update(dict.fromkeys(op.outputs, levels[op.name]))
            source.update(dict.fromkeys(op.outputs, layer))
    operators = sorted(graph.operators, key=lambda op: levels.get(op.name, -1))
    return replace(graph, operators=tuple(operators))
