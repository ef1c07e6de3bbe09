"""A graph in few words: each name once, and what many values or operators have in common once.

Operators name values by their places, and their shapes, rules and costs by what they are alike in:
repeated layers, which are most of a model, differ in names and places only.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.base.record import Packing
from autoshard.errors import GraphError
from autoshard.graph.graph import Graph
from autoshard.graph.graph_fields import Operator, Output, Phase, Role, Value
from autoshard.graph.rule import Rule


@dataclass(frozen=True, slots=True)
class ValueSort:
    """What equal tensors have in common."""

    shape: tuple[int, ...]
    dtype: str
    role: Role


@dataclass(frozen=True, slots=True)
class OperatorSort:
    """What equal operators have in common."""

    kind: str
    rule: Rule
    flops: float
    phase: int


@dataclass(frozen=True, slots=True)
class _Packed:
    """A graph; values are named by their places."""

    phases: tuple[Phase, ...]
    values: tuple[tuple[str, ValueSort], ...]
    operators: tuple[tuple[OperatorSort, tuple[int, ...], tuple[int, ...], str | None], ...]
    """Sort, inputs, outputs, and the name if it is not that of the first output."""

    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, int | None, bool], ...]


SHARED = (Rule, ValueSort, OperatorSort)
"""Classes that are to be written once."""


def _pack(graph: Graph) -> _Packed:
    place = {value.name: index for index, value in enumerate(graph.values)}
    return _Packed(
        graph.phases,
        tuple((v.name, ValueSort(v.shape, v.dtype, v.role)) for v in graph.values),
        tuple(
            (
                OperatorSort(op.kind, op.rule, op.flops, op.phase),
                tuple(place[name] for name in op.inputs),
                tuple(place[name] for name in op.outputs),
                None if op.outputs[:1] == (op.name,) else op.name,
            )
            for op in graph.operators
        ),
        tuple(place[name] for name in graph.inputs),
        tuple(
            (place[out.value], None if out.alias is None else place[out.alias], out.whole)
            for out in graph.outputs
        ),
    )


def _unpack(packed: _Packed) -> Graph:
    values = tuple(Value(name, s.shape, s.dtype, s.role) for name, s in packed.values)

    def names(places: tuple[int, ...]) -> tuple[str, ...]:
        if not all(0 <= place < len(values) for place in places):
            raise GraphError(f"a graph has values 0 to {len(values) - 1}; got {places}")
        return tuple(values[place].name for place in places)

    operators = []
    for sort, read, made, name in packed.operators:
        outputs = names(made)
        if name is None and not outputs:
            raise GraphError("an operator without a name is called like its first output")
        called = outputs[0] if name is None else name
        operators.append(
            Operator(called, sort.kind, names(read), outputs, sort.rule, sort.flops, sort.phase)
        )
    return Graph(
        packed.phases,
        values,
        tuple(operators),
        names(packed.inputs),
        tuple(
            Output(names((value,))[0], None if alias is None else names((alias,))[0], whole)
            for value, alias, whole in packed.outputs
        ),
    )


PACKING = Packing(_Packed, _pack, _unpack)
"""Of a `Graph`."""
