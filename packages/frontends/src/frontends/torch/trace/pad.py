"""Pads the examples of a program, as `frontends.step.padding` decides."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from frontends.step.padding import Padding, Shape
from frontends.step.step import FORWARD
from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.flat import FlatProgram, Line, TensorType
from frontends.torch.base.origins import Origin
from frontends.torch.rules.rules import call_of_part

aten = torch.ops.aten


def runs_on(
    flat: FlatProgram, line: Line, operands: Sequence[Shape], results: Sequence[Shape]
) -> bool:
    """Return whether a line makes results of these shapes from operands of these shapes."""
    types = [flat.kinds[name].dtype for name in line.inputs]
    tensors = [
        torch.empty(shape, dtype=dtype, device="meta")
        for shape, dtype in zip(operands, types, strict=True)
    ]
    try:
        made = call_of_part(line.call, operands, results)(tensors)
    except Exception:  # each operator says in its own way that it takes no such shapes
        return False
    return [tuple(tensor.shape) for tensor in made] == [*map(tuple, results)]


def padded(flat: FlatProgram, batch: Collection[str], padding: Padding) -> FlatProgram:
    """Return the program of a microbatch with more examples.

    A value with more examples has another name, except for arguments that hold the batch.

    Args:
        flat: The program of a microbatch.
        batch: Its inputs that have more examples when it is called.
        padding: What happens to each operator.
    """
    return _Padder(flat, batch, padding).program()


class _Padder:
    """Makes the lines of a padded program, in order."""

    def __init__(self, flat: FlatProgram, batch: Collection[str], padding: Padding) -> None:
        self._flat, self._padding = flat, padding
        self._phase = {name: line.phase for line in flat.lines for name in line.outputs}
        self._kinds = dict(flat.kinds)
        self._kinds.update((name, self._with_padding(name)) for name in batch)
        self._lines: list[Line] = []
        self._wide = {name: name for name in batch}
        """By value: the one with padding, if that exists."""

        self._narrow = {name: name for name in (*flat.inputs, *flat.constants) if name not in batch}
        """By value: the one without padding, if that exists."""

    def program(self) -> FlatProgram:
        """Return the whole program."""
        for line in self._flat.lines:
            if line.name in self._padding.grown:
                self._grow(line)
            else:
                inputs = tuple(self._narrowed(name, line.origin) for name in line.inputs)
                self._lines.append(replace(line, inputs=inputs))
                self._narrow.update((name, name) for name in line.outputs)
        outputs = tuple(self._narrowed(name, None) for name in self._flat.outputs)
        return replace(
            self._flat, lines=tuple(self._lines), kinds=self._kinds, outputs=outputs
        ).live()

    def _grow(self, line: Line) -> None:
        inputs = [self._widened(name, line.origin) for name in line.inputs]
        for place in self._padding.zeroed_operands.get(line.name, ()):
            at = f"{line.name}.{place}"
            inputs[place] = self._zeroed(inputs[place], line.inputs[place], at, line)
        outputs = [f"padded.{n}" if n in self._padding.dim else n for n in line.outputs]
        for name, output in zip(line.outputs, outputs, strict=True):
            self._kinds[output] = self._with_padding(name)
        shapes = [[self._kinds[n].shape for n in names] for names in (inputs, outputs)]
        call = call_of_part(line.call, shapes[0], shapes[1])
        self._lines.append(replace(line, call=call, inputs=tuple(inputs), outputs=tuple(outputs)))
        for name, output in zip(line.outputs, outputs, strict=True):
            if output == name:
                self._narrow[name] = name
            elif line.name in self._padding.zeroed_results:
                self._wide[name] = self._zeroed(output, name, name, line)
            else:
                self._wide[name] = output

    def _with_padding(self, name: str) -> TensorType:
        kind = self._flat.kinds[name]
        return TensorType(self._padding.shape(name, kind.shape), kind.dtype)

    def _sizes(self, name: str) -> tuple[int, int, int]:
        """Return the dim of a value that holds examples, its size, and that with padding."""
        dim = self._padding.dim[name]
        size = self._flat.kinds[name].shape[dim]
        return dim, size, self._padding.size(size)

    def _widened(self, name: str, origin: Origin | None) -> str:
        """Return the value with padding, which repeats the last examples."""
        if name not in self._padding.dim:
            return self._narrowed(name, origin)
        if name not in self._wide:
            dim, size, wide = self._sizes(name)
            kind, phase = self._flat.kinds[name], self._phase.get(name, FORWARD)
            part = TensorType((*kind.shape[:dim], wide - size, *kind.shape[dim + 1 :]), kind.dtype)
            call = Call(aten.slice.Tensor, (Operand(0), dim, 2 * size - wide, size), {})
            last = self._add(f"last.{name}", call, (self._narrow[name],), part, phase, origin)
            call = Call(aten.cat.default, ([Operand(0), Operand(1)], dim), {})
            inputs = (self._narrow[name], last)
            kind = self._with_padding(name)
            self._wide[name] = self._add(f"padded.{name}", call, inputs, kind, phase, origin)
        return self._wide[name]

    def _narrowed(self, name: str, origin: Origin | None) -> str:
        """Return the value without padding."""
        if name not in self._narrow:
            dim, size, _ = self._sizes(name)
            call = Call(aten.slice.Tensor, (Operand(0), dim, 0, size), {})
            kind, phase = self._flat.kinds[name], self._phase.get(name, FORWARD)
            wide = (self._wide[name],)
            self._narrow[name] = self._add(f"unpadded.{name}", call, wide, kind, phase, origin)
        return self._narrow[name]

    def _zeroed(self, wide: str, name: str, at: str, reader: Line) -> str:
        """Return a value with padding in which the examples that were added are zeros."""
        dim, size, n = self._sizes(name)
        kind = self._kinds[wide]
        column = (n, *(1 for _ in kind.shape[dim + 1 :]))
        phase, origin = reader.phase, reader.origin
        counted, later = TensorType((n,), torch.int64), TensorType((n,), torch.bool)
        call = Call(aten.arange.default, (n,), {"dtype": torch.int64})
        number = self._add(f"number.{at}", call, (), counted, phase, origin)
        call = Call(aten.ge.Scalar, (Operand(0), size), {})
        added = self._add(f"added.{at}", call, (number,), later, phase, origin)
        if len(column) > 1:
            call = Call(aten.reshape.default, (Operand(0), list(column)), {})
            later = TensorType(column, torch.bool)
            added = self._add(f"column.{at}", call, (added,), later, phase, origin)
        call = Call(aten.masked_fill.Scalar, (Operand(0), Operand(1), 0), {})
        return self._add(f"zeroed.{at}", call, (wide, added), kind, phase, origin)

    def _add(
        self,
        name: str,
        call: Call,
        inputs: tuple[str, ...],
        kind: TensorType,
        phase: int,
        origin: Origin | None,
    ) -> str:
        """Add a line; return its only result, which has its name."""
        self._kinds[name] = kind
        self._lines.append(Line(name, call, inputs, (name,), phase, origin))
        return name
