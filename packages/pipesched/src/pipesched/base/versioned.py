"""Writes and reads JSON objects that have a version."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from typing import Any, TypeVar

from pipesched.errors import ParseError, PipeschedError

_VERSION = 1

T = TypeVar("T")
Reader = Callable[[Any], Any]
"""Converts the JSON value of a field to the field's value."""


def write(value: object, fields: Mapping[str, object]) -> str:
    """A JSON object with the version and some fields of `value`.

    Numbers, bools and tuples are written as such, and anything else as its `str`.
    """
    return json.dumps({"version": _VERSION} | {n: _plain(getattr(value, n)) for n in fields})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Integral) and not isinstance(value, bool):  # such as those of numpy
        return int(value)
    return value if isinstance(value, bool) else str(value)


def read(what: str, of: Callable[..., T], fields: Mapping[str, Reader], text: str) -> T:
    """Read an object that `write` wrote.

    Args:
        what: What the object is, for error messages, such as "a schedule".
        of: The class, which is called with the fields.
        fields: For each field, the function that reads its value.
        text: The JSON text.

    Raises:
        ParseError: The text is not such an object, or has another version.
        PipeschedError: `of` refuses the fields.
    """
    try:
        data = json.loads(text)
        version = data["version"]
        if type(version) is int and version > _VERSION:
            raise ParseError(
                f"{what} was written by a newer pipesched in version {version} of its JSON, and "
                f"this pipesched reads version {_VERSION}: update pipesched, or write it again "
                "with this one"
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
    """A string; raises `TypeError` for any other value."""
    if not isinstance(value, str):
        raise TypeError(f"this is a text; got {value!r}")
    return value


def read_truth(value: Any) -> bool:
    """A bool; raises `KeyError` for any other value."""
    return {True: True, False: False}[value]


def read_all(of: Callable[[Any], T], values: Iterable[Any]) -> tuple[T, ...]:
    """The items of a list, each read by `of`."""
    return tuple(map(of, values))
