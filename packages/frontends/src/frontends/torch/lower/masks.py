"""Lookups and updates on a shard of an indexed tensor: a device handles the indices inside it.

A table that is split by rows is read like Megatron's vocabulary-parallel embedding (Shoeybi et al.
2019, §3): a device yields zeros for rows that it does not have, and the sum over all devices is the
lookup. A device drops updates of rows that it does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from frontends.torch.base.calls import Call, Operand, Tensor, fill


class DimRange(NamedTuple):
    """The range of a dim that a device has."""

    start: int
    size: int
    whole: int
    """Size of the whole dim."""


Split = Mapping[int, DimRange]
"""By indexed dim that is split, the device's part of it."""

Masked = Callable[[Call, Sequence[Tensor], Split], list[Tensor]]


def indexed_dims(call: Call, rank: int) -> tuple[int, ...]:
    """Return the dims into which other operands are indices.

    These are dims of the first operand, or of the result if that is a table's gradient.

    Args:
        call: A call of an operator in `MASKED`.
        rank: The rank of the indexed tensor.
    """
    if call.name in ("embedding", "embedding_dense_backward"):
        return (0,)
    if call.has("indices"):
        return tuple(d for d, index in enumerate(call.argument("indices")) if index is not None)
    return (call.argument("dim") % max(rank, 1),)


def _embedding(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    table, places = operands
    local, is_inside = _within(places, split[0])
    return _masked(call([table, local]), is_inside[..., None])


def _embedding_gradient(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    gradient, places = operands
    padding = call.argument("padding_idx") - split[0].start
    local, is_inside = _within(places, split[0])
    call = call.replace(padding_idx=padding if 0 <= padding < split[0].size else -1)
    return call([torch.where(is_inside[..., None], gradient, 0), local])


def _gather(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    source, places = operands
    (part,) = split.values()
    local, is_inside = _within(places, part)
    return _masked(call([source, local]), is_inside)


def _index_select(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    source, places = operands
    ((dim, part),) = split.items()
    local, is_inside = _within(places, part)
    return _masked(call([source, local]), is_inside.view(_along(dim, source.ndim)))


def _index(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    source = operands[0]
    local, is_inside = _local_indices(call, operands, split)
    (result,) = call([source, *local])
    dims = indexed_dims(call, source.ndim)
    is_one_run = dims[-1] - dims[0] + 1 == len(dims)
    behind = source.ndim - dims[-1] - 1 if is_one_run else source.ndim - len(dims)
    return _masked([result], is_inside.view(*is_inside.shape, *(1,) * behind))


def _scatter_add(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    target, places, updates = operands
    ((dim, part),) = split.items()
    local, is_inside = _within(places, part)
    if call.name == "index_add":
        is_inside = is_inside.view(_along(dim, target.ndim))
    return call([target, local, torch.where(is_inside, updates, 0)])


def _scatter(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    target, places, *updates = operands
    ((dim, part),) = split.items()
    local, is_inside = _within(places, part)
    local = torch.where(is_inside, local, target.shape[dim])
    return _without_last(call([_with_one_more(target, dim), local, *updates]), dim)


def _index_put(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    target = operands[0]
    local, is_inside = _local_indices(call, operands, split)
    values = operands[1 + len(local) :]
    dim = min(split)
    place = 1 + indexed_dims(call, target.ndim).index(dim)
    local[place - 1] = torch.where(is_inside, local[place - 1], target.shape[dim])
    return _without_last(call([_with_one_more(target, dim), *local, *values]), dim)


MASKED: dict[str, Masked] = {
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_gradient,
    "gather": _gather,
    "index_select": _index_select,
    **dict.fromkeys(("index", "_unsafe_index"), _index),
    **dict.fromkeys(("scatter_add", "index_add"), _scatter_add),
    **dict.fromkeys(("scatter", "scatter_reduce"), _scatter),
    **dict.fromkeys(("index_put", "_unsafe_index_put"), _index_put),
}
"""By operator, how to run it where indexed dims are split."""


def _within(places: Tensor, part: DimRange) -> tuple[Tensor, Tensor]:
    """Return the indices relative to a part, with 0 for those outside, and which are inside.

    Raises:
        IndexError: An index is out of bounds of the whole dim, as it would be on one device.
    """
    _check_inside(places, part.whole)
    local = places - part.start
    is_inside = (local >= 0) & (local < part.size)
    return torch.where(is_inside, local, 0), is_inside


def _check_inside(places: Tensor, size: int) -> None:
    is_inside = ((places >= 0) & (places < size)).all()
    if places.device.type != "cpu":  # do not wait for the accelerator
        torch._assert_async(is_inside)
    elif not is_inside:
        bad = next(p for p in places.flatten().tolist() if not 0 <= p < size)
        raise IndexError(f"index {bad} is out of bounds for a dim of size {size}")


def _local_indices(
    call: Call, operands: Sequence[Tensor], split: Split
) -> tuple[list[Tensor], Tensor]:
    """Return the index operands relative to the device's parts, and which entries are inside."""
    inside = torch.tensor(True)
    by_operand: dict[int, Tensor] = {}
    for dim, argument in enumerate(call.argument("indices")):
        if not isinstance(argument, Operand):
            continue
        index: Any = fill(argument, operands)
        if dim in split:
            from_start = torch.where(index < 0, index + split[dim].whole, index)
            index, is_inside = _within(from_start, split[dim])
            inside = inside & is_inside
        by_operand[argument.place] = index
    return [by_operand[place] for place in sorted(by_operand)], inside


def _masked(tensors: Sequence[Tensor], is_inside: Tensor) -> list[Tensor]:
    return [
        torch.where(is_inside, tensor, torch.zeros((), dtype=tensor.dtype)) for tensor in tensors
    ]


def _along(dim: int, rank: int) -> list[int]:
    """Return the shape that lays a vector along a dim, for broadcasting."""
    return [-1 if d == dim else 1 for d in range(rank)]


def _with_one_more(target: Tensor, dim: int) -> Tensor:
    """Return the tensor with one more slice of a dim, to write what belongs to other devices."""
    shape = [1 if d == dim else n for d, n in enumerate(target.shape)]
    return torch.cat([target, target.new_zeros(shape)], dim)


def _without_last(tensors: Sequence[Tensor], dim: int) -> list[Tensor]:
    return [tensor.narrow(dim, 0, tensor.shape[dim] - 1) for tensor in tensors]
