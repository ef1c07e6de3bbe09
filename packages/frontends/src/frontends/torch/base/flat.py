"""A step as a straight list of aten calls on named values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from frontends.torch.base.blame import described, failure
from frontends.torch.base.calls import Call
from frontends.torch.base.origins import Origin

Shape = tuple[int, ...]
Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Kind:
    """Shape and type of a value."""

    shape: Shape
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Line:
    """One call."""

    name: str
    """Of the operator: `mm.12`."""

    call: Call
    inputs: tuple[str, ...]
    """One for each `Operand` of the call."""

    outputs: tuple[str, ...]
    phase: int
    origin: Origin | None = field(default=None, compare=False, repr=False)
    """Where in the user's code it was called."""


@dataclass(frozen=True, slots=True)
class Flat:
    """A program without writes: every value is made once."""

    inputs: tuple[str, ...]
    lines: tuple[Line, ...]
    kinds: Mapping[str, Kind]
    """Of every value."""

    constants: Mapping[str, torch.Tensor]
    """Tensors that the step has from elsewhere, such as a table of positions."""

    outputs: tuple[str, ...]
    """Values that are wanted; some may be wanted twice."""

    def live(self) -> Flat:
        """The same without lines that no output needs."""
        needed = set(self.outputs)
        kept = []
        for line in reversed(self.lines):
            if not needed.isdisjoint(line.outputs):
                needed.update(line.inputs)
                kept.append(line)
        kept.reverse()
        made = {name for line in kept for name in line.outputs}
        constants = {name: c for name, c in self.constants.items() if name in needed}
        known = made.union(self.inputs, constants)
        kinds = {name: kind for name, kind in self.kinds.items() if name in known}
        return replace(self, lines=tuple(kept), kinds=kinds, constants=constants)

    def run(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        """The outputs, from the values of those inputs that are read.

        Raises:
            StepError: An operator fails.
        """
        found = self._run({**self.constants, **values}, self.lines)
        return [found[name] for name in self.outputs]

    def run_before(self, values: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
        """The outputs by name that follow from what the step calls before an operator.

        Args:
            values: Of some inputs.
            number: Of the operator's origin.
        """
        found = {**self.constants, **values}
        before = [line for line in self.lines if line.origin and line.origin.number < number]
        known = known_from(before, found)
        found = self._run(found, [line for line in before if known.issuperset(line.outputs)])
        return {name: found[name] for name in self.outputs if name in found}

    def _run(self, found: dict[str, Tensor], lines: Iterable[Line]) -> dict[str, Tensor]:
        with torch.no_grad():
            for line in lines:
                try:
                    made = line.call([found[name] for name in line.inputs])
                except Exception as error:
                    where = "before the first microbatch"
                    raise failure(
                        str(line.call.target), line.origin, self.described(line), where, error
                    ) from error
                found.update(zip(line.outputs, made, strict=True))
        return found

    def described(self, line: Line) -> list[str]:
        """What a line reads, for a message."""
        made = {name: (o.inputs, o.origin) for o in self.lines for name in o.outputs}

        def kind(name: str) -> tuple[Shape, torch.dtype]:
            return self.kinds[name].shape, self.kinds[name].dtype

        return described(line.inputs, kind, made, line.origin)

    def renamed(self, instead: Mapping[str, str]) -> Flat:
        """The same, reading other values in the place of some."""
        lines = tuple(
            replace(line, inputs=tuple(instead.get(n, n) for n in line.inputs))
            if not instead.keys().isdisjoint(line.inputs)
            else line
            for line in self.lines
        )
        return replace(self, lines=lines, outputs=tuple(instead.get(n, n) for n in self.outputs))


def known_from(lines: Iterable[Line], free: Collection[str]) -> set[str]:
    """The values that depend on nothing but `free` ones."""
    known = set(free)
    for line in lines:
        if known.issuperset(line.inputs):
            known.update(line.outputs)
    return known


def full(shape: Sequence[int], value: Any, dtype: torch.dtype) -> Call:
    """A call that fills a new tensor."""
    return Call(torch.ops.aten.full.default, (list(shape), value), {"dtype": dtype})
