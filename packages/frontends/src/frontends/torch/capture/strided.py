"""Views by strides, such as overlapping windows (`as_strided`).

A tensor of a step may have another memory layout than in eager PyTorch: it may be gathered, or the
result of a replacement operator. So the strides here refer to a contiguous copy, in which the
elements are in the order of eager's memory.
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
"""By operator, the one to call instead."""


@dataclass(frozen=True, slots=True)
class ByStrides:
    """A call by strides, rewritten for an operand of any memory layout."""

    order: tuple[int, ...]
    """The permutation of the operand's dims into the order of eager's memory, major to minor."""

    call: Call
    """The call on the permuted operand."""


def by_strides(kind: str, value: Tensor, arguments: Sequence[Any]) -> ByStrides:
    """Rewrite a call by strides.

    Args:
        kind: The operator, one of `STRIDED`.
        value: The stand-in of its first operand.
        arguments: Size, strides and perhaps an offset.

    Raises:
        UnsupportedStepError: The operand has gaps or overlaps in memory.
    """
    target, order, begin = STRIDED[kind], _order(value), value.storage_offset()
    size, stride, *rest = arguments
    offset = begin if not rest or rest[0] is None else rest[0]
    operands = [Operand(k) for k in range(2 if kind == "as_strided_scatter" else 1)]
    return ByStrides(order, Call(target, (*operands, [*size], [*stride], offset - begin), {}))


def _order(value: Tensor) -> tuple[int, ...]:
    """Return the dims by descending stride; dims of size 1 come first, as their stride is moot."""
    strides, shape = value.stride(), value.shape
    order = sorted(range(value.dim()), key=lambda k: (shape[k] != 1, -strides[k]))
    expected = 1
    for k in reversed(order):
        if shape[k] != 1 and strides[k] != expected:
            raise UnsupportedStepError(
                "a tensor that is viewed by strides has its elements adjacent in memory; this one "
                f"of shape {list(shape)} has strides {list(strides)}: call contiguous() before"
            )
        expected *= shape[k]
    return tuple(order)
