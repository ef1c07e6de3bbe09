"""`LocalTranspose`: how a device orders the blocks of its shard before and after a collective.

The collectives of libraries (MPI, NCCL, and XLA with one split and one concatenated dim) cut a
buffer into equal, contiguous parts, one for each device of the group. The parts of a step may be
any blocks of the local array. So a device makes them contiguous before the collective (`pack`), and
moves those that it receives to their places after it (`unpack`): the generalised all-to-all.
"""

import math
from dataclasses import dataclass

from shardspec.base.axis import Axis, SubAxis, index, pre_size
from shardspec.layout.layout import Layout
from shardspec.refine.refine import Refined, refine
from shardspec.refine.shards import Array


@dataclass(frozen=True, slots=True)
class LocalTranspose:
    """`array.reshape(view).transpose(order).reshape(shape)`; prints without dims of size 1."""

    view: tuple[int, ...]
    """Shape of the array with a dim for each block index."""
    order: tuple[int, ...]
    """Dims of the view, in their new order."""
    shape: tuple[int, ...]
    """Shape of the array afterwards."""

    @property
    def is_reshape(self) -> bool:
        """Whether no element moves in memory: only the shape of the array changes."""
        kept = [dim for dim in self.order if self.view[dim] > 1]
        return kept == sorted(kept)

    def __str__(self) -> str:
        kept = [dim for dim in self.order if self.view[dim] > 1]
        dims = sorted(kept)
        view, order = tuple(self.view[dim] for dim in dims), tuple(map(dims.index, kept))
        return f"{view} by {order}"

    def __call__(self, array: Array) -> Array:
        """The array with its blocks in the new order."""
        return array.reshape(self.view).transpose(self.order).reshape(self.shape)


def pack(src: Layout, dst: Layout, axes: tuple[Axis, ...], device: int) -> LocalTranspose | None:
    """The transpose that turns a device's shard into the parts for its group.

    Args:
        src: Layout before a slice, an all-to-all or a reduce-scatter.
        dst: Layout after it.
        axes: Axes that the collective runs over, major to minor.
        device: Matters only for the sizes of uneven dims, which do not change.

    Returns:
        A transpose to shape `(n, ...)`, parts in group order; None if they are not equal blocks.
    """
    units = refine(src, dst)
    if units is None:
        return None
    gained = [units.dst[atom] for atom in _members(units, axes)]
    slots, full = _slots(units, src, device)
    order = [slots.index(digit) for digit in gained]
    order += [i for i, slot in enumerate(slots) if slot not in gained]
    view = [1 if slot in units.src else size for slot, size in zip(slots, full, strict=True)]
    rest = [1 if slot in gained else size for slot, size in zip(slots, view, strict=True)]
    n = math.prod(units.digits[digit] for digit in gained)
    return LocalTranspose(tuple(view), tuple(order), (n, *_joined(units, rest)))


def unpack(src: Layout, dst: Layout, axes: tuple[Axis, ...], device: int) -> LocalTranspose | None:
    """The transpose that turns the parts of a device's group into its shard.

    Args:
        src: Layout before an all-gather or an all-to-all.
        dst: Layout after it.
        axes: Axes that the collective runs over, major to minor.
        device: Matters only for the sizes of uneven dims, which do not change.

    Returns:
        A transpose from shape `(n, ...)`, parts in group order; None if they are not equal blocks.
    """
    units = refine(src, dst)
    if units is None:
        return None
    lost = [units.src[atom] for atom in _members(units, axes)]
    slots, full = _slots(units, src, device)
    part = [
        1 if slot in units.src or slot in units.dst else size
        for slot, size in zip(slots, full, strict=True)
    ]
    order = [lost.index(slot) if slot in lost else len(lost) + i for i, slot in enumerate(slots)]
    # A part has a single index of each digit that is joined again, so these dims of it are 1.
    order += [len(lost) + slots.index(digit) for digit in lost]
    whole = [1 if slot in units.dst else size for slot, size in zip(slots, full, strict=True)]
    sizes = [units.digits[digit] for digit in lost]
    return LocalTranspose((*sizes, *part), tuple(order), tuple(_joined(units, whole)))


def _members(units: Refined, axes: tuple[Axis, ...]) -> list[int]:
    """The atoms that make up `axes`, major to minor."""
    members = []
    for axis in axes:
        for atom, part in enumerate(units.atoms):
            pre = pre_size(part)
            inside = not isinstance(axis, SubAxis) or axis.pre <= pre < axis.pre * axis.size
            if index(part) == index(axis) and inside:
                members.append(atom)
    return members


def _slots(units: Refined, layout: Layout, device: int) -> tuple[list[int], list[int]]:
    """The slots of the tensor's dims in order, and their sizes.

    A dim has a slot for each of its digits, numbered like it, and one for what is left below them,
    numbered -3 - dim. A left-out dim has only the latter, with the size that the device holds.
    """
    local = layout.local_shape(device)
    slots: list[int] = []
    sizes: list[int] = []
    for dim, (digits, left) in enumerate(zip(units.order, units.left, strict=True)):
        slots += [*digits, -3 - dim] if left >= 0 else [-3 - dim]
        sizes += [*(units.digits[d] for d in digits), left] if left >= 0 else [local[dim]]
    return slots, sizes


def _joined(units: Refined, sizes: list[int]) -> list[int]:
    """Sizes of dims from the sizes of their slots."""
    joined, start = [], 0
    for digits, left in zip(units.order, units.left, strict=True):
        count = len(digits) + 1 if left >= 0 else 1
        joined.append(math.prod(sizes[start : start + count]))
        start += count
    return joined
