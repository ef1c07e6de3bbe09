"""A step as a list of aten calls on named values."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from frontends.torch.base.blame import described, failure
from frontends.torch.base.calls import Call
from frontends.torch.base.origins import Origin

Shape = tuple[int, ...]
Tensor = torch.Tensor


def dtype_name(dtype: torch.dtype) -> str:
    """Return a type's name in numpy."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and type of a tensor."""

    shape: Shape
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Line:
    """One call of a program."""

    name: str
    """A unique name: `mm.12`."""

    call: Call
    inputs: tuple[str, ...]
    """Names of the values to read, one for each `Operand` of the call."""

    outputs: tuple[str, ...]
    phase: int
    origin: Origin | None = field(default=None, compare=False, repr=False)
    """Where in the user's code it was called."""


@dataclass(frozen=True, slots=True)
class FlatProgram:
    """A program without writes: every value is computed once (static single assignment)."""

    inputs: tuple[str, ...]
    lines: tuple[Line, ...]
    kinds: Mapping[str, TensorType]
    """Shape and type of every value, by name."""

    constants: Mapping[str, torch.Tensor]
    """Values that are neither inputs nor computed, such as a table of positions, by name."""

    outputs: tuple[str, ...]
    """Names of the values to return; a name may occur twice."""

    def live(self) -> FlatProgram:
        """Return the program without lines that no output depends on."""
        needed = set(self.outputs)
        kept = []
        for line in reversed(self.lines):
            if not needed.isdisjoint(line.outputs):
                needed.update(line.inputs)
                kept.append(line)
        kept.reverse()
        produced = {name for line in kept for name in line.outputs}
        constants = {name: c for name, c in self.constants.items() if name in needed}
        known = produced.union(self.inputs, constants)
        kinds = {name: kind for name, kind in self.kinds.items() if name in known}
        return replace(self, lines=tuple(kept), kinds=kinds, constants=constants)

    def without_repeats(self, draws: Collection[str]) -> FlatProgram:
        """Return the program that computes once what several equal lines compute.

        Lines that depend on no input, such as masks, stay: each layer makes its own.

        Args:
            draws: Names of random values, which differ even if their lines are equal.
        """
        first: dict[Hashable, Line] = {}
        instead: dict[str, str] = {}
        kept: list[Line] = []
        varying = set(self.inputs)
        for line in self.lines:
            inputs = tuple(instead.get(name, name) for name in line.inputs)
            key = (line.call.key, inputs, line.phase)
            if varying.isdisjoint(inputs) or not set(draws).isdisjoint(line.outputs):
                kept.append(replace(line, inputs=inputs))
                continue
            varying.update(line.outputs)
            same = first.setdefault(key, line)
            if same is line:
                kept.append(replace(line, inputs=inputs))
            else:
                instead.update(zip(line.outputs, same.outputs, strict=True))
        outputs = tuple(instead.get(name, name) for name in self.outputs)
        return replace(self, lines=tuple(kept), outputs=outputs)

    def run(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the outputs.

        Args:
            values: The inputs by name; inputs that no line reads may be missing.

        Raises:
            StepError: An operator fails.
        """
        results = self._run({**self.constants, **values}, self.lines)
        return [results[name] for name in self.outputs]

    def run_before(self, values: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
        """Return, by name, the outputs that the calls before a certain operator determine.

        Args:
            values: Some of the inputs, by name.
            number: The number of the operator's origin.
        """
        results = {**self.constants, **values}
        before = [line for line in self.lines if line.origin and line.origin.number < number]
        known = known_from(before, results)
        results = self._run(results, [line for line in before if known.issuperset(line.outputs)])
        return {name: results[name] for name in self.outputs if name in results}

    def _run(self, values: dict[str, Tensor], lines: Iterable[Line]) -> dict[str, Tensor]:
        with torch.no_grad():
            for line in lines:
                try:
                    produced = line.call([values[name] for name in line.inputs])
                except Exception as error:
                    where = "before the first microbatch"
                    raise failure(
                        str(line.call.target), line.origin, self.described(line), where, error
                    ) from error
                values.update(zip(line.outputs, produced, strict=True))
        return values

    def described(self, line: Line) -> list[str]:
        """Return descriptions of a line's inputs, for a message."""
        producers = {name: (o.inputs, o.origin) for o in self.lines for name in o.outputs}

        def kind(name: str) -> tuple[Shape, torch.dtype]:
            return self.kinds[name].shape, self.kinds[name].dtype

        return described(line.inputs, kind, producers, line.origin)

    def renamed(self, instead: Mapping[str, str]) -> FlatProgram:
        """Return the program with some values replaced by others wherever they are read."""
        lines = tuple(
            replace(line, inputs=tuple(instead.get(n, n) for n in line.inputs))
            if not instead.keys().isdisjoint(line.inputs)
            else line
            for line in self.lines
        )
        return replace(self, lines=lines, outputs=tuple(instead.get(n, n) for n in self.outputs))


def known_from(lines: Iterable[Line], free: Collection[str]) -> set[str]:
    """Return the values that depend on nothing but `free` ones, and these."""
    known = set(free)
    for line in lines:
        if known.issuperset(line.inputs):
            known.update(line.outputs)
    return known


def full(shape: Sequence[int], value: Any, dtype: torch.dtype) -> Call:
    """Return a call that creates a tensor filled with one value."""
    return Call(torch.ops.aten.full.default, (list(shape), value), {"dtype": dtype})
