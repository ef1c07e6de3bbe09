"""What a spec lists for a dim: mesh axes, parts of them (`SubAxis`), and splits (`Split`)."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from shardspec.base.integers import natural, shown
from shardspec.errors import SpecError


@dataclass(frozen=True, slots=True, order=True)
class SubAxis:
    """Part of a mesh axis: Shardy's `"x":(m)k`.

    An axis of 8 used as 2×4 has the sub-axes `SubAxis(a, 1, 2)` (major) and `SubAxis(a, 2, 4)`.
    The device at coordinate `c` along an axis of length `n` has coordinate
    `c // (n / (pre * size)) % size` along the sub-axis.

    Raises:
        SpecError: a negative axis, `pre` below 1 or `size` below 2.
    """

    axis: int
    """Mesh axis index."""
    pre: int
    """Product of the sizes of the more major parts (Shardy's pre-size)."""
    size: int
    """Number of coordinates along this part."""

    def __post_init__(self) -> None:
        axis, pre, size = natural(self.axis), natural(self.pre), natural(self.size)
        if axis < 0 or pre < 1 or size < 2:
            raise SpecError(
                "a sub-axis has an axis index >= 0, a pre-size >= 1 and a size >= 2; "
                f"got axis={shown(self.axis)}, pre={shown(self.pre)}, size={shown(self.size)}"
            )
        object.__setattr__(self, "axis", axis)
        object.__setattr__(self, "pre", pre)
        object.__setattr__(self, "size", size)

    def __str__(self) -> str:
        return f"{self.axis}:({self.pre}){self.size}"


@dataclass(frozen=True, slots=True)
class Split:
    """Cuts a dim into `factor` pieces, and each device gets its part of every one: strided shards.

    `(Split(2), 0)` cuts a dim in 2 and then each half along axis 0, so a device holds two pieces.
    This is DTensor's `_StridedShard(split_factor=2)`, and Rhino's stride is the length of a piece.

    Raises:
        SpecError: a factor below 1.
    """

    factor: int
    """Number of pieces."""

    def __post_init__(self) -> None:
        factor = natural(self.factor)
        if factor < 1:
            raise SpecError(
                f"a split makes from 1 to 2**63 - 1 pieces; got factor={shown(self.factor)}"
            )
        object.__setattr__(self, "factor", factor)

    def __str__(self) -> str:
        return f"[{self.factor}]"


Axis = int | SubAxis
"""A mesh axis by its index, or a part of one."""

Entry = int | SubAxis | Split
"""One item in a spec's list for a dim; the list is major to minor."""


def index(axis: Axis) -> int:
    """Index of the mesh axis that `axis` is, or is part of."""
    return axis.axis if isinstance(axis, SubAxis) else axis


def pre_size(axis: Axis) -> int:
    """The pre-size of a part of an axis; 1 for a whole axis."""
    return axis.pre if isinstance(axis, SubAxis) else 1


def merged(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The shortest way to write `entries`: adjacent parts of an axis, and adjacent splits, joined.

    Splits that move nothing are dropped: those of factor 1, and those at the end.
    """
    shortest: list[Entry] = []
    for entry in entries:
        last = shortest[-1] if shortest else None
        match last, entry:
            case _, Split(factor=1):
                pass
            case Split(), Split():
                shortest[-1] = Split(last.factor * entry.factor)
            case SubAxis(), SubAxis() if (
                last.axis == entry.axis and last.pre * last.size == entry.pre
            ):
                shortest[-1] = SubAxis(last.axis, last.pre, last.size * entry.size)
            case _:
                shortest.append(entry)
    while shortest and isinstance(shortest[-1], Split):
        shortest.pop()
    return tuple(shortest)


def overlap(axes: Iterable[Axis]) -> bool:
    """Whether two of `axes` overlap: an axis twice, an axis and its part, or overlapping parts."""
    parts: dict[int, list[tuple[int, int]]] = {}
    whole: set[int] = set()
    for axis in axes:
        if isinstance(axis, SubAxis):
            parts.setdefault(axis.axis, []).append((axis.pre, axis.size))
        elif axis in whole:
            return True
        else:
            whole.add(axis)
    if not whole.isdisjoint(parts):
        return True
    for cuts in parts.values():
        cuts.sort()
        for (pre, size), (later, _) in itertools.pairwise(cuts):
            if later % (pre * size):
                return True
    return False
