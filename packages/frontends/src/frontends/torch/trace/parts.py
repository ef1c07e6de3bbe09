"""Steps that cut their batch themselves and add up what the parts give: the parts become examples.

A loop over `batch.chunk(4)` in which each loss is differentiated is a program with the same lines
for each part, and sums. The lines of one part, run on the rows of all parts, compute these sums at
once. So they are the program of a step without the loop, and the plan's microbatches are the parts.
It is the same only if what a part gives is a sum over its examples, which the caller checks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from frontends.torch.base.flat import FlatProgram, Line
from frontends.torch.capture.pieces import TensorPiece

aten = torch.ops.aten

_FEWEST_ROWS = 2
"""The fewest rows of a part. Rules cannot tell a dim of one row from a dim that is broadcast."""


@dataclass(frozen=True, slots=True)
class BatchPart:
    """The lines of the last part of a batch, as a program of its own."""

    flat: FlatProgram
    """Its inputs are those of the step, and the pieces and draws that it reads; its outputs are
    what it gives to others."""

    rows: int
    """How many rows a piece has."""

    n: int
    """How many parts there are."""

    pieces: Mapping[str, str]
    """By piece of the last part: the value of which all parts have a piece."""

    draws: Mapping[str, Sequence[str]]
    """By random value of the last part: those of all parts, in order."""

    sums: Mapping[str, tuple[str, str | None]]
    """By sum of all parts: of which output it is the sum, and what else is in it."""

    joins: Mapping[str, tuple[str, int]]
    """By concatenation of what all parts give: of which output, and along which dim."""

    alike: Mapping[str, Sequence[str]]
    """By value of the last part: those of all parts, in order."""

    lines: frozenset[str]
    """The names of the lines of all parts."""

    def reordered(self, flat: FlatProgram) -> BatchPart:
        """Return the part with another program that gives the same, perhaps by other names."""
        now = dict(zip(self.flat.outputs, flat.outputs, strict=True))
        sums = {name: (now[of], rest) for name, (of, rest) in self.sums.items()}
        joins = {name: (now[of], dim) for name, (of, dim) in self.joins.items()}
        return replace(self, flat=flat, sums=sums, joins=joins)


def part_of(
    flat: FlatProgram, batch: Collection[str], draws: Collection[str], weights: Collection[str]
) -> BatchPart | None:
    """Return the last part of a batch that a step cuts itself; None if it does not.

    Args:
        flat: The step.
        batch: Its inputs that hold the batch.
        draws: Its random values.
        weights: Its inputs of which no piece is a part of the batch.
    """
    pieces = _pieces(flat, batch, weights)
    return None if pieces is None else _Finder(flat, draws, *pieces).part()


def _pieces(
    flat: FlatProgram, batch: Collection[str], weights: Collection[str]
) -> tuple[dict[str, tuple[str, int]], int, int] | None:
    """Return, by piece, its source and the number of its part; how many parts, and their rows."""
    made_by = {name: line for line in flat.lines for name in line.outputs}
    rows = {flat.kinds[name].shape[0] for name in batch if name in flat.kinds}
    if len(rows) != 1:
        return None
    (n_rows,) = rows
    of_batch, of_weights = set(batch), set(weights)
    found: dict[str, tuple[str, int, int]] = {}
    for line in flat.lines:
        if not of_batch.isdisjoint(line.inputs):
            of_batch.update(line.outputs)
        if not of_weights.isdisjoint(line.inputs):
            of_weights.update(line.outputs)
        for name in line.outputs:
            piece = TensorPiece.of(name, made_by.get, flat.kinds)
            if piece is None or piece.is_reshaped or piece.dim != 0:
                continue
            is_rows = flat.kinds[piece.source].shape[0] == n_rows
            if is_rows and piece.source in of_batch and piece.source not in of_weights:
                found[name] = piece.source, piece.begin, piece.end
    sizes = {end - begin for _, begin, end in found.values()}
    if len(sizes) != 1:
        return None
    (size,) = sizes
    if size < _FEWEST_ROWS or size == n_rows or n_rows % size:
        return None
    if any(begin % size for _, begin, _ in found.values()):
        return None
    of_parts = {name: (source, at // size) for name, (source, at, _) in found.items()}
    return of_parts, n_rows // size, size


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum of what some parts give."""

    of: str
    """What the last part gives."""

    parts: frozenset[int]
    rest: str | None = None
    """What else is in the sum."""


class _Finder:
    """Finds the lines of each part, and what happens to what they give."""

    def __init__(
        self,
        flat: FlatProgram,
        draws: Collection[str],
        pieces: Mapping[str, tuple[str, int]],
        n: int,
        rows: int,
    ) -> None:
        self._flat, self._draws, self._pieces = flat, draws, pieces
        self._n, self._rows, self._last = n, rows, n - 1
        self._alike: dict[str, Any] = {}
        """By value that depends on no part: equal for equal values."""

        self._numbers: dict[Any, int] = {}
        """By how a value is computed: a number for it."""

        self._equal: set[str] = set()
        """Values of which all elements are equal."""

        self._parts = self._parts_of_values()
        """By value: the parts that it depends on."""

        self._in_last: dict[str, tuple[str, int]] = {}
        """By value of one part: the value of the last part that it is alike, and its part."""

        self._sums: dict[str, _Sum] = {}
        self._joins: dict[str, tuple[str, int]] = {}
        self._after: set[str] = set()
        """Values that depend on what all parts give together."""

    def _parts_of_values(self) -> dict[str, frozenset[int]]:
        """Return the parts that values depend on; random values are of the part that reads them."""
        none = frozenset[int]()
        parts: dict[str, frozenset[int]] = {
            name: frozenset([number]) for name, (_, number) in self._pieces.items()
        }
        drawn = set(self._draws)
        readers: dict[str, set[int]] = defaultdict(set)
        for line in self._flat.lines:
            of_line = none.union(*(parts.get(name, none) for name in line.inputs))
            if not drawn.isdisjoint(line.inputs):
                drawn.update(line.outputs)
            for name in line.outputs:
                parts.setdefault(name, of_line)
        for line in reversed(self._flat.lines):
            of_line = none.union(*(parts[name] for name in line.outputs))
            if not of_line and not drawn.isdisjoint(line.outputs):
                of_line = none.union(*(readers[name] for name in line.outputs))
                parts.update(dict.fromkeys(line.outputs, of_line))
            for name in line.inputs:
                readers[name].update(of_line)
        return parts

    def part(self) -> BatchPart | None:
        """Return the last part; None if the parts are not alike, or are not only added up."""
        of_part: dict[int, list[Line]] = defaultdict(list)
        others: list[Line] = []
        for line in self._flat.lines:
            parts = frozenset[int]().union(*(self._parts[name] for name in line.outputs))
            is_piece = any(name in self._pieces or name in self._draws for name in line.outputs)
            if len(parts) == 1 and not is_piece:
                of_part[min(parts)].append(line)
            elif parts and not is_piece:
                others.append(line)
            if not parts:
                self._note(line)
        if len(of_part) != self._n:
            return None
        template = of_part[self._last]
        alike: dict[str, list[str]] = defaultdict(list)
        for number in range(self._n):
            matched = self._matched(template, of_part[number], number)
            if matched is None:
                return None
            same, more = matched
            self._in_last.update((other, (name, number)) for name, other in same.items())
            for name, other in same.items():
                alike[name].append(other)
            others += more
        place = {line.name: k for k, line in enumerate(self._flat.lines)}
        for line in sorted(others, key=lambda line: place[line.name]):
            if not self._follow(line):
                return None
        names = frozenset(line.name for of in of_part.values() for line in of)
        return self._made(template, alike, names)

    def _note(self, line: Line) -> None:
        """Note what a line of no part computes, so that it is known if another computes the same.

        All pieces of a value of equal elements, such as the gradient of a mean, are the same.
        """
        inputs = tuple(self._alike.get(name, name) for name in line.inputs)
        kinds = self._flat.kinds
        is_equal = line.call.name in ("full", "expand", "reshape") or is_elementwise(line)
        for k, name in enumerate(line.outputs):
            how: Any = line.call.key, inputs, k
            piece = TensorPiece.of(name, lambda n: line if n in line.outputs else None, kinds)
            if piece is not None and piece.source in self._equal:
                how = "piece", self._alike[piece.source], kinds[name].shape
                is_equal = True
            self._alike[name] = self._numbers.setdefault(how, len(self._numbers))
            ones = [n for n in line.inputs if math.prod(kinds[n].shape) != 1]
            if is_equal and self._equal.issuperset(ones):
                self._equal.add(name)

    def _matched(
        self, template: Sequence[Line], lines: Sequence[Line], number: int
    ) -> tuple[dict[str, str], list[Line]] | None:
        """Return, by value of the last part, that of another; and the lines that it has more."""
        same: dict[str, str] = {}
        left: dict[Any, list[Line]] = defaultdict(list)
        for line in lines:
            left[line.call.key, line.phase].append(line)
        for line in template:
            candidates = left[line.call.key, line.phase]
            other = next((o for o in candidates if self._is_like(line, o, same, number)), None)
            if other is None:
                return None
            candidates.remove(other)
            same.update(zip(line.outputs, other.outputs, strict=True))
        return same, [line for of in left.values() for line in of]

    def _is_like(self, line: Line, other: Line, same: dict[str, str], number: int) -> bool:
        """Return whether a line of another part does the same as one of the last part."""
        drawn: dict[str, str] = {}
        for a, b in zip(line.inputs, other.inputs, strict=True):
            if a in self._pieces:
                is_same = self._pieces.get(b) == (self._pieces[a][0], number)
            elif a in same:
                is_same = same[a] == b
            elif a in self._draws:
                is_free = b in self._draws and b not in same.values()
                is_same = is_free and self._flat.kinds[a] == self._flat.kinds[b]
                is_same &= self._parts.get(b) == frozenset([number]) and drawn.setdefault(a, b) == b
            else:
                is_same = not self._parts.get(b) and self._alike.get(a, a) == self._alike.get(b, b)
            if not is_same:
                return False
        same.update(drawn)
        return True

    def _sum(self, name: str) -> _Sum | None:
        """Return the sum over some parts that a value is."""
        if name in self._in_last:
            of, number = self._in_last[name]
            return _Sum(of, frozenset([number]))
        return self._sums.get(name)

    def _is_free(self, name: str) -> bool:
        """Return whether a value depends on no part, or on what all of them give together."""
        total = self._sum(name)
        is_total = total is not None and len(total.parts) == self._n
        return is_total or name in self._after or not self._parts.get(name)

    def _follow(self, line: Line) -> bool:
        """Note what a line makes of what parts give; return whether it only adds or joins them."""
        if all(map(self._is_free, line.inputs)):
            self._after.update(line.outputs)
            return True
        made = _joined(line, self._in_last, self._n) or self._added(line)
        if made is None:
            return False
        (name,) = line.outputs
        if isinstance(made, _Sum):
            self._sums[name] = made
        else:
            self._joins[name] = made
            self._after.add(name)
        return True

    def _added(self, line: Line) -> _Sum | None:
        """Return the sum that a line makes by addition; None if it makes none."""
        if line.call.target is not aten.add.Tensor or line.call.keywords:
            return None
        if len(line.inputs) == 1:
            return self._sum(line.inputs[0]) if line.call.arguments[1:] == (0,) else None
        one, other = map(self._sum, line.inputs)
        if one is not None and other is not None:
            rests = [of.rest for of in (one, other) if of.rest is not None]
            if one.of != other.of or one.parts & other.parts or len(rests) > 1:
                return None
            return _Sum(one.of, one.parts | other.parts, *rests)
        partial = one or other
        rest = line.inputs[0] if one is None else line.inputs[1]
        if partial is None or partial.rest is not None or not self._is_free(rest):
            return None
        return replace(partial, rest=rest)

    def _made(
        self,
        template: Sequence[Line],
        alike: Mapping[str, Sequence[str]],
        of_parts: frozenset[str],
    ) -> BatchPart:
        draws = {name: of for name, of in alike.items() if name in self._draws}
        last = [name for name in self._pieces if self._parts[name] == {self._last}]
        given = dict.fromkeys([*last, *draws])  # without order, each process would make another
        free = [
            line
            for line in self._flat.lines
            if not any(self._parts[name] for name in line.outputs)
            and given.keys().isdisjoint(line.outputs)
        ]
        names = {line.name for line in (*free, *template)}
        lines = tuple(line for line in self._flat.lines if line.name in names)
        whole = {
            name: (total.of, total.rest)
            for name, total in self._sums.items()
            if len(total.parts) == self._n
        }
        adds = dict.fromkeys(of for of, _ in (*whole.values(), *self._joins.values()))
        program = replace(
            self._flat, inputs=(*self._flat.inputs, *given), lines=lines, outputs=tuple(adds)
        ).live()
        pieces = {name: self._pieces[name][0] for name in given if name in self._pieces}
        return BatchPart(
            program, self._rows, self._n, pieces, draws, whole, self._joins, alike, of_parts
        )


def _joined(line: Line, in_last: Mapping[str, tuple[str, int]], n: int) -> tuple[str, int] | None:
    """Return the value of which a line concatenates those of all parts, and the dim; else None."""
    of = [in_last.get(name) for name in line.inputs]
    if line.call.name != "cat" or None in of or len({one for one, _ in filter(None, of)}) != 1:
        return None
    if [number for _, number in filter(None, of)] != list(range(n)):
        return None
    (one, _), *_ = filter(None, of)
    return one, line.call.argument("dim")


def is_elementwise(line: Line) -> bool:
    """Return whether each element of the result is of one of each operand."""
    return torch.Tag.pointwise in line.call.target.tags or line.call.name == "_to_copy"
