"""`LocalTranspose`: how a device orders the blocks of its shard before and after a collective.

Collectives of the libraries (MPI's, NCCL's, XLA's with one split and one concatenated dim) cut a
buffer into equal, contiguous parts, one for each device of the group. The parts of a step may be
any blocks of the local array. So a device brings them to the front before (`pack`), and puts those
that it receives in their places afterwards (`unpack`): the generalised all-to-all.
"""

import math
from dataclasses import dataclass

from shardspec.base.axis import Axis, SubAxis, index
from shardspec.layout.layout import Layout
from shardspec.refine.refine import Refined, refine
from shardspec.refine.shards import Array


@dataclass(frozen=True, slots=True)
class LocalTranspose:
    """`array.reshape(view).transpose(order).reshape(shape)`; prints without dims of size 1."""

    view: tuple[int, ...]
    """The array by blocks."""
    order: tuple[int, ...]
    """Dims of the view, in their new order."""
    shape: tuple[int, ...]
    """The array afterwards."""

    @property
    def is_reshape(self) -> bool:
        """Whether nothing moves in memory: the array is only seen in another shape."""
        kept = [dim for dim in self.order if self.view[dim] > 1]
        return kept == sorted(kept)

    def __str__(self) -> str:
        kept = [dim for dim in self.order if self.view[dim] > 1]
        places = sorted(kept)
        view, order = tuple(self.view[dim] for dim in places), tuple(map(places.index, kept))
        return f"{view} by {order}"

    def __call__(self, array: Array) -> Array:
        """The array with its blocks in the new order."""
        return array.reshape(self.view).transpose(self.order).reshape(self.shape)


def pack(src: Layout, dst: Layout, axes: tuple[Axis, ...], device: int) -> LocalTranspose | None:
    """From a device's shard to the parts for its group: shape `(n, ...)`, in group order.

    Args:
        src: Before a slice, an all-to-all or a reduce-scatter.
        dst: After it.
        axes: That it runs over, major to minor.
        device: Decides only the size of uneven dims that do not change.

    Returns:
        None if the parts are not equal blocks.
    """
    units = refine(src, dst)
    if units is None:
        return None
    taken = [units.dst[atom] for atom in _members(units, axes)]
    slots, held = _slots(units, src, device)
    order = [slots.index(digit) for digit in taken]
    order += [i for i, slot in enumerate(slots) if slot not in taken]
    view = [1 if slot in units.src else size for slot, size in zip(slots, held, strict=True)]
    rest = [1 if slot in taken else size for slot, size in zip(slots, view, strict=True)]
    n = math.prod(units.digits[digit] for digit in taken)
    return LocalTranspose(tuple(view), tuple(order), (n, *_joined(units, rest)))


def unpack(src: Layout, dst: Layout, axes: tuple[Axis, ...], device: int) -> LocalTranspose | None:
    """From the parts of a device's group, shape `(n, ...)` in group order, to its shard.

    Args:
        src: Before an all-gather or an all-to-all.
        dst: After it.
        axes: That it runs over, major to minor.
        device: Decides only the size of uneven dims that do not change.

    Returns:
        None if the parts are not equal blocks.
    """
    units = refine(src, dst)
    if units is None:
        return None
    left = [units.src[atom] for atom in _members(units, axes)]
    slots, held = _slots(units, src, device)
    part = [
        1 if slot in units.src or slot in units.dst else size
        for slot, size in zip(slots, held, strict=True)
    ]
    order = [left.index(slot) if slot in left else len(left) + i for i, slot in enumerate(slots)]
    # The part itself has nothing on the digits that come back, so these dims of it are 1.
    order += [len(left) + slots.index(digit) for digit in left]
    whole = [1 if slot in units.dst else size for slot, size in zip(slots, held, strict=True)]
    sizes = [units.digits[digit] for digit in left]
    return LocalTranspose((*sizes, *part), tuple(order), tuple(_joined(units, whole)))


def _members(units: Refined, axes: tuple[Axis, ...]) -> list[int]:
    """The atoms of a group, major to minor."""
    found = []
    for axis in axes:
        for atom, part in enumerate(units.atoms):
            pre = part.pre if isinstance(part, SubAxis) else 1
            inside = not isinstance(axis, SubAxis) or axis.pre <= pre < axis.pre * axis.size
            if index(part) == index(axis) and inside:
                found.append(atom)
    return found


def _slots(units: Refined, layout: Layout, device: int) -> tuple[list[int], list[int]]:
    """Digits, and below them what is left (numbered below -2), dim by dim, with their sizes."""
    local = layout.local_shape(device)
    slots: list[int] = []
    sizes: list[int] = []
    for dim, (digits, left) in enumerate(zip(units.order, units.left, strict=True)):
        slots += [*digits, -3 - dim] if left >= 0 else [-3 - dim]
        sizes += [*(units.digits[d] for d in digits), left] if left >= 0 else [local[dim]]
    return slots, sizes


def _joined(units: Refined, sizes: list[int]) -> list[int]:
    """Sizes of dims from those of their slots."""
    found, at = [], 0
    for digits, left in zip(units.order, units.left, strict=True):
        count = len(digits) + 1 if left >= 0 else 1
        found.append(math.prod(sizes[at : at + count]))
        at += count
    return found
