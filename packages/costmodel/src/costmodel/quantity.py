"""Numbers that formulas take: one, or an array of them, checked before they are used."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import QuantityError

Quantity: TypeAlias = float | NDArray[Any]
"""A number or an array of numbers; formulas broadcast, and give a float where they get numbers."""


def checked(name: str, value: Quantity, *, least: float = 0.0, whole: bool = False) -> Quantity:
    """The value as a float, or as an array of float64.

    Args:
        name: What the value is called in the message of the error, with its unit.
        value: Integers are converted, so that no product of them overflows.
        least: The smallest value allowed.
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
    if type(value) is float or type(value) is int:
        if least <= value < math.inf and not (whole and value % 1):
            return float(value)
        raise _error(name, value, least, whole)
    array = np.asarray(value)
    kind = array.dtype.kind
    if kind not in "iuf":  # numpy would read the text "3", and take True for 1
        raise _error(name, value, least, whole)
    array = array.astype(np.float64, copy=False)
    good = (array >= least) & (array < math.inf)  # of a NaN, neither holds
    if whole and kind == "f":
        good &= np.rint(array) == array
    if not good.all():
        raise _error(name, float(array[~good].flat[0]), least, whole)
    return plain(array)


def counts(**values: Quantity) -> tuple[Quantity, ...]:
    """The values, checked to be whole numbers >= 0."""
    return tuple(checked(name, value, whole=True) for name, value in values.items())


def count(name: str, value: int, *, least: int = 0) -> int:
    """One number as an integer, checked to be whole and >= `least`.

    Raises:
        QuantityError: It is not, or there are several.
    """
    if np.ndim(checked(name, value, least=least, whole=True)):
        raise _error(name, value, least, whole=True)
    return int(value)


def plain(value: Any) -> Quantity:
    """An array as it is, and a number of numpy's as a float."""
    return value if np.ndim(value) else float(value)


def _error(name: str, value: object, least: float, whole: bool) -> QuantityError:
    kind = "whole number" if whole else "number"
    return QuantityError(f"{name} is a finite {kind} >= {least:g}; got {value!r}")
