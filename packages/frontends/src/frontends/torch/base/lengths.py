"""Calls whose result shapes depend on values, where these are known before the step runs.

`tokens[mask]` has as many elements as are true in the mask. While a step is captured, they are
counted, which makes their number a guard (`known`), and the call is replaced by one that takes the
length as an argument. A mask that follows from weights cannot be counted: the call stays as it is,
and is refused later. Likewise the distinct values are counted for `unique`, and the largest number
is read for `bincount`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from frontends.torch.base.even_masks import EvenMask, without_copies

Tensor = torch.Tensor
aten: Any = torch.ops.aten

torch.library.define(
    "meshwright::unique",
    "(Tensor x, bool is_sorted, bool with_inverse, bool with_counts, int size) -> "
    "(Tensor, Tensor, Tensor)",
)


@torch.library.impl("meshwright::unique", "CompositeExplicitAutograd")
def _unique(x: Tensor, is_sorted: bool, inverse: bool, counts: bool, size: int) -> Any:
    """Return the distinct values of a tensor; without `is_sorted` those of consecutive runs."""
    if is_sorted:
        return aten._unique2.default(x, True, inverse, counts)
    return aten.unique_consecutive.default(x, inverse, counts)


@torch.library.register_fake("meshwright::unique")  # type: ignore[untyped-decorator]
def _unique_shaped(x: Tensor, is_sorted: bool, inverse: bool, counts: bool, size: int) -> Any:
    places = x.new_empty(x.shape if inverse else (0,), dtype=torch.int64)
    return x.new_empty(size), places, x.new_empty(size if counts else 0, dtype=torch.int64)


_WRITES = (aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)

Called = tuple[Any, tuple[Any, ...], Mapping[str, Any]]


def of_known_shape(
    func: Any, args: tuple[Any, ...], named: Mapping[str, Any], n_examples: int
) -> Called:
    """Return the call, or one with the same result whose shape is known, as operator and arguments.

    Args:
        func: The operator.
        args: Its arguments; tensors are stand-ins.
        named: Its keywords.
        n_examples: How many examples there are; 1 if they are not known.
    """
    with contextlib.suppress(GuardOnDataDependentSymNode):
        if (called := _by_examples(func, args, named, n_examples)) is not None:
            return called
        if func is aten.nonzero.default:
            return aten.nonzero_static.default, args, {"size": _count(args[0])}
        if func is aten.masked_select.default:
            values, mask = aten.broadcast_tensors.default(list(args))
            return aten.index.Tensor, (values, _places([mask])), {}
        if func is aten.unique_consecutive.default and _given(args, named, 3, "dim") is None:
            return _uniques(args, named, is_sorted=False)
        if func is aten._unique2.default:
            return _uniques(args, named, is_sorted=True)
        if func is aten.bincount.default and _given(args, named, 1, "weights") is None:
            return _counted(args[0], _given(args, named, 2, "minlength") or 0)
        if func is aten.repeat_interleave.Tensor and named.get("output_size") is None:
            return func, args, {"output_size": int(args[0].sum())}
        # a mask that selects the elements to fill with one number determines no shape
        is_length = func is aten.index.Tensor or (func in _WRITES and args[2].numel() != 1)
        if is_length and any(map(_is_mask, args[1])):
            return func, (args[0], _places(args[1]), *args[2:]), named
    return func, args, named


def _by_examples(
    func: Any, args: tuple[Any, ...], named: Mapping[str, Any], n_examples: int
) -> Called | None:
    """Return the call of a mask that selects as much of each example; None if it is none."""
    if func in (aten.masked_select.default, aten.masked_scatter_backward.default):
        source, mask = aten.broadcast_tensors.default(list(args[:2]))
        mask = without_copies(mask)
        if (even := _even(mask, n_examples)) is None:
            return None
        selected = even.read(source, mask.dim())
        shape = [selected.numel()] if func is aten.masked_select.default else args[2]
        if selected.numel() != math.prod(shape):
            return None
        return aten.view.default, (selected, shape), {}
    if func in (aten.masked_scatter.default, aten.masked_scatter_.default):
        target, mask = aten.broadcast_tensors.default(list(args[:2]))
        mask = without_copies(mask)
        even, n_others = _even(mask, n_examples), math.prod(target.shape[mask.dim() :])
        if even is None or even.each * n_examples * n_others != args[2].numel():
            return None
        return _made(func, args[0], even.scatter(target, mask.dim(), args[2]))
    if func is aten.index.Tensor or func in _WRITES:
        mask, *others = args[1]
        is_one = mask is not None and _is_mask(mask) and all(other is None for other in others)
        even = _even(mask, n_examples) if is_one else None
        if even is None:
            return None
        if func is aten.index.Tensor:
            return aten.alias.default, (even.read(args[0], mask.dim()),), {}
        if args[2].numel() != 1:
            adds = bool(_given(args, named, 3, "accumulate"))
            return _made(func, args[0], even.write(args[0], mask.dim(), args[2], adds=adds))
    return None


def _made(func: Any, target: Tensor, result: Tensor) -> Called:
    """Return the call that ends with a result, and for an operator in place writes it."""
    if func._schema.is_mutable:
        return aten.copy_.default, (target, result), {}
    return aten.alias.default, (result,), {}


def _even(mask: Tensor, n_examples: int) -> EvenMask | None:
    is_cut = mask.dim() > 0 and n_examples > 1 and mask.shape[0] % n_examples == 0
    return EvenMask.of(mask, _count(mask), n_examples) if is_cut else None


def _given(args: Sequence[Any], named: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if place < len(args) else named.get(name)


def _uniques(args: tuple[Any, ...], named: Mapping[str, Any], *, is_sorted: bool) -> Called:
    """Replace `unique` by an operator that takes the number of distinct values."""
    first = 2 if is_sorted else 1  # `_unique2` has an argument `sorted`, but sorts in any case
    inverse = bool(_given(args, named, first, "return_inverse"))
    counts = bool(_given(args, named, first + 1, "return_counts"))
    values = args[0].flatten()
    if is_sorted:
        values = values.sort().values
    size = _count(values[1:] != values[:-1]) + 1 if values.numel() else 0
    return torch.ops.meshwright.unique.default, (args[0], is_sorted, inverse, counts, size), {}


def _counted(numbers: Tensor, at_least: int) -> Called:
    """Replace `bincount` by additions into a tensor of known size."""
    size = max(at_least, int(numbers.max()) + 1 if numbers.numel() else 0)
    zeros, ones = numbers.new_zeros(size, dtype=torch.int64), numbers.new_ones(numbers.shape)
    return aten.scatter_add.default, (zeros, 0, numbers.long(), ones.long()), {}


def _count(mask: Tensor) -> int:
    """Return how many elements are not zero."""
    return int((mask != 0).sum())


def _places(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the indices with each mask replaced by the positions where it is true."""
    positions: list[Tensor | None] = []
    for index in indices:
        if index is not None and _is_mask(index):
            positions += aten.nonzero_static.default(index, size=_count(index)).unbind(1)
        else:
            positions.append(index)
    return positions


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)
