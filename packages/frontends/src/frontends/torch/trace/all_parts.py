"""The lines of one part of a batch on the rows of all parts, as `parts` finds them."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from frontends.step.step import FORWARD
from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.flat import FlatProgram, Line, TensorType
from frontends.torch.rules.rules import call_of_part
from frontends.torch.trace.pad import runs_on
from frontends.torch.trace.parts import BatchPart, is_elementwise

aten = torch.ops.aten


def without_parts(
    flat: FlatProgram,
    part: BatchPart,
    batch_dim: Mapping[str, int],
    early: Collection[str],
    *,
    each: bool,
) -> FlatProgram | None:
    """Return the step in which the lines of one part run on the rows of all parts; None if none do.

    Args:
        flat: The step.
        part: Its last part.
        batch_dim: By value of the part, the dim that holds examples, if one does.
        early: Values of the part that read no weights, and are computed part by part.
        each: Whether to keep the numbers of each part apart, such as its loss, rather than only
            their sum.
    """
    return _Whole(flat, part, batch_dim, early, each=each).program()


class _NotTogetherError(Exception):
    """A line of a part cannot run on the rows of all parts."""


class _Whole:
    """Makes the lines that compute what all parts give.

    A value of a part becomes one of three: with rows, one with those of all parts; a number, if
    these are kept apart, a vector of the numbers of all parts; and any other one, the sum.
    """

    def __init__(
        self,
        flat: FlatProgram,
        part: BatchPart,
        batch_dim: Mapping[str, int],
        early: Collection[str],
        *,
        each: bool,
    ) -> None:
        self._flat, self._part, self._dims, self._n = flat, part, batch_dim, part.n
        self._given = part.flat.kinds
        self._kinds, self._lines = dict(flat.kinds), list[Line]()
        self._phases = {name: line.phase for line in flat.lines for name in line.outputs}
        self._apart: dict[str, Sequence[str]] = {
            **{name: part.alike.get(name, [name] * part.n) for name in early},
            **part.draws,
        }
        """By value that is computed part by part: those of all parts."""

        lines = [o for o in part.flat.lines if self._apart.keys().isdisjoint(o.outputs)]
        inputs = *part.flat.inputs, *self._apart
        self._of_part = replace(part.flat, lines=tuple(lines), inputs=inputs).live()
        self._new = {n: f"of_parts.{n}" for line in self._of_part.lines for n in line.outputs}
        self._new |= part.pieces
        of_part = {*part.pieces, *self._apart}
        for line in self._of_part.lines:
            if not of_part.isdisjoint(line.inputs):
                of_part.update(line.outputs)
        self._each = {
            name
            for name in (of_part - self._dims.keys() if each else ())
            if math.prod(self._given[name].shape) == 1
        }

    def program(self) -> FlatProgram | None:
        """Return the step; None if a line of a part cannot run on the rows of all parts."""
        try:
            for name, of_parts in self._apart.items():
                self._join(name, of_parts)
            for line in self._of_part.lines:
                self._run(line)
            instead = {name: self._sum(name, *of) for name, of in self._part.sums.items()}
            for name, (of, dim) in self._part.joins.items():
                if self._dims.get(of) == dim:
                    instead[name] = self._new[of]
                elif of in self._each:
                    instead[name] = self._reshaped(self._new[of], self._flat.kinds[name].shape)
        except _NotTogetherError:
            return None
        others = self._flat.renamed(instead)
        lines = [replace(o, inputs=tuple(instead.get(n, n) for n in o.inputs)) for o in self._lines]
        ordered = _in_order([*others.lines, *lines], others)
        if len(ordered) != len(others.lines) + len(lines):  # one reads what comes after it
            return None
        whole = replace(others, lines=ordered, kinds=self._kinds).live()
        apart = tuple(name for of_parts in self._apart.values() for name in of_parts)
        allowed = {line.name for line in replace(self._flat, outputs=apart).live().lines}
        is_left = any(line.name in self._part.lines - allowed for line in whole.lines)
        return None if is_left else whole

    def _emit(self, call: Call, inputs: Sequence[str], kind: TensorType, phase: int) -> str:
        name = f"of_parts.{len(self._lines)}.{call.name}"
        self._kinds[name] = kind
        phase = max(phase, *(self._phases.get(read, FORWARD) for read in inputs))
        self._phases[name] = phase
        self._lines.append(Line(name, call, tuple(inputs), (name,), phase))
        return name

    def _reshaped(self, name: str, shape: Sequence[int], phase: int = FORWARD) -> str:
        kind = self._kinds[name]
        if kind.shape == tuple(shape):
            return name
        call = Call(aten.reshape.default, (Operand(0), list(shape)), {})
        return self._emit(call, (name,), TensorType(tuple(shape), kind.dtype), phase)

    def _shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of what a value of the part becomes."""
        shape = self._given[name].shape
        if name in self._each:
            return self._n, *shape
        dim = self._dims.get(name)
        return shape if dim is None else (*shape[:dim], self._n * shape[dim], *shape[dim + 1 :])

    def _join(self, name: str, of_parts: Sequence[str]) -> None:
        """Concatenate values that are computed part by part."""
        dim = 0 if name in self._each else self._dims.get(name)
        if dim is None:
            raise _NotTogetherError
        if name in self._each:
            own = 1, *self._given[name].shape
            of_parts = [self._reshaped(of_part, own) for of_part in of_parts]
        call = Call(aten.cat.default, ([Operand(k) for k in range(self._n)], dim), {})
        kind = TensorType(self._shape(name), self._given[name].dtype)
        self._new[name] = self._emit(call, of_parts, kind, FORWARD)

    def _run(self, line: Line) -> None:
        """Add a line on the rows of all parts, or on the numbers of each."""
        apart = self._each.intersection((*line.inputs, *line.outputs))
        if apart and not self._each.issuperset(line.outputs):
            line = self._with_rows(line)
        elif apart and not self._dims.keys().isdisjoint(line.inputs):
            self._sum_of_each(line)
            return
        elif apart:
            line = self._on_numbers(line)
        inputs, outputs = (
            tuple(self._new.get(n, n) for n in of) for of in (line.inputs, line.outputs)
        )
        for name in line.outputs:
            self._kinds[self._new[name]] = TensorType(self._shape(name), self._given[name].dtype)
        self._phases.update(dict.fromkeys(outputs, line.phase))
        shapes = [[self._kinds[name].shape for name in of] for of in (inputs, outputs)]
        made = replace(line, name=f"of_parts.{line.name}", inputs=inputs, outputs=outputs)
        if not runs_on(replace(self._flat, kinds=self._kinds), made, *shapes):
            raise _NotTogetherError
        self._lines.append(replace(made, call=call_of_part(made.call, *shapes)))

    def _with_rows(self, line: Line) -> Line:
        """Return a line with rows that reads the number of its part for each row."""
        (result,) = line.outputs[:1]
        if result not in self._dims or not (is_elementwise(line) or line.call.name == "expand"):
            raise _NotTogetherError
        shape, dim = self._shape(result), self._dims[result]
        inputs = []
        for name in line.inputs:
            if name in self._each:
                wide = self._reshaped(self._new[name], (self._n, 1), line.phase)
                copies = self._n, shape[dim] // self._n
                call = Call(aten.expand.default, (Operand(0), list(copies)), {})
                kind = TensorType(copies, self._kinds[wide].dtype)
                wide = self._emit(call, (wide,), kind, line.phase)
                column = [1] * len(shape)
                column[dim] = shape[dim]
                name = self._reshaped(wide, column, line.phase)
            inputs.append(name)
        call = line.call
        if call.name == "expand":
            call = Call(aten.expand.default, (Operand(0), list(shape)), {})
        return replace(line, call=call, inputs=tuple(inputs))

    def _sum_of_each(self, line: Line) -> None:
        """Add the sum over the rows of each part."""
        (source,), (result,) = line.inputs, line.outputs
        if line.call.name != "sum":
            raise _NotTogetherError
        rows, dim = self._new[source], self._dims[source]
        kind = self._kinds[rows]
        order = (dim, *(d for d in range(len(kind.shape)) if d != dim))
        if dim:
            call = Call(aten.permute.default, (Operand(0), list(order)), {})
            front = TensorType(tuple(kind.shape[d] for d in order), kind.dtype)
            rows = self._emit(call, (rows,), front, line.phase)
        rows = self._reshaped(rows, (self._n, math.prod(kind.shape) // self._n), line.phase)
        call = Call(aten.sum.dim_IntList, (Operand(0), [1]), dict(line.call.keywords))
        kind = TensorType((self._n,), self._given[result].dtype)
        total = self._emit(call, (rows,), kind, line.phase)
        self._new[result] = self._reshaped(total, self._shape(result), line.phase)

    def _on_numbers(self, line: Line) -> Line:
        """Return a line that computes numbers of each part from numbers."""
        (result,) = line.outputs
        shape = self._shape(result)
        if line.call.name in ("reshape", "sum") and not line.call.keywords:
            call = Call(aten.reshape.default, (Operand(0), list(shape)), {})
            return replace(line, call=call)
        if not is_elementwise(line):
            raise _NotTogetherError
        inputs = []
        for name in line.inputs:
            if name in self._each:
                own = self._given[name].shape
                ones = [1] * (len(shape) - 1 - len(own))
                name = self._reshaped(self._new[name], (self._n, *ones, *own), line.phase)
            inputs.append(name)
        return replace(line, inputs=tuple(inputs))

    def _sum(self, name: str, of: str, rest: str | None) -> str:
        """Add the lines that make a sum of all parts; return it."""
        total, kind = self._new[of], self._flat.kinds[name]
        if self._kinds[total].dtype != kind.dtype:
            wide = TensorType(self._kinds[total].shape, kind.dtype)
            call = Call(aten._to_copy.default, (Operand(0),), {"dtype": kind.dtype})
            total = self._emit(call, (total,), wide, FORWARD)
        if of in self._each:
            call = Call(aten.sum.dim_IntList, (Operand(0), [0]), {})
            own = TensorType(self._given[of].shape, kind.dtype)
            total = self._emit(call, (total,), own, FORWARD)
        total = self._reshaped(total, kind.shape)
        if rest is None:
            return total
        call = Call(aten.add.Tensor, (Operand(0), Operand(1)), {})
        phase = next(line.phase for line in self._flat.lines if name in line.outputs)
        return self._emit(call, (rest, total), kind, phase)


def _in_order(lines: Sequence[Line], flat: FlatProgram) -> tuple[Line, ...]:
    """Return lines in an order in which each follows those that make what it reads."""
    missing = {id(line): len(set(line.inputs)) for line in lines}
    readers: dict[str, list[int]] = defaultdict(list)
    for k, line in enumerate(lines):
        for name in set(line.inputs):
            readers[name].append(k)
    ready: list[int] = [k for k, line in enumerate(lines) if not line.inputs]
    heapq.heapify(ready)

    def made(names: Iterable[str]) -> None:
        for name in names:
            for k in readers.pop(name, ()):
                missing[id(lines[k])] -= 1
                if not missing[id(lines[k])]:
                    heapq.heappush(ready, k)

    made([*flat.inputs, *flat.constants])
    ordered = []
    while ready:
        line = lines[heapq.heappop(ready)]
        ordered.append(line)
        made(line.outputs)
    return tuple(ordered)
