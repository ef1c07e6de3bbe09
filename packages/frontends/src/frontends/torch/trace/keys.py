"""What the keys are by which a program sorts rows, and which it counts."""

from __future__ import annotations

import math

import torch

from frontends.step.sorted_rows import EXACT
from frontends.torch.base.flat import FlatProgram, Line, dtype_name

_AS_IT_IS = ("reshape", "clone", "_to_copy", "alias")
_PARTS = ("slice", "select", "expand", "permute", "transpose", "split", "gather", "index", "unbind")
"""Operators whose results have no elements that the first operand lacks."""

_INDICES = ("topk", "sort", "max", "min")
"""Operators whose second result are indices."""


class Keys:
    """The keys of a program.

    Args:
        flat: The program.
    """

    def __init__(self, flat: FlatProgram) -> None:
        self._kinds = flat.kinds
        self._made_by = {name: line for line in flat.lines for name in line.outputs}
        self._permuted: dict[str, str] = {}

    def let_permuted(self, name: str, of: str) -> None:
        """Let it be known that a value has the elements of another one, in another order."""
        self._permuted[name] = of

    def root(self, name: str) -> str:
        """Return the value whose elements, in any order, a value consists of."""
        if name in self._permuted:
            return self.root(self._permuted[name])
        line = self._made_by.get(name)
        if line is None:
            return name
        is_sorted = line.call.name == "sort" and name == line.outputs[0]
        if is_sorted or (line.call.name in _AS_IT_IS and self._are_kept(line)):
            return self.root(line.inputs[0])
        return name

    def are_natural(self, name: str) -> bool:
        """Return whether a value consists of integers that are not negative."""
        if name in self._permuted:
            return self.are_natural(self._permuted[name])
        line = self._made_by.get(name)
        if line is None:
            return False
        call = line.call.name
        if call in ("argmax", "argmin") or (call in _INDICES and name != line.outputs[0]):
            return True
        if call == "cat":
            return all(map(self.are_natural, line.inputs))
        if call == "sort" or call in _AS_IT_IS + _PARTS:
            return self._are_kept(line) and self.are_natural(line.inputs[0])
        return False

    def of_one_hot(self, name: str) -> str | None:
        """Return the keys that a value has as one-hot vectors along its last dim, by their root."""
        line = self._made_by.get(name)
        if line is None:
            return None
        if line.call.name == "_to_copy":
            return self.of_one_hot(line.inputs[0])
        if line.call.name != "eq" or len(line.inputs) != 2:
            return None
        for keys, classes in (line.inputs, line.inputs[::-1]):
            shape = self._kinds[keys].shape
            is_column = shape[-1:] == (1,) and self._counts_classes(classes)
            if is_column and self.are_natural(keys):
                return self.root(keys)
        return None

    def are_ones(self, name: str) -> bool:
        """Return whether a value is filled with ones."""
        line = self._made_by.get(name)
        return line is not None and line.call.name == "full" and line.call.arguments[1] == 1

    def _are_kept(self, line: Line) -> bool:
        """Return whether a line keeps distinct keys distinct, and in their order."""
        before, after = (self._kinds[n].dtype for n in (line.inputs[0], line.outputs[0]))
        return before == after or (
            before in (torch.int32, torch.int64) and dtype_name(after) in EXACT
        )

    def _counts_classes(self, name: str) -> bool:
        """Return whether a value counts from 0 along its last dim, and has no other dim."""
        line, shape = self._made_by.get(name), self._kinds[name].shape
        if line is None or shape[-1:] != (math.prod(shape),):
            return False
        if line.call.name in _AS_IT_IS:
            return self._counts_classes(line.inputs[0])
        return counts(line)


def counts(line: Line) -> bool:
    """Return whether a line counts from 0, by 1."""
    call = line.call
    if call.name != "arange" or line.inputs:
        return False
    begins_at_zero = not call.has("start") or call.argument("start") == 0
    return begins_at_zero and (not call.has("step") or call.argument("step") == 1)
