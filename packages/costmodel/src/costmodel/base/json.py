"""Converts frozen dataclasses to and from JSON, by the types of their fields.

A dataclass is an object with one entry for each field that `__init__` takes; entries with a default
may be left out. A tuple of pairs (text, value), such as the peaks of a device, is an object, too;
other tuples are lists. Numbers have the type of the field: `16e9` may be a whole number.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from costmodel.errors import shown

LEFT_OUT = "left out if it has its default"
"""Metadata of a field that older versions do not know: without it, values are written as before."""
_MISSING = "is missing"
_NAMES = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class JsonProblem:
    """A reason why a JSON value cannot be read."""

    path: str
    """Where the problem is, such as `hosts[0].link.latency_s`."""
    reason: str
    """What is wrong, to be read after the path."""

    @property
    def is_missing(self) -> bool:
        """Whether the value is missing or null."""
        return self.reason == _MISSING

    def __str__(self) -> str:
        return f"{self.path or 'the text'} {self.reason}"


def parsed(text: str | bytes) -> Any:
    """The value of a JSON text, as from `json.loads`.

    Raises:
        ValueError: The text is not JSON, not a text, or nested too deeply.
    """
    try:
        return json.loads(text)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def wrong_version(what: str, document: Any, known: int, again: str) -> str | None:
    """Why a document of another version cannot be read, and what to do; None if it can be read.

    Args:
        what: Name of such a document, such as `cluster`.
        document: From `parsed`; accepted if it has no version.
        known: The version that can be read.
        again: How to get a document of this version.
    """
    version = document.get("version") if isinstance(document, dict) else None
    if version is None or version == known:
        return None
    if type(version) is int and version > known:
        return (
            f"this {what} was written by a newer costmodel, in version {shown(version)} of the "
            f"format; this one reads version {known}: update costmodel, or {again}"
        )
    return (
        f"this costmodel reads version {known} of a {what}; got version {shown(version)}: {again}"
    )


def encode(kind: Any, value: Any) -> Any:
    """A value of type `kind` as dicts, lists and plain values, for `json.dumps`."""
    if is_dataclass(kind):
        named = {name: (of, getattr(value, name)) for name, (of, _) in _entries(kind).items()}
        left_out = {f.name: f.default for f in fields(kind) if f.metadata.get(LEFT_OUT)}
        return {
            name: encode(of, one)
            for name, (of, one) in named.items()
            if name not in left_out or one != left_out[name]
        }
    if of := _mapped(kind):
        return {key: encode(of, entry) for key, entry in value}
    if _is_list(kind):
        return [encode(of, one) for of, one in zip(_items(kind, value), value, strict=True)]
    return value


def decode(kind: Any, value: Any) -> Any:
    """A value from `parsed`, in which `problems` finds none, as a value of type `kind`."""
    if is_dataclass(kind):
        entries = _entries(kind)
        arguments = {name: decode(entries[name][0], entry) for name, entry in value.items()}
        return kind(**arguments)  # type: ignore[operator]
    if of := _mapped(kind):
        return tuple((key, decode(of, entry)) for key, entry in value.items())
    if _is_list(kind):
        return tuple(decode(of, one) for of, one in zip(_items(kind, value), value, strict=True))
    return kind(value)


def problems(kind: Any, value: Any, path: str = "") -> Iterator[JsonProblem]:
    """All reasons why a value from `parsed` cannot be read as `kind`, in the order of the fields.

    If a whole dataclass is missing, each of its fields is reported.
    """
    if value is None and not is_dataclass(kind):
        yield JsonProblem(path, _MISSING)
    elif is_dataclass(kind) and isinstance(value, dict | None):
        entries, present = _entries(kind), value or {}
        dot = f"{path}." if path else ""
        for name, (of, is_required) in entries.items():
            if name in present or is_required:
                yield from problems(of, present.get(name), dot + name)
        unknown = (name for name in present if name not in entries)
        yield from (JsonProblem(dot + name, "is unknown") for name in unknown)
    elif (of := _mapped(kind)) and isinstance(value, dict):
        for key, entry in value.items():
            yield from problems(of, entry, f"{path}.{key}")
    elif isinstance(value, list) and _is_list(kind) and len(_items(kind, value)) == len(value):
        for index, (of, one) in enumerate(zip(_items(kind, value), value, strict=True)):
            yield from problems(of, one, f"{path}[{index}]")
    elif not _is_scalar(kind, value):
        yield JsonProblem(path, f"is {_in_words(kind)}, not {shown(value)}")


def _entries(kind: Any) -> dict[str, tuple[Any, bool]]:
    """For each field of a dataclass, its type and whether it is required."""
    types = get_type_hints(kind)
    return {f.name: (_given(types[f.name]), f.default is MISSING) for f in fields(kind) if f.init}


def _given(kind: Any) -> Any:
    """The type of a value that is there, for `X | None`."""
    if not isinstance(kind, UnionType):
        return kind
    (given,) = (one for one in get_args(kind) if one is not NoneType)
    return given


def _mapped(kind: Any) -> Any:
    """`X` if this is `tuple[tuple[str, X], ...]`, else None."""
    parts = get_args(kind)
    pair = get_args(parts[0]) if len(parts) == 2 and parts[1] is Ellipsis else ()
    return pair[1] if len(pair) == 2 and pair[0] is str else None


def _is_list(kind: Any) -> bool:
    """Whether `kind` is a tuple that is written as a list."""
    return bool(get_args(kind)) and not _mapped(kind)


def _items(kind: Any, values: Any) -> tuple[Any, ...]:
    """The type of each item of such a tuple with these values."""
    parts = get_args(kind)
    return parts[:1] * len(values) if Ellipsis in parts else parts


def _is_scalar(kind: Any, value: object) -> bool:
    if kind not in (int, float):
        return kind in _NAMES and isinstance(value, kind)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    if kind is int:
        return isinstance(value, int) or value.is_integer()
    return isinstance(value, float) or abs(value) <= sys.float_info.max


def _in_words(kind: Any) -> str:
    return _NAMES.get(kind, "an object" if is_dataclass(kind) or _mapped(kind) else "a list")
