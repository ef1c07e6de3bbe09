"""JSON objects with a version: what is written in one, and what is said of any other text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Any, TypeVar

from pipesched.errors import ParseError, PipeschedError

_VERSION = 1

T = TypeVar("T")
Reader = Callable[[Any], Any]
"""Makes a field of what JSON has for it."""


def write(value: object, fields: Mapping[str, object]) -> str:
    """The text of some fields, after the version; whatever is no number is written as its text."""
    return json.dumps({"version": _VERSION} | {n: _plain(getattr(value, n)) for n in fields})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Integral) and not isinstance(value, bool):  # numpy's, say
        return int(value)
    return value if isinstance(value, bool) else str(value)


def read(what: str, of: Callable[..., T], fields: Mapping[str, Reader], text: str) -> T:
    """What was written by `write`.

    Args:
        what: It is, as `a schedule`.
        of: Makes it of its fields.
        fields: Of each, what reads it.
        text: The object.

    Raises:
        ParseError: The text is no such object, or one of another version.
        PipeschedError: No such thing has these fields.
    """
    try:
        data = json.loads(text)
        version = data["version"]
        if type(version) is int and version > _VERSION:
            raise ParseError(
                f"{what} of a newer pipesched, in version {version} of its JSON; this one reads "
                f"version {_VERSION}: update pipesched, or write it again with this one"
            )
        if version != _VERSION:
            raise ParseError(f"{what}'s JSON has version {_VERSION}; got version={version!r}")
        return of(**{name: read_field(data[name]) for name, read_field in fields.items()})
    except PipeschedError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        *first, last = ("version", *fields)
        raise ParseError(
            f"{what} is a JSON object with {', '.join(first)} and {last}; got {text!r:.60} "
            f"({type(error).__name__}: {error})"
        ) from error


def read_text(value: object) -> str:
    """A text; `TypeError` if it is none."""
    if not isinstance(value, str):
        raise TypeError(f"this is a text; got {value!r}")
    return value


def read_truth(value: Any) -> bool:
    """Whether it is true; `KeyError` if it is neither true nor false."""
    return {True: True, False: False}[value]


def read_all(of: Callable[[Any], T], values: Iterable[Any]) -> tuple[T, ...]:
    """Each item of a list."""
    return tuple(map(of, values))
