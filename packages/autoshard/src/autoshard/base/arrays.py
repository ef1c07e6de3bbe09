"""Converts numbers that callers pass to float64 arrays and pairs of ints, or raises an error."""

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
    """`values` as a tuple: one entry for each node or edge.

    Args:
        values: Any iterable.
        name: The name of the argument, for the error.
    """
    if not isinstance(values, Iterable):
        raise ProblemError(f"{name} has an entry for each node or edge; got {shown(values)}")
    return tuple(values)


def array(values: object, name: str, of: str, place: int) -> NDArray[np.float64]:
    """`values` as a float64 array; an array that is float64 already is returned itself.

    Edges may share an array, so it must not be copied.

    Args:
        values: Any nesting of numbers; strings are refused, even strings of digits.
        name: The name of the argument, for the error.
        of: "node" or "edge".
        place: The index of the node or edge that the numbers belong to.
    """
    if isinstance(values, np.ndarray) and values.dtype == np.float64:
        return values
    try:
        numbers = np.asarray(values)
        if numbers.dtype.kind == "O" and all(isinstance(value, Real) for value in numbers.flat):
            numbers = numbers.astype(np.float64)  # ints beyond 64 bits
        if numbers.dtype.kind in "fiu":
            return numbers.astype(np.float64)
    except (OverflowError, RecursionError, ValueError):  # beyond all floats, or a ragged nesting
        pass
    raise ProblemError(f"{name} are arrays of numbers; {of} {place} has {shown(values)}")


def arrays(values: tuple[Any, ...], name: str, of: str) -> tuple[NDArray[np.float64], ...]:
    """`array` of each of `values`; returns `values` itself if all are float64 arrays already.

    They are wherever one problem is derived from another. Such tuples have far more entries than
    distinct arrays, so each distinct array is checked once.
    """
    distinct = {id(one): one for one in values}.values()
    if all(isinstance(one, np.ndarray) and one.dtype == np.float64 for one in distinct):
        return values
    return tuple(array(one, name, of, place) for place, one in enumerate(values))


def pairs(values: Iterable[Any], rule: str) -> tuple[tuple[int, int], ...]:
    """`values` as pairs of ints; an error begins with `rule`, which says what they should be."""
    if isinstance(values, tuple) and all(map(_is_pair, values)):
        return values
    whole = []
    for pair in values:
        try:
            i, j = pair
            whole.append((index(i), index(j)))
        except (TypeError, ValueError) as error:
            raise ProblemError(f"{rule}; got {shown(pair)}") from error
    return tuple(whole)


def frozen(values: NDArray[T]) -> NDArray[T]:
    """The same array, made read-only, since caches return it to many callers."""
    values.flags.writeable = False
    return values


def _is_pair(pair: object) -> bool:
    """Whether `pair` is a tuple of exactly two plain ints."""
    return type(pair) is tuple and [*map(type, pair)] == _PAIR


def shown(values: object) -> str:
    """The repr of a value for a message: one line of at most 60 characters."""
    text = " ".join(repr(values.tolist() if isinstance(values, np.ndarray) else values).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
