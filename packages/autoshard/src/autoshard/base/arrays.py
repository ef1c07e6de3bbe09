"""What a caller gives as numbers, as arrays of float64 and pairs of whole numbers, or an error."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from operator import index
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import ProblemError

Array = NDArray[np.float64]
T = TypeVar("T", bound=np.generic)
_PAIR = [int, int]


def listed(values: object, name: str) -> tuple[Any, ...]:
    """The entries of something with an entry for each node or edge."""
    if not isinstance(values, Iterable):
        raise ProblemError(f"{name} has an entry for each node or edge; got {shown(values)}")
    return tuple(values)


def array(values: object, name: str, of: str, place: int) -> NDArray[np.float64]:
    """Numbers as float64; the same array if it is one already, as edges may share it.

    Args:
        values: Any nesting of numbers; text is none, even of digits.
        name: What they are, for the error.
        of: "node" or "edge".
        place: The number of that one.
    """
    if isinstance(values, np.ndarray) and values.dtype == np.float64:
        return values
    try:
        found = np.asarray(values)
        if found.dtype.kind == "O" and all(isinstance(value, Real) for value in found.flat):
            found = found.astype(np.float64)  # whole numbers beyond 64 bits
        if found.dtype.kind in "fiu":
            return found.astype(np.float64)
    except (OverflowError, RecursionError, ValueError):  # beyond all floats, or rows that differ
        pass
    raise ProblemError(f"{name} are arrays of numbers; {of} {place} has {shown(values)}")


def arrays(values: tuple[Any, ...], name: str, of: str) -> tuple[NDArray[np.float64], ...]:
    """Each of `values` as `array` makes it; the same tuple if all are arrays already.

    That is so wherever one problem is made of another, with far more entries than arrays.
    """
    distinct = {id(one): one for one in values}.values()
    if all(isinstance(one, np.ndarray) and one.dtype == np.float64 for one in distinct):
        return values
    return tuple(array(one, name, of, place) for place, one in enumerate(values))


def pairs(values: Iterable[Any], rule: str) -> tuple[tuple[int, int], ...]:
    """Pairs of whole numbers; the rule is what the error says of them."""
    if isinstance(values, tuple) and all(map(_is_pair, values)):
        return values
    found = []
    for pair in values:
        try:
            i, j = pair
            found.append((index(i), index(j)))
        except (TypeError, ValueError) as error:
            raise ProblemError(f"{rule}; got {shown(pair)}") from error
    return tuple(found)


def frozen(values: NDArray[T]) -> NDArray[T]:
    """The same array, which nobody can write to from now on: caches give it to many."""
    values.flags.writeable = False
    return values


def _is_pair(pair: object) -> bool:
    """Whether it is one already, of plain whole numbers."""
    return type(pair) is tuple and [*map(type, pair)] == _PAIR


def shown(values: object) -> str:
    """A value as a message shows it, in one short line."""
    text = " ".join(repr(values.tolist() if isinstance(values, np.ndarray) else values).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
