"""Builds a `Flat` program line by line, while the nodes of a traced graph are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from frontends.step.step import APPLY, BACKWARD, FORWARD
from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.compat.marks import AFTER, BEFORE, DURING, ORIGIN, PHASE
from frontends.torch.base.flat import Line, TensorType, full
from frontends.torch.base.origins import Origin

aten = torch.ops.aten


class Name(str):
    """The name of a value; a type of its own, as results may also be strings of the user's."""

    __slots__ = ()


class FlatBuilder:
    """The lines, constants, shapes and types of a program that is being built."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.kinds: dict[str, TensorType] = {}
        """Shape and type of every value, by name."""

        self.constants: dict[str, torch.Tensor] = {}
        self.marks: Mapping[str, Any] = {}
        """The metadata of the node that is read."""

        self._places: dict[str, int] = {}
        """By value, the index of the line that computes it."""

        self._of_backward: set[str] = set()
        """Values that lines of backward compute."""

    @property
    def origin(self) -> Origin | None:
        """Where the node that is read was called."""
        origin: Origin | None = self.marks.get(ORIGIN)
        return origin

    def emit(self, call: Call, inputs: Sequence[str], kind: TensorType) -> Name:
        """Append a call with one result; return the name of the result."""
        name = Name(f"{call.name}.{len(self.lines)}")
        self.kinds[name] = kind
        self._append(Line(name, call, tuple(inputs), (name,), 0, self.origin))
        return name

    def emit_several(self, call: Call, inputs: Sequence[str], values: Any) -> list[Name | None]:
        """Append a call with several results; return a name for each that is a tensor."""
        line = f"{call.name}.{len(self.lines)}"
        names = [
            Name(f"{line}:{k}") if isinstance(value, torch.Tensor) else None
            for k, value in enumerate(values)
        ]
        kinds = {name: kind_of(v) for name, v in zip(names, values, strict=True) if name}
        self.kinds.update(kinds.items())
        self._append(Line(line, call, tuple(inputs), tuple(kinds), 0, self.origin))
        return names

    def _append(self, line: Line) -> None:
        """Append a line with its phase.

        A line that reads results of backward before the last gradient is complete is backward, too.
        """
        when = self.marks[PHASE]
        if when == DURING or (when == BEFORE and not self._of_backward.isdisjoint(line.inputs)):
            self._of_backward.update(line.outputs)
            line = replace(line, phase=BACKWARD)
        else:
            line = replace(line, phase=APPLY if when == AFTER else FORWARD)
        self._places.update((name, len(self.lines)) for name in line.outputs)
        self.lines.append(line)

    def line_of(self, name: str) -> Line | None:
        """Return the line that computes a value; None for an input or a constant."""
        return self.lines[self._places[name]] if name in self._places else None

    def constant(self, tensor: torch.Tensor) -> Name:
        """Add a constant; return its name."""
        name = Name(f"constant.{len(self.constants)}")
        self.constants[name] = tensor.detach()
        self.kinds[name] = kind_of(tensor)
        return name

    def filled(self, value: torch.Tensor, number: Any) -> Name:
        """Append a tensor filled with a number, of the shape and type of `value`."""
        kind = kind_of(value)
        return self.emit(full(kind.shape, number, kind.dtype), (), kind)

    def blank(self, value: torch.Tensor) -> Name:
        """Emit an uninitialized tensor with eager's strides, to draw into in eager's order."""
        call = Call(
            aten.empty_strided.default,
            (list(value.shape), list(value.stride())),
            {"dtype": value.dtype},
        )
        return self.emit(call, (), kind_of(value))

    def converted(self, source: Name, dtype: torch.dtype) -> Name:
        """Return the value converted to a type."""
        kind = self.kinds[source]
        if kind.dtype == dtype:
            return source
        call = Call(aten._to_copy.default, (Operand(0),), {"dtype": dtype})
        return self.emit(call, (source,), TensorType(kind.shape, dtype))

    def reshaped(self, source: Name, shape: tuple[int, ...]) -> Name:
        """Return the value in another shape."""
        kind = self.kinds[source]
        if kind.shape == shape:
            return source
        call = Call(aten.reshape.default, (Operand(0), list(shape)), {})
        return self.emit(call, (source,), TensorType(shape, kind.dtype))

    def expanded(self, source: Name, shape: tuple[int, ...]) -> Name:
        """Return the value broadcast to a shape."""
        kind = self.kinds[source]
        if kind.shape == shape:
            return source
        call = Call(aten.expand.default, (Operand(0), list(shape)), {})
        return self.emit(call, (source,), TensorType(shape, kind.dtype))

    def permuted(self, source: Name, order: tuple[int, ...]) -> Name:
        """Return the value with its dims in another order."""
        if order == tuple(sorted(order)):
            return source
        kind = self.kinds[source]
        call = Call(aten.permute.default, (Operand(0), list(order)), {})
        shape = tuple(kind.shape[k] for k in order)
        return self.emit(call, (source,), TensorType(shape, kind.dtype))

    def chosen(self, is_larger: bool, arguments: Sequence[Any], kind: TensorType) -> Name:
        """Return the larger or smaller of two numbers; the first one if one of them is nan."""
        first, second = (
            self.converted(a, kind.dtype)
            if isinstance(a, Name)
            else self.emit(full((), a, kind.dtype), (), kind)
            for a in arguments
        )
        compare = aten.gt.Tensor if is_larger else aten.lt.Tensor
        call = Call(compare, (Operand(0), Operand(1)), {})
        is_second = self.emit(call, (second, first), TensorType((), torch.bool))
        call = Call(aten.where.self, (Operand(0), Operand(1), Operand(2)), {})
        return self.emit(call, (is_second, second, first), kind)

    def let_check(self, info: Name) -> None:
        """Let the operator that returns the status to be checked check it itself."""
        place = self._places[info]
        line = self.lines[place]
        if line.call.has("check_errors"):
            self.lines[place] = replace(line, call=line.call.replace(check_errors=True))


def kind_of(tensor: torch.Tensor) -> TensorType:
    """Return shape and type of a tensor."""
    return TensorType(tuple(tensor.shape), tensor.dtype)
