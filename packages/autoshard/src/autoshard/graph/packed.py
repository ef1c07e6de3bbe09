"""A compact form of a graph for JSON: each name, shape and rule is written once.

Operators refer to values by index, and to kind, rule, FLOP and phase by a shared entry: the
repeated layers, which are most of a model, differ only in names and indices.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autoshard.base.record import LEFT_OUT_IF_DEFAULT, Packing
from autoshard.errors import GraphError
from autoshard.graph.graph import Graph
from autoshard.graph.graph_fields import Accesses, Operator, Output, Phase, Role, Value
from autoshard.graph.rule import Rule


@dataclass(frozen=True, slots=True)
class ValueSort:
    """What values that differ only in their names have in common."""

    shape: tuple[int, ...]
    dtype: str
    role: Role


@dataclass(frozen=True, slots=True)
class OperatorSort:
    """What operators that differ only in their names and values have in common."""

    kind: str
    rule: Rule
    flops: float
    phase: int
    accesses: Accesses | None = field(default=None, metadata={LEFT_OUT_IF_DEFAULT: True})


@dataclass(frozen=True, slots=True)
class _Packed:
    """The compact form of a graph, in which values are referred to by index."""

    phases: tuple[Phase, ...]
    values: tuple[tuple[str, ValueSort], ...]
    operators: tuple[tuple[OperatorSort, tuple[int, ...], tuple[int, ...], str | None], ...]
    """For each: sort, inputs, outputs, and the name unless it is that of the first output."""

    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, int | None, bool], ...]
    """For each: value, alias, and whether it is whole."""


SHARED = (Rule, ValueSort, OperatorSort)
"""The classes whose equal values are written once."""


def _pack(graph: Graph) -> _Packed:
    index_of = {value.name: index for index, value in enumerate(graph.values)}
    return _Packed(
        graph.phases,
        tuple((v.name, ValueSort(v.shape, v.dtype, v.role)) for v in graph.values),
        tuple(
            (
                OperatorSort(op.kind, op.rule, op.flops, op.phase, op.accesses),
                tuple(index_of[name] for name in op.inputs),
                tuple(index_of[name] for name in op.outputs),
                None if op.outputs[:1] == (op.name,) else op.name,
            )
            for op in graph.operators
        ),
        tuple(index_of[name] for name in graph.inputs),
        tuple(
            (index_of[out.value], None if out.alias is None else index_of[out.alias], out.whole)
            for out in graph.outputs
        ),
    )


def _unpack(packed: _Packed) -> Graph:
    values = tuple(Value(name, s.shape, s.dtype, s.role) for name, s in packed.values)

    def names(indices: tuple[int, ...]) -> tuple[str, ...]:
        if not all(0 <= index < len(values) for index in indices):
            raise GraphError(f"a graph has values 0 to {len(values) - 1}; got {indices}")
        return tuple(values[index].name for index in indices)

    operators = []
    for sort, read, written, name in packed.operators:
        outputs = names(written)
        if name is None and not outputs:
            raise GraphError("an operator without a name has that of its first output; got none")
        called = outputs[0] if name is None else name
        operators.append(
            Operator(
                called,
                sort.kind,
                names(read),
                outputs,
                sort.rule,
                sort.flops,
                sort.phase,
                sort.accesses,
            )
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
"""The `Packing` of a `Graph`."""
