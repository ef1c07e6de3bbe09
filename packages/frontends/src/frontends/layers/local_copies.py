"""Make on every stage, instead of sending, what is cheap to make there from the batch or nothing.

All layers of a transformer read the same masks, positions and rotary tables. Only the first layer
that reads them makes them; from stage to stage, they would be sent for every microbatch, and a mask
for attention can be larger than all activations. So every layer that reads such a value gets copies
of the operators that make it, and a stage of several layers runs one of these copies. If backward
computes activations again, it makes such values again, too, instead of holding them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from autoshard import Graph, Operator, Value

from frontends.layers.cheap import is_cheap
from frontends.step.step import APPLY, BACKWARD, FORWARD, TrainingStep

_MOST_TRAFFIC = 16.0
"""The most bytes of memory traffic that may make what would take one byte between devices [chosen]:
memory is 6 to 8 times as fast as NVLink and 50 times as fast as a network, and the stage that made
a value would send it to every other one, for each microbatch."""

_LEAST_BYTES = 1 << 18
"""To send less takes as long [chosen]: 10 us at 25 GB/s."""

_MARK = re.compile(r"layer\d+@")
"""What the names of copies begin with."""


def with_local_copies(
    step: TrainingStep, layer_of: dict[str, int]
) -> tuple[TrainingStep, dict[str, str]]:
    """The step with copies of cheap operators in all layers that read their results.

    Args:
        step: A step whose operators all have layers.
        layer_of: These layers; those of the copies are added.

    Returns:
        The step; and by copy, the operator that it is a copy of.
    """
    made = _Made(step.graph)
    elsewhere = {
        name
        for op in step.graph.operators
        for name in op.inputs
        if op.phase != APPLY and name in made and layer_of[made.by[name].name] != layer_of[op.name]
    }
    copied = {name for name in elsewhere if made.is_worthwhile(name)}
    if not copied:
        return step, {}
    copies = _Copies(made, layer_of, copied, again=bool(step.original))
    operators = tuple(copies.with_operators(step.graph.operators))
    graph = replace(step.graph, values=(*step.graph.values, *copies.values), operators=operators)
    return replace(step, graph=graph), copies.original


def release_made(step: TrainingStep, layer_of: dict[str, int]) -> None:
    """Take operators that can be copied out of their layers, to be placed where they are read.

    A mask is often computed before the first layer that reads it. What forward does not read
    stays, and no layer is left without any operator.
    """
    made = _Made(step.graph)
    released, read = set[str](), set[str]()
    for op in reversed(step.graph.operators):
        if op.phase == FORWARD:
            if made.by.get(op.outputs[0]) is not op:
                read.update(op.inputs)
            elif not read.isdisjoint(op.outputs):
                released.add(op.name)
                read.update(op.inputs)
    other = {layer for name, layer in layer_of.items() if name not in released}
    for name in released:
        if layer_of.get(name) in other:
            del layer_of[name]


def is_local_copy(operator: str) -> bool:
    """Whether the name of an operator is that of a copy."""
    return _MARK.match(operator) is not None


def once_a_stage(operators: Iterable[Operator], local: Mapping[str, str]) -> Iterator[Operator]:
    """The operators of a stage, of which those that make the same run once.

    Args:
        operators: The operators, in order.
        local: By copy, the operator that it is a copy of.
    """
    first: dict[tuple[int, str], Operator] = {}
    instead: dict[str, str] = {}
    for op in operators:
        its = first.setdefault((op.phase, local.get(op.name, op.name)), op)
        if its is not op:
            instead.update(zip(op.outputs, its.outputs, strict=True))
        elif instead.keys().isdisjoint(op.inputs):
            yield op
        else:
            yield replace(op, inputs=tuple(instead.get(name, name) for name in op.inputs))


class _Made:
    """The values that cheap operators of forward make of what the step does not change."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.by: dict[str, Operator] = {}
        """By value, the operator that makes it."""
        updated = {output.alias for output in graph.outputs}
        known = {name for name in graph.inputs if name not in updated}
        for op in graph.operators:
            if op.phase == FORWARD and known.issuperset(op.inputs) and is_cheap(op, graph):
                known.update(op.outputs)
                self.by.update(dict.fromkeys(op.outputs, op))

    def __contains__(self, name: str) -> bool:
        return name in self.by

    def operators_for(self, name: str) -> list[Operator]:
        """All operators that make a value of inputs, in order."""
        needed, waiting = set[int](), [name]
        while waiting:
            index, _ = self.graph.producers[waiting.pop()]
            if index not in needed:
                needed.add(index)
                waiting += [n for n in self.graph.operators[index].inputs if n in self]
        return [self.graph.operators[index] for index in sorted(needed)]

    def is_worthwhile(self, name: str) -> bool:
        """Whether to make a value takes little more memory traffic than to send it."""
        most = _MOST_TRAFFIC * max(self.graph.value(name).n_bytes, _LEAST_BYTES)
        return sum(map(self._traffic, self.operators_for(name))) <= most

    def _traffic(self, op: Operator) -> float:
        names = (*op.inputs, *op.outputs)
        times = op.accesses.times if op.accesses else (1.0,) * len(names)
        return sum(self.graph.value(n).n_bytes * k for n, k in zip(names, times, strict=True))


class _Copies:
    """The copies of operators in the layers that read their results.

    Args:
        made: What can be copied.
        layer_of: The layers of all operators; those of the copies are added.
        copied: The values of which layers get their own.
        again: Whether backward makes its own, instead of reading those of forward.
    """

    def __init__(
        self, made: _Made, layer_of: dict[str, int], copied: Collection[str], *, again: bool
    ) -> None:
        self._made, self._layer_of, self._again = made, layer_of, again
        self._copied = {name: made.operators_for(name) for name in copied}
        self.original: dict[str, str] = {}
        self.values: list[Value] = []
        self._name: dict[tuple[int, int, str], str] = {}
        """By phase, layer and value, its name in the copy."""

    def with_operators(self, operators: Sequence[Operator]) -> Iterator[Operator]:
        """The operators of a step; each copy comes before the first that reads it."""
        backward = [op for op in operators if op.phase == BACKWARD] if not self._again else []
        before = FORWARD
        for op in operators:
            if op.phase != before:
                for later in backward:  # what no operator of forward reads in the layer
                    yield from self._read_by(later, FORWARD)
                backward, before = [], op.phase
            if op.phase == APPLY:
                yield op
                continue
            phase = op.phase if self._again else FORWARD
            yield from self._read_by(op, phase)
            layer = self._layer_of[op.name]
            inputs = tuple(self._name.get((phase, layer, name), name) for name in op.inputs)
            yield op if inputs == op.inputs else replace(op, inputs=inputs)

    def _read_by(self, reader: Operator, phase: int) -> Iterator[Operator]:
        """The copies that an operator reads and that are not yet there."""
        layer = self._layer_of[reader.name]
        for name in reader.inputs:
            if name not in self._copied:
                continue
            for op in self._copied[name]:
                is_there = (phase, layer, op.outputs[0]) in self._name
                if not is_there and (phase, layer) != (FORWARD, self._layer_of[op.name]):
                    yield self._copy(op, phase, layer)

    def _copy(self, op: Operator, phase: int, layer: int) -> Operator:
        mark = f"layer{layer}@" if phase == FORWARD else f"layer{layer}@backward@"
        for name in op.outputs:
            self._name[phase, layer, name] = mark + name
            self.values.append(replace(self._made.graph.value(name), name=mark + name))
        self.original[mark + op.name] = op.name
        self._layer_of[mark + op.name] = layer
        return replace(
            op,
            name=mark + op.name,
            phase=phase,
            inputs=tuple(self._name.get((phase, layer, name), name) for name in op.inputs),
            outputs=tuple(mark + name for name in op.outputs),
        )
