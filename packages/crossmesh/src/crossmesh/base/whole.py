"""Whole numbers among the arguments of callers."""

import operator
from typing import SupportsIndex

from crossmesh.errors import PlanError


def whole_number(name: str, value: SupportsIndex) -> int:
    """The value as an int; it may be of any integer type.

    Raises:
        PlanError: The value is not a whole number, such as 1.5 or a text.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise PlanError(f"{name} is a whole number; got {value!r}") from None
