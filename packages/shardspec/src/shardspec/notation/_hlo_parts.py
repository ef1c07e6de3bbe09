"""What the versions of `HloSharding` have in common: lists of devices, and what a text says."""

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardspec.base.axis import Axis, Entry
from shardspec.errors import MeshError
from shardspec.layout.mesh import Mesh
from shardspec.notation._scanner import Scanner
from shardspec.remesh import Digit, Ints, digits

MAX_DIMS = 32
"""Of a grid of devices, a mesh or a tensor: as many as arrays have in numpy 1."""
_MAX_DEVICES = 1 << 18
"""Of one sharding: more than any machine has."""
_MAX_LISTED = 1 << 22
"""Of a text in all, where it does not list them itself: a short text stands for a long list."""


@dataclass(frozen=True, slots=True)
class HloPlacement:
    """What a sharding says, before the tensor and the mesh that is asked for are known."""

    mesh: Mesh | None
    """The devices that it names, if any."""
    dims: tuple[tuple[Entry, ...], ...] | None
    """What shards each dim; None says that nothing shards any, however many there are."""
    unreduced: tuple[Axis, ...] | None = ()
    """Axes with partial sums; None for all that the mesh has."""


class HloScanner(Scanner):
    """A scanner that knows how many devices were listed for a text."""

    __slots__ = ("_listed",)

    def __init__(self, text: str):
        """Start reading `text`."""
        super().__init__(text, "an HloSharding", comments=True)
        self._listed = 0

    def written_out(self, order: Sequence[Digit], position: int) -> Ints:
        """The list of devices that the text at `position` stands for."""
        self._listed += math.prod(size for size, _ in order)
        if self._listed > _MAX_LISTED:
            self.fail(f"the text stands for lists of over {_MAX_LISTED} devices in all", position)
        ids = np.zeros(1, np.int64)
        for size, weight in order:
            ids = (np.arange(size)[:, None] * weight + ids).reshape(-1)
        return ids


def on_one_device(s: Scanner) -> HloPlacement:
    """The whole tensor on the device whose number comes next."""
    return HloPlacement(Mesh((), (), (s.integer(),)), None)


def integers(s: Scanner, at_most: int) -> list[int]:
    """Integers with commas between them, one or more."""
    found = [s.integer()]
    while s.accept(","):
        if len(found) == at_most:
            s.fail(f"there are at most {at_most} integers here")
        found.append(s.integer())
    return found


def size_of(s: Scanner, lengths: Sequence[int], position: int) -> int:
    """Number of devices in a grid, which must be one that can be listed."""
    size = math.prod(lengths)
    if not 1 <= size <= _MAX_DEVICES:
        s.fail(f"a grid has 1 to {_MAX_DEVICES} devices, this has {size}", position)
    return size


def listed(s: Scanner, size: int) -> Ints:
    """A list of devices, `0,2,1,3`."""
    start = s.position
    found = integers(s, size)
    if len(found) < size:
        s.fail(f"a list has a device for each of {size} places, this has {len(found)}", start)
    return np.array(found, np.int64)


def iota(s: Scanner, size: int) -> list[Digit]:
    """The numbers from 0 in a grid, transposed: `[2,4]T(1,0)`; `[8]` for one dim.

    Returns:
        The digits of a place in the list and what they weigh there, minor to major.
    """
    start = s.position
    s.expect("[")
    lengths = integers(s, MAX_DIMS)
    s.expect("]")
    order = [0]
    if len(lengths) > 1:
        s.expect("T")
        s.expect("(")
        order = integers(s, MAX_DIMS)
        s.expect(")")
    if math.prod(lengths) != size or sorted(order) != [*range(len(lengths))]:
        s.fail(f"the numbers from 0 fill {size} places, and T(...) has each dim once", start)
    found: list[Digit] = []
    for dim in reversed(order):
        length, weight = lengths[dim], math.prod(lengths[dim + 1 :])
        if found and weight == found[-1][0] * found[-1][1]:
            found[-1] = (found[-1][0] * length, found[-1][1])
        elif length > 1:
            found.append((length, weight))
    return found


def iota_text(ids: Ints) -> str | None:
    """The text that `iota` reads as `ids`; None if there is none."""
    found = digits(ids)
    if found is None:
        return None
    found.reverse()
    by_weight = sorted(found, key=lambda digit: -digit[1])
    rest = len(ids)
    for size, weight in by_weight:
        if weight * size != rest:
            return None
        rest = weight
    order = ",".join(str(by_weight.index(digit)) for digit in found)
    lengths = ",".join(str(size) for size, _ in by_weight)
    return f"[{lengths}]T({order})" if len(found) > 1 else f"[{lengths}]"


def letters(count: int) -> tuple[str, ...]:
    """Names for the axes of a grid that has none; no grid has as many axes as there are letters."""
    return tuple(string.ascii_lowercase[:count])


def mesh_of(
    s: Scanner, lengths: Sequence[int], names: Sequence[str], ids: Ints | None, position: int
) -> Mesh:
    """The mesh that is described at `position`."""
    try:
        return Mesh(tuple(lengths), tuple(names), () if ids is None else tuple(ids.tolist()))
    except MeshError as error:
        s.fail(str(error), position)


def skip_metadata(s: Scanner) -> None:
    """`={...}` after `metadata`, whatever is in the braces."""
    s.expect("=")
    s.skip_braces("metadata")
