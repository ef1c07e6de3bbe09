"""Let every layer choose the layout in which it saves what forward makes for backward.

Forward often reads a value in another layout than that in which it is made, and backward reads it
in the same: a mixture of experts sends its examples to the experts, which multiply them in forward
and need them for the gradients of their weights. Phases share no conversions, so both would send
them. Here backward reads a value of its own, the result of an operator that returns its operand,
where forward has read it last. Its layout is a choice of the search like any other: that in which
the value is made, or that of the copy that forward has read, which is then held in its place. So a
layer of a mixture of experts sends its examples to the experts and back once in each direction, as
in Alpa and GShard.

Only what the products of experts read or make, and products read, is saved like this. For all other
values the choice gained nothing where it was tried, and moved conversions from backward to forward,
which made some pipelines slower. What backward reads in several layers is held as it is made, since
it would be held several times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from autoshard import Accesses, Graph, Operator, Value, elementwise

from frontends.layers.cheap import has_batch_dims, is_product
from frontends.step.step import BACKWARD, FORWARD, IDENTITY, TrainingStep

_MARK = "saved@"

_NOTHING = Accesses((0.0, 0.0), 0.0)
"""A value that is saved in the layout in which it is read last is the same memory."""


def with_saved_layouts(step: TrainingStep, layer_of: dict[str, int]) -> TrainingStep:
    """The step in which backward reads values that layers save in layouts of their own.

    Args:
        step: A step whose operators all have layers.
        layer_of: These layers; those of the new operators are added.
    """
    graph = step.graph
    read_last = _read_by_products(graph, layer_of)
    readers: dict[str, set[int]] = defaultdict(set)
    for op in graph.operators:
        if op.phase == BACKWARD:
            for name in op.inputs:
                readers[name].add(layer_of[op.name])
    saved = {
        (layer, name): f"{_MARK}{layer}@{name}"
        for name, (layer, *others) in ((name, tuple(of)) for name, of in readers.items())
        if not others and (layer, name) in read_last
    }
    if not saved:
        return step
    after: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for layer, name in saved:
        after[read_last[layer, name]].append((layer, name))
    operators = [*_operators(graph, layer_of, saved, after)]
    values = [replace(graph.value(name), name=new) for (_, name), new in saved.items()]
    layer_of.update((new, layer) for (layer, _), new in saved.items())
    changed = replace(graph, values=(*graph.values, *values), operators=tuple(operators))
    return replace(step, graph=changed)


def is_saved(operator: str) -> bool:
    """Whether the name of an operator is that of one that saves a value."""
    return operator.startswith(_MARK)


def _read_by_products(graph: Graph, layer_of: Mapping[str, int]) -> dict[tuple[int, str], int]:
    """By layer and value of experts that one of its products reads: where forward reads it last.

    Places are indices of operators, and only those of the layer count.
    """
    of_experts = _of_experts(graph)
    last: dict[tuple[int, str], int] = {}
    multiplied = set[tuple[int, str]]()
    for index, op in enumerate(graph.operators):
        if op.phase == FORWARD:
            read = {(layer_of[op.name], name) for name in op.inputs if name in of_experts}
            last.update(dict.fromkeys(read, index))
            multiplied |= read if is_product(op) else set()
    return {key: index for key, index in last.items() if key in multiplied}


def _of_experts(graph: Graph) -> set[str]:
    """Results of forward that products with a weight for each of several experts read or make.

    With those that are such a result in another type or order.
    """
    varying = {name for name in graph.inputs if graph.value(name).role == "batch"}
    found = set[str]()
    for op in graph.operators:
        if op.phase != FORWARD:
            continue
        examples = varying.intersection(op.inputs)
        if is_product(op) and has_batch_dims(op) and len(examples) == 1:
            found.update(name for name in (*examples, *op.outputs) if name in graph.producers)
        elif len(op.inputs) == 1 and not found.isdisjoint(op.inputs):
            found.update(op.outputs)
        if examples:
            varying.update(op.outputs)
    return found


def _operators(
    graph: Graph,
    layer_of: Mapping[str, int],
    saved: Mapping[tuple[int, str], str],
    after: Mapping[int, list[tuple[int, str]]],
) -> Iterator[Operator]:
    """The operators of the graph, with those that save values after others."""
    for index, op in enumerate(graph.operators):
        if op.phase == BACKWARD:
            layer = layer_of[op.name]
            inputs = tuple(saved.get((layer, name), name) for name in op.inputs)
            yield op if inputs == op.inputs else replace(op, inputs=inputs)
        else:
            yield op
            for key in after.get(index, ()):
                yield _saving(graph.value(key[1]), saved[key])


def _saving(value: Value, name: str) -> Operator:
    """The operator of forward that returns a value under another name."""
    rule = elementwise((value.shape,), value.shape, ((0,),))
    return Operator(name, IDENTITY, (value.name,), (name,), rule, 0.0, FORWARD, _NOTHING)
