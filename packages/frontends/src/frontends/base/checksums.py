"""Checksums by which the processes of a run compare what each of them has.

Python's `hash` is another one in each process, and the text of an object may hold its address.
These checksums are equal in all processes for equal numbers, arrays, text and containers of them.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np

_PLAIN = bool | int | float | complex | str | bytes | None | np.dtype | enum.Enum


def checksum(value: Any, opened: Callable[[Any], Any] = lambda value: value, start: int = 0) -> int:
    """A CRC-32 of a value, which is equal in all processes.

    Args:
        value: Numbers, arrays, text, and containers of them. Of any other object, its type counts.
        opened: Returns what an object holds, for objects that this function does not know.
        start: The checksum of what came before.

    Examples:
        >>> checksum({"a": 1, "b": (2.0, "x")}) == checksum({"b": (2.0, "x"), "a": 1})
        True
        >>> checksum([1]) == checksum([1.0])
        False
    """
    value = opened(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        start = _of_text(f"{value.dtype}{value.shape}", start)
        return zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, start)
    if isinstance(value, _PLAIN):
        return _of_text(f"{type(value).__name__} {value!r}", start)
    if isinstance(value, Mapping):
        value = sorted(((str(key), item) for key, item in value.items()), key=lambda pair: pair[0])
    elif isinstance(value, Set):
        value = sorted(checksum(item, opened) for item in value)
    if not isinstance(value, tuple | list):
        return _of_text(type(value).__qualname__, start)
    start = _of_text(f"{len(value)} items", start)
    for item in value:
        start = checksum(item, opened, start)
    return start


def _of_text(text: str, start: int) -> int:
    return zlib.crc32(text.encode(), start)
