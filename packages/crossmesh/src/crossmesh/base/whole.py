"""Whole numbers, as callers give them."""

import operator
from typing import SupportsIndex

from crossmesh.errors import PlanError


def whole_number(name: str, value: SupportsIndex) -> int:
    """The number, of any type that is one.

    Raises:
        PlanError: it is none, such as 1.5 or a text.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise PlanError(f"{name} is a whole number; got {value!r}") from None
