"""What has to be there."""

from __future__ import annotations

from typing import TypeVar

from frontends.errors import InternalError

T = TypeVar("T")


def present(value: T | None, rule: str) -> T:
    """A value that may be None for its type, and by a rule is not.

    Args:
        value: That is used.
        rule: Why it is there.

    Raises:
        InternalError: It is not.
    """
    if value is None:
        raise InternalError(f"{rule}; got None")
    return value
