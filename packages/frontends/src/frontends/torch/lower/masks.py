"""Lookups and updates on part of what they index: each device does what falls into its part.

A table that is split by its rows is read as Megatron's vocabulary-parallel embedding is (Shoeybi et
al. 2019, §3): a device makes zeros for the rows that it lacks, and the sum over all of them is the
lookup. An update of a row is dropped where another device has the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from frontends.torch.base.calls import Call, Operand, Tensor, fill


class Part(NamedTuple):
    """What a device has of a dim."""

    start: int
    size: int
    whole: int
    """Size of the whole dim."""


Split = Mapping[int, Part]
"""The device's parts of the indexed dims that are split."""

Masked = Callable[[Call, Sequence[Tensor], Split], list[Tensor]]


def indexed_dims(call: Call, rank: int) -> tuple[int, ...]:
    """The dims whose places other operands name: of the first operand, or of a table's gradient.

    Args:
        call: One of `MASKED`.
        rank: Of what is indexed.
    """
    if call.name in ("embedding", "embedding_dense_backward"):
        return (0,)
    if call.has("indices"):
        return tuple(d for d, index in enumerate(call.argument("indices")) if index is not None)
    return (call.argument("dim") % max(rank, 1),)


def _embedding(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    table, places = operands
    local, mine = _within(places, split[0])
    return _masked(call([table, local]), mine[..., None])


def _embedding_gradient(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    gradient, places = operands
    padding = call.argument("padding_idx") - split[0].start
    local, mine = _within(places, split[0])
    call = call.replace(padding_idx=padding if 0 <= padding < split[0].size else -1)
    return call([torch.where(mine[..., None], gradient, 0), local])


def _gather(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    source, places = operands
    (part,) = split.values()
    local, mine = _within(places, part)
    return _masked(call([source, local]), mine)


def _index_select(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    source, places = operands
    ((dim, part),) = split.items()
    local, mine = _within(places, part)
    return _masked(call([source, local]), mine.view(_along(dim, source.ndim)))


def _index(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    source = operands[0]
    local, mine = _local_indices(call, operands, split)
    (made,) = call([source, *local])
    dims = indexed_dims(call, source.ndim)
    is_one_run = dims[-1] - dims[0] + 1 == len(dims)
    behind = source.ndim - dims[-1] - 1 if is_one_run else source.ndim - len(dims)
    return _masked([made], mine.view(*mine.shape, *(1,) * behind))


def _scatter_add(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    target, places, updates = operands
    ((dim, part),) = split.items()
    local, mine = _within(places, part)
    if call.name == "index_add":
        mine = mine.view(_along(dim, target.ndim))
    return call([target, local, torch.where(mine, updates, 0)])


def _scatter(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    target, places, *updates = operands
    ((dim, part),) = split.items()
    local, mine = _within(places, part)
    local = torch.where(mine, local, target.shape[dim])
    return _without_last(call([_with_one_more(target, dim), local, *updates]), dim)


def _index_put(call: Call, operands: Sequence[Tensor], split: Split) -> list[Tensor]:
    target = operands[0]
    local, mine = _local_indices(call, operands, split)
    values = operands[1 + len(local) :]
    dim = min(split)
    place = 1 + indexed_dims(call, target.ndim).index(dim)
    local[place - 1] = torch.where(mine, local[place - 1], target.shape[dim])
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
"""How an operator runs where dims that it indexes are split."""


def _within(places: Tensor, part: Part) -> tuple[Tensor, Tensor]:
    """Places in the part, 0 for those outside of it, and which are inside.

    Raises:
        IndexError: A place is in no device's part, as on a device that has all of it.
    """
    _check_inside(places, part.whole)
    local = places - part.start
    mine = (local >= 0) & (local < part.size)
    return torch.where(mine, local, 0), mine


def _check_inside(places: Tensor, size: int) -> None:
    is_inside = ((places >= 0) & (places < size)).all()
    if places.device.type != "cpu":  # which is not to be waited for
        torch._assert_async(is_inside)
    elif not is_inside:
        bad = next(p for p in places.flatten().tolist() if not 0 <= p < size)
        raise IndexError(f"index {bad} is out of bounds for a dim of size {size}")


def _local_indices(
    call: Call, operands: Sequence[Tensor], split: Split
) -> tuple[list[Tensor], Tensor]:
    """The indices that are operands, in their order, and which entries are inside the part."""
    inside = torch.tensor(True)
    found: dict[int, Tensor] = {}
    for dim, argument in enumerate(call.argument("indices")):
        if not isinstance(argument, Operand):
            continue
        index: Any = fill(argument, operands)
        if dim in split:
            from_start = torch.where(index < 0, index + split[dim].whole, index)
            index, mine = _within(from_start, split[dim])
            inside = inside & mine
        found[argument.place] = index
    return [found[place] for place in sorted(found)], inside


def _masked(made: Sequence[Tensor], mine: Tensor) -> list[Tensor]:
    return [torch.where(mine, tensor, torch.zeros((), dtype=tensor.dtype)) for tensor in made]


def _along(dim: int, rank: int) -> list[int]:
    """The shape in which a vector lies along a dim."""
    return [-1 if d == dim else 1 for d in range(rank)]


def _with_one_more(target: Tensor, dim: int) -> Tensor:
    """With a place at the end of a dim, for what belongs to another device."""
    shape = [1 if d == dim else n for d, n in enumerate(target.shape)]
    return torch.cat([target, target.new_zeros(shape)], dim)


def _without_last(made: Sequence[Tensor], dim: int) -> list[Tensor]:
    return [tensor.narrow(dim, 0, tensor.shape[dim] - 1) for tensor in made]
