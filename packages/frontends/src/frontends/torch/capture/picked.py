"""One element of each row, as in `x[torch.arange(len(x)), places]`.

An operator that reads or writes at any indices of two dims needs both dims whole. If one of the
indices counts the rows, the element of a row is in that row: a gather along the other dim does the
same, and rows can be split.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.flat import TensorType
from frontends.torch.capture.flat_builder import FlatBuilder, Name

aten = torch.ops.aten

_COUNTS = {aten.arange.default: 0, aten.arange.start: 1, aten.arange.start_step: 1}
"""Operators that count, and which argument is the end."""

_INDICES = (torch.int32, torch.int64)

_NOT_NEGATIVE = (aten.argmax.default, aten.argmin.default)


@dataclass(frozen=True, slots=True)
class Picked:
    """Which element of each row is read or written."""

    rows: int
    """The dim of rows, 0 or 1."""

    places: Node
    """The index in the other one of these dims, for each row; or several in each, if rows are dim
    0."""

    @classmethod
    def of(cls, node: Node) -> Picked | None:
        """Return what a call of `index` or `index_put` picks; None if it is anything else."""
        source, indices = node.args[:2]
        if not isinstance(source, Node) or not isinstance(indices, list | tuple):
            return None
        nodes = [index for index in indices if isinstance(index, Node)]
        if (len(nodes), len(indices)) != (2, 2):
            return None
        if any(node.meta["val"].dtype not in _INDICES for node in nodes):  # such as masks
            return None
        shape = source.meta["val"].shape
        for rows, counted in enumerate(nodes):
            places = nodes[1 - rows]
            if places.meta["val"].dim() == 1 and counts(counted, shape[rows]):
                return cls(rows, places)
        first, places = nodes
        is_wide = tuple(places.meta["val"].shape[:-1]) == tuple(shape[:1])
        return cls(0, places) if is_wide and _counts_down(first, shape[0]) else None

    @property
    def _each(self) -> tuple[int, ...]:
        """How many elements of each row are picked; empty for one, without a dim of its own."""
        return tuple(self.places.meta["val"].shape[1:])

    def _wide(self, build: FlatBuilder, source: Name, places: Name) -> Name:
        """Return the places as `gather` takes them, one for each number of an element."""
        shape, dim = build.kinds[source].shape, 1 - self.rows
        places = build.converted(places, torch.int64)
        if self.places.target not in _NOT_NEGATIVE:
            kind = build.kinds[places]
            below = Call(aten.lt.Scalar, (Operand(0), 0), {})
            is_below = build.emit(below, (places,), TensorType(kind.shape, torch.bool))
            from_end = Call(aten.add.Scalar, (Operand(0), shape[dim]), {})
            counted = build.emit(from_end, (places,), kind)
            choice = Call(aten.where.self, (Operand(0), Operand(1), Operand(2)), {})
            places = build.emit(choice, (is_below, counted, places), kind)
        apart = [1] * len(shape)
        apart[self.rows] = shape[self.rows]
        apart[dim] = self._each[0] if self._each else 1
        return build.expanded(build.reshaped(places, tuple(apart)), self._of_picked(shape))

    def _of_picked(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        dim = 1 - self.rows
        return (*shape[:dim], *(self._each or (1,)), *shape[dim + 1 :])

    def read(self, build: FlatBuilder, source: Name, places: Name) -> Name:
        """Append the lines that read the elements, of shape (rows, ...) or (rows, each, ...)."""
        kind = build.kinds[source]
        call = Call(aten.gather.default, (Operand(0), 1 - self.rows, Operand(1)), {})
        found = TensorType(self._of_picked(kind.shape), kind.dtype)
        elements = build.emit(call, (source, self._wide(build, source, places)), found)
        return build.reshaped(elements, (kind.shape[self.rows], *self._each, *kind.shape[2:]))

    def write(
        self, build: FlatBuilder, source: Name, places: Name, values: Name, *, adds: bool
    ) -> Name:
        """Append the lines that write or add elements; return the tensor with them."""
        kind = build.kinds[source]
        each = build.expanded(values, (kind.shape[self.rows], *self._each, *kind.shape[2:]))
        target = aten.scatter_add.default if adds else aten.scatter.src
        call = Call(target, (Operand(0), 1 - self.rows, Operand(1), Operand(2)), {})
        wide = self._wide(build, source, places)
        elements = build.reshaped(each, self._of_picked(kind.shape))
        return build.emit(call, (source, wide, elements), kind)


def _counts_down(node: Node, n: int) -> bool:
    """Return whether a node is the column of the numbers from 0 to `n`."""
    if node.target is aten.unsqueeze.default:
        is_column = node.args[1] in (-1, 1)
    else:
        views = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
        is_column = node.target in views and tuple(node.meta["val"].shape) == (n, 1)
    (counted, *_) = node.args or (None,)
    return is_column and isinstance(counted, Node) and counts(counted, n)


def counts(node: Node, n: int) -> bool:
    """Return whether a node is made by counting from 0 to `n`, by 1."""
    end = _COUNTS.get(node.target)  # type: ignore[call-overload]
    if end is None or node.args[end] != n:
        return False
    return bool((end == 0 or node.args[0] == 0) and node.args[2:] in ((), (1,)))
