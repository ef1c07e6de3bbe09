"""Puts the examples first where values interleave them, as `frontends.step.interleaved` decides."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import torch

from frontends.step.examples import Join
from frontends.step.interleaved import Reordering, Transposition, pieces_apart
from frontends.step.step import APPLY
from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.flat import FlatProgram, Line, TensorType

aten = torch.ops.aten

_CUTS = ("slice", "split", "split_with_sizes")
_PUTS = ("cat", "slice_backward", "slice_scatter")
_OF_A_RANGE = ("slice", "slice_backward", "slice_scatter")


def joins_of(flat: FlatProgram) -> dict[str, Join]:
    """By line that joins values along a dim, or cuts one: how."""
    found = {line.name: _join_of(line, flat.kinds) for line in flat.lines}
    return {name: join for name, join in found.items() if join is not None}


def _join_of(line: Line, kinds: Mapping[str, TensorType]) -> Join | None:
    call, name = line.call, line.call.name
    if name not in _CUTS + _PUTS:
        return None
    wholes, parts = _wholes_and_parts(line)
    shape = kinds[wholes[0]].shape
    if not shape:
        return None
    dim = call.argument("dim") % len(shape)
    if name in _OF_A_RANGE:
        of_slice = (call.argument(name) for name in ("start", "end", "step"))
        begin, end, step = slice(*of_slice).indices(shape[dim])
        if step != 1:
            return None
        return Join.of(dim, wholes, shape[dim], [(part, begin, end) for part in parts])
    ends = accumulate((kinds[part].shape[dim] for part in parts), initial=0)
    ranges = [(part, *span) for part, span in zip(parts, pairwise(ends), strict=True)]
    return Join.of(dim, wholes, shape[dim], ranges)


def _wholes_and_parts(line: Line) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if line.call.name in _CUTS:
        return line.inputs, line.outputs
    if line.call.name in _OF_A_RANGE:  # the last operand is put into the other one, or among zeros
        return (*line.outputs, *line.inputs[:-1]), line.inputs[-1:]
    return line.outputs, line.inputs


def reordered(
    flat: FlatProgram, reordering: Reordering, equal: Mapping[str, Collection[int]]
) -> FlatProgram:
    """Return the program with values that interleave the examples in the new order.

    Args:
        flat: The program.
        reordering: What happens to each line.
        equal: For values that consist of copies: the dims along which all slices are equal.
    """
    return _Reorderer(flat, reordering, equal).program()


class _Reorderer:
    """Makes the lines of the program, in order."""

    def __init__(
        self, flat: FlatProgram, reordering: Reordering, equal: Mapping[str, Collection[int]]
    ) -> None:
        self._flat, self._how, self._equal = flat, reordering, equal
        self._kinds = dict(flat.kinds)
        self._lines: list[Line] = []
        self._old = {name: name for name in (*flat.inputs, *flat.constants)}
        """By value: the one in the old order, if that exists."""

        self._new: dict[str, str] = {}
        """By value: the one in the new order, if that exists."""

    def program(self) -> FlatProgram:
        """Return the whole program."""
        for line in sorted(self._flat.lines, key=lambda line: line.phase):
            if line.name in self._how.kept:
                inputs = tuple(self._in_new(name, line) for name in line.inputs)
                self._lines.append(replace(line, inputs=inputs, outputs=self._named(line)))
            elif line.name in self._how.reshapes:
                self._move(line, self._how.reshapes[line.name])
            elif line.name in self._how.joins:
                self._join(line, *self._how.joins[line.name])
            else:
                inputs = tuple(self._in_old(name, line) for name in line.inputs)
                self._lines.append(replace(line, inputs=inputs))
                self._old.update((name, name) for name in line.outputs)
        outputs = tuple(self._in_old(name, None) for name in self._flat.outputs)
        return replace(
            self._flat, lines=tuple(self._lines), kinds=self._kinds, outputs=outputs
        ).live()

    def _move(self, line: Line, move: Transposition) -> None:
        (source,) = (self._in_new(name, line) for name in line.inputs)
        self._moved(source, move, self._named(line)[0], line)

    def _join(self, line: Line, join: Join, outer: int) -> None:
        """Run the operator along a dim of pieces, which is put behind that of the examples."""
        counts, dim = join.counts, join.dim

        def apart(name: str) -> TensorType:
            kind = self._flat.kinds[name]
            return replace(kind, shape=pieces_apart(kind.shape, dim, counts[name], outer))

        inputs = tuple(
            self._reshaped(self._in_new(name, line), apart(name), f"pieces.{line.name}.{k}", line)
            for k, name in enumerate(line.inputs)
        )
        results = tuple(f"pieces.{name}" for name in line.outputs)
        self._kinds.update((f"pieces.{name}", apart(name)) for name in line.outputs)
        call = self._call_of_pieces(line.call, join, apart(join.wholes[0]).shape)
        pieces = f"pieces.{line.name}"
        self._lines.append(replace(line, name=pieces, call=call, inputs=inputs, outputs=results))
        for name, result in zip(line.outputs, self._named(line), strict=True):
            self._reshaped(f"pieces.{name}", self._flat.kinds[name], result, line)

    def _call_of_pieces(self, call: Call, join: Join, whole: Sequence[int]) -> Call:
        changed: dict[str, object] = {"dim": join.dim + 1}
        counts = [n for _, _, n in join.parts]
        if call.name in _OF_A_RANGE:
            ((_, first, n),) = join.parts
            changed |= {"start": first, "end": first + n}
        if call.name == "slice_backward":
            changed["input_sizes"] = list(whole)
        if call.name in ("split", "split_with_sizes"):
            is_list = isinstance(call.arguments[1], list | tuple)
            changed["split_sizes" if call.has("split_sizes") else "split_size"] = (
                counts if is_list else counts[0]
            )
        return call.replace(**changed)

    def _named(self, line: Line) -> tuple[str, ...]:
        """Return the names of a line's results, and let them be known in their order."""
        names = []
        for name in line.outputs:
            if name in self._how.places:
                self._new[name] = f"reordered.{name}"
                self._kinds[f"reordered.{name}"] = self._kinds[name]
                names.append(f"reordered.{name}")
            else:
                self._old[name] = name
                names.append(name)
        return tuple(names)

    def _in_new(self, name: str, reader: Line) -> str:
        """Return a value in the new order; the value itself if it interleaves no examples."""
        if name not in self._how.places:
            return self._in_old(name, reader)
        if name not in self._new:
            if self._how.places[name].dim in self._equal.get(name, ()):
                return self._in_old(name, reader)
            move = self._how.to_new(name, self._flat.kinds[name].shape)
            self._new[name] = self._moved(self._old[name], move, f"reordered.{name}", reader)
        return self._new[name]

    def _in_old(self, name: str, reader: Line | None) -> str:
        """Return a value in the order of the program."""
        if name not in self._old:
            move = self._how.to_old(name, self._flat.kinds[name].shape)
            self._old[name] = self._moved(self._new[name], move, name, reader)
        return self._old[name]

    def _moved(self, source: str, move: Transposition, result: str, reader: Line | None) -> str:
        """Add the lines of a move; return the name of its result."""
        dtype = self._kinds[source].dtype
        kind = TensorType(move.result, dtype)
        if not move.is_reshape:
            apart = TensorType(move.apart, dtype)
            source = self._reshaped(source, apart, f"apart.{result}", reader)
            call = Call(aten.permute.default, (Operand(0), list(move.order)), {})
            permuted = TensorType(move.permuted, dtype)
            source = self._put(f"permuted.{result}", call, source, permuted, reader)
        return self._reshaped(source, kind, result, reader)

    def _reshaped(self, source: str, kind: TensorType, result: str, reader: Line | None) -> str:
        call = Call(aten.reshape.default, (Operand(0), list(kind.shape)), {})
        return self._put(result, call, source, kind, reader)

    def _put(
        self, name: str, call: Call, source: str, kind: TensorType, reader: Line | None
    ) -> str:
        """Add a line that makes one value; return its name."""
        phase, origin = (APPLY, None) if reader is None else (reader.phase, reader.origin)
        self._kinds[name] = kind
        line = f"ordered.{name}" if name in self._flat.kinds else name
        self._lines.append(Line(line, call, (source,), (name,), phase, origin))
        return name
