"""Give what is not forward's own work its layer: constants, backward and apply."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from autoshard import Graph, Operator

from frontends.step.step import APPLY, BACKWARD, FORWARD, Step, identity

_COMBINATIONS = ("add", "add_any", "concatenate")


def place_constants(graph: Graph, layer_of: dict[str, int]) -> None:
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


def place_backward(graph: Graph, layer_of: dict[str, int], n_layers: int) -> None:
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


def sum_where_kept(step: Step, layer_of: dict[str, int]) -> None:
    """Sum a parameter's gradient where the parameter is kept, if what is summed comes there anyway.

    The gradient of a bias needs nothing but that of its block's result, which the next layer makes.
    Made there too, it would keep the optimizer's state of each such bias one layer behind the bias,
    and its update would cross the cut.
    """
    graph = step.graph
    kept_in = _layer_of_totals(step, _first_read(graph, layer_of))
    backward = [op for op in graph.operators if op.phase == BACKWARD]
    readers: dict[str, list[str]] = defaultdict(list)
    held: dict[str, set[int]] = defaultdict(set)
    for op in graph.operators:
        if op.phase != APPLY:
            for name in op.inputs:
                readers[name].append(op.name)
                held[name].add(layer_of[op.name])
        if op.phase == FORWARD:
            for name in op.outputs:
                held[name].add(layer_of[op.name])
    elsewhere = {output.value for output in graph.outputs} - kept_in.keys()
    leads_to: dict[str, int | None] = {}
    for op in reversed(backward):  # to totals of one layer only, and to which
        found = {leads_to[reader] for name in op.outputs for reader in readers[name]}
        found |= {kept_in[name] for name in op.outputs if name in kept_in}
        single = len(found) == 1 and elsewhere.isdisjoint(op.outputs)
        leads_to[op.name] = found.pop() if single else None
    pulled: dict[str, int] = {}
    for op in backward:
        layer = leads_to[op.name]
        if layer is None or layer >= layer_of[op.name]:
            continue
        if all(layer in held[name] for name in op.inputs):
            pulled[op.name] = layer
            for name in op.outputs:
                held[name].add(layer)
    for op in reversed(backward):  # only with all that reads its results: they never go back up
        layer = pulled.get(op.name, layer_of[op.name])
        if all(layer_of[reader] <= layer for name in op.outputs for reader in readers[name]):
            layer_of[op.name] = layer


def _layer_of_totals(step: Step, home: Mapping[str, int]) -> dict[str, int | None]:
    """Per total the layer of the one parameter that apply updates with it, keeping its shape."""
    graph = step.graph
    made_of: dict[str, set[str]] = {name: {name} for name in step.summed}
    for op in graph.operators:
        if op.phase == APPLY:
            for out in op.outputs:
                alike = (n for n in op.inputs if graph.value(n).shape == graph.value(out).shape)
                made_of[out] = set().union(*(made_of.get(name, ()) for name in alike))
    layers: dict[str, set[int]] = {name: set() for name in step.summed}
    for output in graph.outputs:
        if output.alias is not None and output.alias in home:
            for name in made_of.get(output.value, ()):
                layers[name].add(home[output.alias])
    return {name: found.pop() if len(found) == 1 else None for name, found in layers.items()}


def _first_read(graph: Graph, layer_of: Mapping[str, int]) -> dict[str, int]:
    """Per input that compute reads the first layer that does."""
    found: dict[str, int] = {}
    for op in graph.operators:
        if op.phase != APPLY:
            for name in op.inputs:
                found[name] = min(found.get(name, layer_of[op.name]), layer_of[op.name])
    return {name: found[name] for name in graph.inputs if name in found}


def add_in_apply(step: Step, layer_of: dict[str, int]) -> Step:
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


def place_apply(graph: Graph, layer_of: dict[str, int]) -> dict[str, int]:
    """Put apply where the largest thing it reads is kept; return the layer of every input.

    A parameter is kept where forward reads it first, and optimizer state with what updates it.
    """
    home = _first_read(graph, layer_of)
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


def hand_over_totals(step: Step, layer_of: dict[str, int]) -> Step:
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


def in_levels(graph: Graph, layer_of: Mapping[str, int]) -> Graph:
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
