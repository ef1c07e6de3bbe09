"""Shared by all versions of `HloSharding`: lists of devices, and the parsed content of a text."""

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
"""Most dims of a grid of devices, a mesh or a tensor: the limit of arrays in numpy 1."""
_MAX_DEVICES = 1 << 18
"""Most devices of one sharding: more than any machine has."""
_MAX_LISTED = 1 << 22
"""Most devices in all lists that a text abbreviates: a short text can stand for a long list."""


@dataclass(frozen=True, slots=True)
class HloPlacement:
    """The content of a sharding, before the shape and the caller's mesh are applied."""

    mesh: Mesh | None
    """The devices that the text names, if any."""
    dims: tuple[tuple[Entry, ...], ...] | None
    """What shards each dim; None if no dim is sharded, for tensors of any rank."""
    unreduced: tuple[Axis, ...] | None = ()
    """Axes with partial sums; None for all axes of the mesh."""


class HloScanner(Scanner):
    """A scanner that counts the devices of all abbreviated lists in a text, and limits them."""

    __slots__ = ("_listed",)

    def __init__(self, text: str):
        """Starts reading `text`."""
        super().__init__(text, "an HloSharding", comments=True)
        self._listed = 0

    def written_out(self, order: Sequence[Digit], position: int) -> Ints:
        """The list of devices that the abbreviation at `position` stands for."""
        self._listed += math.prod(size for size, _ in order)
        if self._listed > _MAX_LISTED:
            self.fail(f"the text stands for lists of over {_MAX_LISTED} devices in all", position)
        ids = np.zeros(1, np.int64)
        for size, weight in order:
            ids = (np.arange(size)[:, None] * weight + ids).reshape(-1)
        return ids


def on_one_device(s: Scanner) -> HloPlacement:
    """Reads the number of the device that holds the whole tensor."""
    return HloPlacement(Mesh((), (), (s.integer(),)), None)


def integers(s: Scanner, at_most: int) -> list[int]:
    """Reads one or more integers, separated by commas."""
    numbers = [s.integer()]
    while s.accept(","):
        if len(numbers) == at_most:
            s.fail(f"there are at most {at_most} integers here")
        numbers.append(s.integer())
    return numbers


def size_of(s: Scanner, lengths: Sequence[int], position: int) -> int:
    """Number of devices in a grid; fails at `position` if they are none or too many to list."""
    size = math.prod(lengths)
    if not 1 <= size <= _MAX_DEVICES:
        s.fail(f"a grid has 1 to {_MAX_DEVICES} devices, this has {size}", position)
    return size


def listed(s: Scanner, size: int) -> Ints:
    """Reads a list of `size` devices, `0,2,1,3`."""
    start = s.position
    ids = integers(s, size)
    if len(ids) < size:
        s.fail(f"a list has a device for each of {size} places, this has {len(ids)}", start)
    return np.array(ids, np.int64)


def iota(s: Scanner, size: int) -> list[Digit]:
    """Reads `[2,4]T(1,0)`, the numbers from 0 in a grid, transposed; `[8]` for one dim.

    Returns:
        The digits of a place in the list, with their weights in the number there, minor to major.
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
    of_place: list[Digit] = []
    for dim in reversed(order):
        length, weight = lengths[dim], math.prod(lengths[dim + 1 :])
        if of_place and weight == of_place[-1][0] * of_place[-1][1]:
            of_place[-1] = (of_place[-1][0] * length, of_place[-1][1])
        elif length > 1:
            of_place.append((length, weight))
    return of_place


def iota_text(ids: Ints) -> str | None:
    """The text that `iota` reads as `ids`; None if there is none."""
    of_place = digits(ids)
    if of_place is None:
        return None
    of_place.reverse()
    by_weight = sorted(of_place, key=lambda digit: -digit[1])
    rest = len(ids)
    for size, weight in by_weight:
        if weight * size != rest:
            return None
        rest = weight
    order = ",".join(str(by_weight.index(digit)) for digit in of_place)
    lengths = ",".join(str(size) for size, _ in by_weight)
    return f"[{lengths}]T({order})" if len(of_place) > 1 else f"[{lengths}]"


def letters(count: int) -> tuple[str, ...]:
    """Names for the axes of a grid, which has none; grids have at most as many as the alphabet."""
    return tuple(string.ascii_lowercase[:count])


def mesh_of(
    s: Scanner, lengths: Sequence[int], names: Sequence[str], ids: Ints | None, position: int
) -> Mesh:
    """The mesh with these axes and devices; fails at `position` if it is not valid."""
    try:
        return Mesh(tuple(lengths), tuple(names), () if ids is None else tuple(ids.tolist()))
    except MeshError as error:
        s.fail(str(error), position)


def skip_metadata(s: Scanner) -> None:
    """Reads `={...}` after `metadata`, whatever is in the braces."""
    s.expect("=")
    s.skip_braces("metadata")
