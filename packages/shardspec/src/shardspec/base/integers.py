"""Numbers as callers give them: made Python's own, so that values print, hash and grow alike."""

import operator
from typing import Any

LIMIT = 2**63 - 1
"""Largest size, index or count: what all notations and arrays can hold."""

_ONLY_INT = frozenset([int])


def natural(value: object) -> int:
    """`value` as an int, numpy's too; -1 if it is no integer from 0 to 2**63 - 1.

    Booleans are none. So one comparison refuses all that is no size, index or count.

    Examples:
        >>> natural(3), natural(True), natural(3.0), natural("3"), natural(2**63)
        (3, -1, -1, -1, -1)
    """
    if type(value) is int:  # the usual case, in a hurry
        return value if 0 <= value <= LIMIT else -1
    if isinstance(value, bool):
        return -1
    try:
        found = operator.index(value)  # type: ignore[arg-type]  # refuses what has no index
    except TypeError:
        return -1
    return found if 0 <= found <= LIMIT else -1


def naturals(values: object) -> tuple[int, ...]:
    """`values` as ints; -1 or another negative number for each that `natural` refuses.

    `(-1,)` if they cannot be iterated over.

    Examples:
        >>> naturals([2, 3.5]), naturals(2)
        ((2, -1), (-1,))
    """
    found = values if type(values) is tuple else items(values)
    if found is None:
        return (-1,)
    if _ONLY_INT.issuperset(map(type, found)) and (not found or max(found) <= LIMIT):
        return found  # the usual case, in a hurry
    return tuple(map(natural, found))


def items(values: object) -> tuple[Any, ...] | None:
    """`values` as a tuple; None if they cannot be iterated over, or are a text."""
    if isinstance(values, str | bytes):
        return None
    try:
        return tuple(values)  # type: ignore[arg-type]  # refuses what has no items
    except TypeError:
        return None


def shown(value: object) -> str:
    """A value for a message: its repr, cut off where it is long.

    Examples:
        >>> shown((2, 4)), shown(10**9999)
        ('(2, 4)', 'numbers too long to print')
    """
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        return "numbers too long to print"
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
