"""Turns callers' integers (numpy's too) into Python ints, so that all print and hash the same."""

import operator
from typing import Any

LIMIT = 2**63 - 1
"""Largest size, index or count: all notations and arrays can hold it."""

_ONLY_INT = frozenset([int])


def natural(value: object) -> int:
    """`value` as an int; -1 if it is not an integer from 0 to 2**63 - 1.

    numpy's integers are accepted, booleans are not. So a caller finds everything that cannot be a
    size, index or count by one comparison with 0.

    Examples:
        >>> natural(3), natural(True), natural(3.0), natural("3"), natural(2**63)
        (3, -1, -1, -1, -1)
    """
    if type(value) is int:  # fast path for the usual case
        return value if 0 <= value <= LIMIT else -1
    if isinstance(value, bool):
        return -1
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # raises for non-integers
    except TypeError:
        return -1
    return number if 0 <= number <= LIMIT else -1


def naturals(values: object) -> tuple[int, ...]:
    """`values` as ints; a negative number for each that is not an integer from 0 to 2**63 - 1.

    `(-1,)` if `values` cannot be iterated over.

    Examples:
        >>> naturals([2, 3.5]), naturals(2)
        ((2, -1), (-1,))
    """
    numbers = values if type(values) is tuple else items(values)
    if numbers is None:
        return (-1,)
    if _ONLY_INT.issuperset(map(type, numbers)) and (not numbers or max(numbers) <= LIMIT):
        return numbers  # fast path for the usual case
    return tuple(map(natural, numbers))


def items(values: object) -> tuple[Any, ...] | None:
    """`values` as a tuple; None if they cannot be iterated over, or are a string."""
    if isinstance(values, str | bytes):
        return None
    try:
        return tuple(values)  # type: ignore[arg-type]  # raises if it is not iterable
    except TypeError:
        return None


def shown(value: object) -> str:
    """The repr of a value for a message, cut off after 200 characters.

    Examples:
        >>> shown((2, 4)), shown(10**9999)
        ('(2, 4)', 'numbers too long to print')
    """
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than 4300 digits
        return "numbers too long to print"
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
