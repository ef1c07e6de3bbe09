"""Cache keys for the arguments of operators: equal arguments have equal keys.

The text of a value cannot be the key: numpy prints an array of more than 1,000 elements without
those in the middle, and JAX prints a program without the arrays that it holds.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np


def cache_key(value: Any) -> Hashable:
    """A key that is equal for values of the same type with the same bits.

    Args:
        value: Numbers, arrays, text, and containers of them. For any other object, its own hash
            and `==` decide.

    Raises:
        TypeError: The value contains an object without a hash.

    Examples:
        >>> cache_key(0.0) == cache_key(-0.0) or cache_key(1) == cache_key(True)
        False
    """
    if isinstance(value, Mapping):
        items = ((cache_key(key), cache_key(item)) for key, item in value.items())
        return type(value), frozenset(items)
    if isinstance(value, list | tuple):
        return type(value), *map(cache_key, value)
    if isinstance(value, float | complex):
        return type(value), repr(value)
    if hasattr(value, "__array__") and not isinstance(value, type):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise TypeError(f"an array of objects has no bytes to compare; got {array.dtype}")
        return type(value), array.shape, array.dtype, array.tobytes()
    hash(value)
    return type(value), value
