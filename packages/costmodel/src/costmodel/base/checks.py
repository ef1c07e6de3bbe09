"""Numbers that formulas and records take: one, or an array of them, checked before they are used.

A number is Python's or numpy's, but no bool, and no text that looks like one.
"""

from __future__ import annotations

import math
import sys
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import QuantityError, shown

Quantity: TypeAlias = float | NDArray[Any]
"""A number or an array of numbers; formulas broadcast, and give a float where they get numbers."""

_LARGEST = sys.float_info.max
_LEAST = math.ulp(0.0)  # that is not 0


def checked(
    name: str, value: Quantity, *, least: float = 0.0, most: float = _LARGEST, whole: bool = False
) -> Quantity:
    """The value as a float, or as an array of float64.

    Args:
        name: What the value is called in the message of the error, with its unit.
        value: Integers are converted, so that no product of them overflows.
        least: The smallest value allowed.
        most: The largest value allowed.
        whole: Refuse fractions; for what is counted.

    Raises:
        QuantityError: The value, or one of an array, is no number, not finite or out of range.

    Examples:
        >>> checked("n_bytes", 8)
        8.0
        >>> checked("rows", 2.5, whole=True)
        Traceback (most recent call last):
        costmodel.errors.QuantityError: rows is a finite whole number >= 0; got 2.5
    """
    one: Any = value
    if isinstance(one, float) or type(one) is int:  # far faster than by an array
        if least <= one <= most and not (whole and one % 1):
            return float(one)
        raise _error(name, value, least, most, whole)
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        raise _error(name, value, least, most, whole) from None
    kind = array.dtype.kind
    if kind not in "iuf":  # numpy would read the text "3", and take True for 1
        raise _error(name, value, least, most, whole)
    array = array.astype(np.float64, copy=False)
    good = (array >= least) & (array <= most)  # of a NaN, neither holds
    if whole and kind == "f":
        good &= np.rint(array) == array
    if not good.all():
        raise _error(name, float(array[~good].flat[0]), least, most, whole)
    return plain(array)


def counts(**values: Quantity) -> tuple[Quantity, ...]:
    """The values, checked to be whole numbers >= 0."""
    return tuple(checked(name, value, whole=True) for name, value in values.items())


def number(name: str, value: float, *, least: float = 0.0, most: float = _LARGEST) -> float:
    """One number as a float, checked to be finite and in its range.

    Raises:
        QuantityError: It is not, or there are several.
    """
    return _one(name, value, checked(name, value, least=least, most=most))


def positive(name: str, value: float, *, most: float = _LARGEST) -> float:
    """One number as a float, checked to be finite, > 0 and in its range.

    Raises:
        QuantityError: It is not, or there are several.
    """
    return number(name, value, least=_LEAST, most=most)


def count(name: str, value: int, *, least: int = 0, most: float = _LARGEST) -> int:
    """One number as an integer, checked to be whole and in its range.

    Raises:
        QuantityError: It is not, or there are several.
    """
    _one(name, value, checked(name, value, least=least, most=most, whole=True))
    return int(value)


def plain(value: Any) -> Quantity:
    """An array as it is, and a number of numpy's as a float."""
    return value if np.ndim(value) else float(value)


def assign(record: object, **values: object) -> None:
    """Set fields of a frozen dataclass to what its `__post_init__` made of them."""
    for name, value in values.items():
        object.__setattr__(record, name, value)


def _one(name: str, value: object, found: Quantity) -> float:
    if isinstance(found, float):
        return found
    raise QuantityError(f"{name} is one number; got {shown(value)}")


def _error(name: str, value: object, least: float, most: float, whole: bool) -> QuantityError:
    finite, kind = "finite " * (most == _LARGEST), "whole number" if whole else "number"
    range_ = "> 0" if least == _LEAST else f">= {least:g}"
    if most != _LARGEST:
        range_ += f" and <= {most}"
    return QuantityError(f"{name} is a {finite}{kind} {range_}; got {shown(value)}")
