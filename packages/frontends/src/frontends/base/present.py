"""Check that an optional value is not None where it must not be."""

from __future__ import annotations

from typing import TypeVar

from frontends.errors import InternalError

T = TypeVar("T")


def present(value: T | None, rule: str) -> T:
    """The value, if it is not None.

    Args:
        value: A value whose type allows None.
        rule: Why it is not None here, for the message.

    Raises:
        InternalError: The value is None.
    """
    if value is None:
        raise InternalError(f"{rule}; got None")
    return value
