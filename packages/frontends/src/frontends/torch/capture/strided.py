"""Views by strides, such as overlapping windows (`as_strided`).

A tensor of a step may have another memory layout than in eager PyTorch: it may be gathered, or the
result of a replacement operator. So the strides here refer to a contiguous copy, in which the
elements are in the order of eager's memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from frontends.errors import UnsupportedStepError
from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.flat import TensorType
from frontends.torch.capture.flat_builder import FlatBuilder, Name
from frontends.torch.capture.picked import counts

aten = torch.ops.aten
Tensor = torch.Tensor

_WHERE = "SymInt[] size, SymInt[] stride, SymInt offset"

torch.library.define("meshwright::strided", f"(Tensor x, {_WHERE}) -> Tensor")
torch.library.define("meshwright::strided_scatter", f"(Tensor x, Tensor part, {_WHERE}) -> Tensor")


@torch.library.impl("meshwright::strided", "CompositeExplicitAutograd")
def _strided(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    return x.contiguous().as_strided(size, stride, offset).clone()


@torch.library.impl("meshwright::strided_scatter", "CompositeExplicitAutograd")
def _scattered(
    x: Tensor, part: Tensor, size: Sequence[int], stride: Sequence[int], offset: int
) -> Tensor:
    return x.contiguous().as_strided_scatter(part, size, stride, offset)


STRIDED = {
    **dict.fromkeys(("as_strided", "as_strided_copy"), torch.ops.meshwright.strided.default),
    "as_strided_scatter": torch.ops.meshwright.strided_scatter.default,
}
"""By operator, the one to call instead."""


@dataclass(frozen=True, slots=True)
class ByStrides:
    """A call by strides, rewritten for an operand of any memory layout."""

    order: tuple[int, ...]
    """The permutation of the operand's dims into the order in which the call takes them. That is
    the order of eager's memory, major to minor, but that rows come first if the view has them."""

    view_order: tuple[int, ...]
    """The permutation of the view's dims into the order in which the call has them."""

    call: Call
    """The call on the permuted operand, and for a write, on what is written, permuted likewise."""


def by_strides(kind: str, value: Tensor, arguments: Sequence[Any]) -> ByStrides:
    """Rewrite a call by strides.

    Args:
        kind: The operator, one of `STRIDED`.
        value: The stand-in of its first operand.
        arguments: Size, strides and perhaps an offset.

    Raises:
        UnsupportedStepError: The operand has gaps or overlaps in memory.
    """
    order, begin = _order(value), int(value.storage_offset())
    size, stride, *rest = arguments
    offset = (begin if not rest or rest[0] is None else rest[0]) - begin
    view = _View(tuple(size), tuple(stride), offset)
    view_order = tuple(range(len(view.size)))
    for dim in range(value.dim()):
        if (found := view.with_rows([value.shape[k] for k in order], order.index(dim))) is not None:
            view, view_order = found
            order = (dim, *(k for k in order if k != dim))
            break
    operands = [Operand(k) for k in range(2 if kind == "as_strided_scatter" else 1)]
    where = [*view.size], [*view.stride], view.offset
    return ByStrides(order, view_order, Call(STRIDED[kind], (*operands, *where), {}))


@dataclass(frozen=True, slots=True)
class _View:
    """A view by strides of a tensor whose elements are in the order of its dims."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, arguments: Sequence[Any]) -> _View:
        """Return the view of size, strides and perhaps an offset."""
        size, stride, *offset = arguments
        return cls(tuple(size), tuple(stride), offset[0] if offset else 0)

    def with_rows(self, shape: Sequence[int], dim: int) -> tuple[_View, tuple[int, ...]] | None:
        """Return the view of the tensor with a dim in front, if the view has this dim as it is.

        Args:
            shape: The shape of the tensor.
            dim: The dim, of rows; each element of the view is of the row that its index says.

        Returns:
            The view, with the rows in front, and the permutation of its dims. None if the dim has
            one row, or the view mixes rows.
        """
        n, inner = shape[dim], math.prod(shape[dim + 1 :])
        dims = range(len(self.size))
        of_rows = [d for d in dims if (self.size[d], self.stride[d]) == (n, inner)]
        if n == 1 or not of_rows:
            return None
        rest = [d for d in dims if d != of_rows[0] and self.size[d] != 1]
        between = [d for d in rest if self.stride[d] % (n * inner)]
        before, within = divmod(self.offset, n * inner)
        if within + sum((self.size[d] - 1) * self.stride[d] for d in between) >= inner:
            return None
        stride = [s if d in between else s // n for d, s in enumerate(self.stride)]
        stride[of_rows[0]] = math.prod(shape) // n
        order = (of_rows[0], *(d for d in dims if d != of_rows[0]))
        size, steps = tuple(self.size[d] for d in order), tuple(stride[d] for d in order)
        return _View(size, steps, before * inner + within), order


@dataclass(frozen=True, slots=True)
class AddedByRows:
    """What the gradient of overlapping windows adds, row by row.

    PyTorch adds to one flat memory at indices that it views like the memory: `index_add` of all
    rows at once. Windows that stay within a row add to that row.
    """

    size: tuple[int, ...]
    """The shape of what is added, as the view has it."""

    order: tuple[int, ...]
    """The permutation of its dims that puts rows in front."""

    memory: tuple[int, int, int]
    """The shape of the memory in which dim 1 is the rows."""

    places: Call
    """Returns a view by strides of the numbers of these elements: where to add."""

    @classmethod
    def of(cls, node: Node) -> AddedByRows | None:
        """Return what a call of `index_add` adds by rows; None if it does anything else."""
        target, dim, index = node.args[:3]
        if not isinstance(target, Node) or node.kwargs or dim not in (0, -1):
            return None
        memory = target.meta["val"].shape
        while isinstance(index, Node) and index.target in _AS_IT_IS:
            index = index.args[0]
        if len(memory) != 1 or not isinstance(index, Node):
            return None
        if index.target is not aten.as_strided.default:
            return None
        counted, *where = index.args
        if not isinstance(counted, Node) or not counts(counted, memory[0]):
            return None
        view = _View.of(where)
        for n, step in zip(view.size, view.stride, strict=True):
            if n < 2 or not step or memory[0] % (n * step):
                continue
            shape = memory[0] // (n * step), n, step
            if (by := view.with_rows(shape, 1)) is not None:
                rows, order = by
                inner = [*rows.size[1:]], [*rows.stride[1:]], rows.offset
                places = Call(STRIDED["as_strided"], (Operand(0), *inner), {})
                return cls(view.size, order, shape, places)
        return None

    def add(self, build: FlatBuilder, target: Name, added: Name) -> Name:
        """Append the lines that add to a target; return it with the sums."""
        outer, n, inner = self.memory
        counted = TensorType((outer * inner,), torch.int64)
        count = Call(aten.arange.default, counted.shape, {"dtype": torch.int64})
        windows = TensorType(tuple(self.places.arguments[1]), torch.int64)
        places = build.emit(self.places, (build.emit(count, (), counted),), windows)
        n_added = math.prod(windows.shape)
        places = build.reshaped(places, (n_added,))
        values = build.permuted(build.reshaped(added, self.size), self.order)
        values = build.reshaped(values, (n, n_added))
        rows = build.permuted(build.reshaped(target, self.memory), (1, 0, 2))
        rows = build.reshaped(rows, (n, outer * inner))
        call = Call(aten.index_add.default, (Operand(0), 1, Operand(1), Operand(2)), {})
        sums = build.emit(call, (rows, places, values), build.kinds[rows])
        sums = build.permuted(build.reshaped(sums, (n, outer, inner)), (1, 0, 2))
        return build.reshaped(sums, build.kinds[target].shape)


_AS_IT_IS = (
    *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.clone.default),
    aten._reshape_alias.default,
)
"""Operators that put the same elements into another shape."""


def _order(value: Tensor) -> tuple[int, ...]:
    order = dense_order(value.shape, value.stride())
    if order is None:
        raise UnsupportedStepError(
            "a tensor that is viewed by strides has its elements adjacent in memory; this one "
            f"of shape {list(value.shape)} has strides {list(value.stride())}: call contiguous() "
            "before"
        )
    return order


def dense_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """Return the dims by descending stride; None if elements have gaps between them, or overlap.

    Dims of size 1 come first, as their stride is moot.
    """
    order = sorted(range(len(shape)), key=lambda k: (shape[k] != 1, -strides[k]))
    expected = 1
    for k in reversed(order):
        if shape[k] != 1 and strides[k] != expected:
            return None
        expected *= shape[k]
    return tuple(order)


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """Return the permutation that undoes another one."""
    return tuple(order.index(k) for k in range(len(order)))
