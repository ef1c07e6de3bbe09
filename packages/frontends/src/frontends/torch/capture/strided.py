"""Tensors that say by strides which elements of a memory they have, as overlapping windows do.

A tensor of a step may lie otherwise in memory than eager PyTorch's: it was gathered, or is a
result of another operator that does the same. So strides are those of a copy here, in which the
elements lie side by side in the order that eager's have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from frontends.errors import UnsupportedStepError
from frontends.torch.base.calls import Call, Operand

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
"""By operator, what is called instead."""


@dataclass(frozen=True, slots=True)
class ByStrides:
    """How a call by strides is written."""

    order: tuple[int, ...]
    """The dims of the operand, in the order in which they lie in eager's memory."""

    call: Call
    """On the operand in that order."""


def by_strides(kind: str, value: Tensor, arguments: Sequence[Any]) -> ByStrides:
    """How to write a call.

    Args:
        kind: One of `STRIDED`.
        value: The stand-in of its first operand.
        arguments: Size, strides and perhaps an offset.

    Raises:
        UnsupportedStepError: The operand's elements do not lie side by side.
    """
    target, order, begin = STRIDED[kind], _order(value), value.storage_offset()
    size, stride, *rest = arguments
    offset = begin if not rest or rest[0] is None else rest[0]
    operands = [Operand(k) for k in range(2 if kind == "as_strided_scatter" else 1)]
    return ByStrides(order, Call(target, (*operands, [*size], [*stride], offset - begin), {}))


def _order(value: Tensor) -> tuple[int, ...]:
    """The dims from the one with the longest strides; those of one place are anywhere."""
    strides, shape = value.stride(), value.shape
    order = sorted(range(value.dim()), key=lambda k: (shape[k] != 1, -strides[k]))
    expected = 1
    for k in reversed(order):
        if shape[k] != 1 and strides[k] != expected:
            raise UnsupportedStepError(
                "a tensor that is read by strides has its elements side by side; this one of "
                f"shape {list(shape)} has strides {list(strides)}: call contiguous() before"
            )
        expected *= shape[k]
    return tuple(order)
