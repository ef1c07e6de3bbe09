"""Calls whose shapes follow from numbers, where these are known before the step runs.

`tokens[mask]` is as long as there are elements in the mask. While a step is captured these are
counted, which makes their number a guard (`known`), and the call is one that is told the length. A
mask that follows from weights cannot be counted: the call stays as it is, and is refused. So are
different values counted, and the largest number of those that `bincount` counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

Tensor = torch.Tensor
aten: Any = torch.ops.aten

torch.library.define(
    "meshwright::unique",
    "(Tensor x, bool is_sorted, bool with_inverse, bool with_counts, int size) -> "
    "(Tensor, Tensor, Tensor)",
)


@torch.library.impl("meshwright::unique", "CompositeExplicitAutograd")
def _unique(x: Tensor, is_sorted: bool, inverse: bool, counts: bool, size: int) -> Any:
    """The values of a tensor, each once; of one that is not sorted, where they change."""
    if is_sorted:
        return aten._unique2.default(x, True, inverse, counts)
    return aten.unique_consecutive.default(x, inverse, counts)


@torch.library.register_fake("meshwright::unique")  # type: ignore[untyped-decorator]
def _unique_shaped(x: Tensor, is_sorted: bool, inverse: bool, counts: bool, size: int) -> Any:
    places = x.new_empty(x.shape if inverse else (0,), dtype=torch.int64)
    return x.new_empty(size), places, x.new_empty(size if counts else 0, dtype=torch.int64)


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
        if func is aten.unique_consecutive.default and _given(args, named, 3, "dim") is None:
            return _uniques(func, args, named, is_sorted=False)
        if func is aten._unique2.default:
            return _uniques(func, args, named, is_sorted=True)
        if func is aten.bincount.default and _given(args, named, 1, "weights") is None:
            return _counted(args[0], _given(args, named, 2, "minlength") or 0)
        if func is aten.repeat_interleave.Tensor and named.get("output_size") is None:
            return func, args, {"output_size": int(args[0].sum())}
        # a mask that only says which elements get a number is no length
        is_length = func is aten.index.Tensor or (func in _WRITES and args[2].numel() != 1)
        if is_length and any(map(_is_mask, args[1])):
            return func, (args[0], _places(args[1]), *args[2:]), named
    return func, args, named


def _given(args: Sequence[Any], named: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if place < len(args) else named.get(name)


def _uniques(
    func: Any, args: tuple[Any, ...], named: Mapping[str, Any], *, is_sorted: bool
) -> Called:
    """A tensor's values, each once."""
    first = 2 if is_sorted else 1  # `_unique2` is told whether it sorts, which it does anyway
    inverse = bool(_given(args, named, first, "return_inverse"))
    counts = bool(_given(args, named, first + 1, "return_counts"))
    values = args[0].flatten()
    if is_sorted:
        values = values.sort().values
    size = _count(values[1:] != values[:-1]) + 1 if values.numel() else 0
    return torch.ops.meshwright.unique.default, (args[0], is_sorted, inverse, counts, size), {}


def _counted(numbers: Tensor, at_least: int) -> Called:
    """How often each number is there, up to the largest."""
    size = max(at_least, int(numbers.max()) + 1 if numbers.numel() else 0)
    zeros, ones = numbers.new_zeros(size, dtype=torch.int64), numbers.new_ones(numbers.shape)
    return aten.scatter_add.default, (zeros, 0, numbers.long(), ones.long()), {}


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
