"""Calls whose shapes follow from numbers, where these are known before the step runs.

`tokens[mask]` is as long as there are elements in the mask. While a step is captured these are
counted, which makes their number a guard (`known`), and the call is one that is told the length. A
mask that follows from weights cannot be counted: the call stays as it is, and is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

Tensor = torch.Tensor
aten: Any = torch.ops.aten

_WRITES = (aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)

Called = tuple[Any, tuple[Any, ...], Mapping[str, Any]]


def of_known_shape(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Called:
    """A call in whose place another may be made, as operator and arguments.

    Args:
        func: An operator.
        args: Its arguments; tensors are stand-ins.
        named: Its keywords.
    """
    with contextlib.suppress(GuardOnDataDependentSymNode):
        if func is aten.nonzero.default:
            return aten.nonzero_static.default, args, {"size": _count(args[0])}
        if func is aten.masked_select.default:
            values, mask = aten.broadcast_tensors.default(list(args))
            return aten.index.Tensor, (values, _places([mask])), {}
        if func is aten.repeat_interleave.Tensor and named.get("output_size") is None:
            return func, args, {"output_size": int(args[0].sum())}
        # a mask that only says which elements get a number is no length
        is_length = func is aten.index.Tensor or (func in _WRITES and args[2].numel() > 1)
        if is_length and any(map(_is_mask, args[1])):
            return func, (args[0], _places(args[1]), *args[2:]), named
    return func, args, named


def _count(mask: Tensor) -> int:
    """How many elements are not zero."""
    return int((mask != 0).sum())


def _places(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Indices with masks as the places where they are true."""
    found: list[Tensor | None] = []
    for index in indices:
        if index is not None and _is_mask(index):
            found += aten.nonzero_static.default(index, size=_count(index)).unbind(1)
        else:
            found.append(index)
    return found


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)
