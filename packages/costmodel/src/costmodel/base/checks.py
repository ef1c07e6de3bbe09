"""Checks the numbers, or arrays of numbers, that formulas and dataclasses take.

Numbers are those of Python or numpy, but neither bools nor texts that look like numbers.
"""

from __future__ import annotations

import math
import sys
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import QuantityError, shown

Quantity: TypeAlias = float | NDArray[Any]
"""A number or an array of numbers; formulas broadcast, and return a float if they get numbers."""

_LARGEST = sys.float_info.max
_LEAST = math.ulp(0.0)  # the smallest float > 0


def checked(
    name: str, value: Quantity, *, least: float = 0.0, most: float = _LARGEST, whole: bool = False
) -> Quantity:
    """The value as a float or an array of float64, if it is finite and in its range.

    Args:
        name: Name of the value in error messages, with its unit.
        value: A number or an array; integers are converted, so that their products do not overflow.
        least: The smallest value allowed.
        most: The largest value allowed.
        whole: Refuse fractions, for counts.

    Raises:
        QuantityError: The value, or an element of it, is not a number, not finite or out of range.

    Examples:
        >>> checked("n_bytes", 8)
        8.0
        >>> checked("rows", 2.5, whole=True)
        Traceback (most recent call last):
        costmodel.errors.QuantityError: rows is a finite whole number >= 0; got 2.5
    """
    one: Any = value
    if isinstance(one, float) or type(one) is int:  # far faster than with an array
        if least <= one <= most and not (whole and one % 1):
            return float(one)
        raise _error(name, value, least, most, whole)
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        raise _error(name, value, least, most, whole) from None
    kind = array.dtype.kind
    if kind not in "iuf":  # numpy would parse the text "3" and take True for 1
        raise _error(name, value, least, most, whole)
    array = array.astype(np.float64, copy=False)
    good = (array >= least) & (array <= most)  # false for NaN
    if whole and kind == "f":
        good &= np.rint(array) == array
    if not good.all():
        raise _error(name, float(array[~good].flat[0]), least, most, whole)
    return plain(array)


def counts(**values: Quantity) -> tuple[Quantity, ...]:
    """The values as floats or arrays, if they are whole numbers >= 0."""
    return tuple(checked(name, value, whole=True) for name, value in values.items())


def number(name: str, value: float, *, least: float = 0.0, most: float = _LARGEST) -> float:
    """A single number as a float, if it is finite and in its range.

    Raises:
        QuantityError: It is not, or it is an array.
    """
    return _one(name, value, checked(name, value, least=least, most=most))


def positive(name: str, value: float, *, most: float = _LARGEST) -> float:
    """A single number as a float, if it is finite, > 0 and in its range.

    Raises:
        QuantityError: It is not, or it is an array.
    """
    return number(name, value, least=_LEAST, most=most)


def count(name: str, value: int, *, least: int = 0, most: float = _LARGEST) -> int:
    """A single number as an int, if it is whole and in its range.

    Raises:
        QuantityError: It is not, or it is an array.
    """
    _one(name, value, checked(name, value, least=least, most=most, whole=True))
    return int(value)


def plain(value: Any) -> Quantity:
    """The value as a float if it is a single number (of numpy, too); arrays are returned as is."""
    return value if np.ndim(value) else float(value)


def assign(record: object, **values: object) -> None:
    """Sets fields of a frozen dataclass; for its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(record, name, value)


def _one(name: str, value: object, checked_value: Quantity) -> float:
    if isinstance(checked_value, float):
        return checked_value
    raise QuantityError(f"{name} is one number; got {shown(value)}")


def _error(name: str, value: object, least: float, most: float, whole: bool) -> QuantityError:
    finite, kind = "finite " * (most == _LARGEST), "whole number" if whole else "number"
    range_ = "> 0" if least == _LEAST else f">= {least:g}"
    if most != _LARGEST:
        range_ += f" and <= {most}"
    return QuantityError(f"{name} is a {finite}{kind} {range_}; got {shown(value)}")
