"""Stage plans as JSON: the format has a version, reads back to equal values, and is checked.

The text is `{"stagecut": "plan", "version": 1, "plan": {...}}`. A dataclass becomes an object with
an entry for each field; entries that have a default may be left out. Tuples become lists. A submesh
with named kinds of hosts becomes `{"hosts": [[name, number], ...], "devices_per_host": m}`. An
option of a stage is a number, a text, true, false, null or a list of options.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from numbers import Integral
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from stagecut.base.types import Submesh
from stagecut.errors import RecordError, StagecutError
from stagecut.placement.offers import SubmeshOfKind


@dataclass(frozen=True, slots=True)
class _Hosts:
    """The fields of a `SubmeshOfKind`, as its JSON object has them."""

    hosts: tuple[tuple[str, int], ...]
    devices_per_host: int


T = TypeVar("T")
_VERSION = 1
_KEY = "stagecut"
_WORDS = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}
_MOST_DIGITS = 300
"""Limit for a whole number. A float has about as many at most, and reading longer numbers is slow.
"""


def write(value: Any) -> str:
    """A plan as JSON text.

    Raises:
        RecordError: An option of a stage is not a value that JSON can hold.
    """
    return json.dumps({_KEY: "plan", "version": _VERSION, "plan": _encode(value)}, allow_nan=False)


def read(of: type[T], text: str | bytes) -> T:
    """Read a plan that `write` wrote.

    Raises:
        RecordError: The text is not JSON of this format and version, or an entry is missing,
            unknown, of a wrong type, or has a value that its dataclass refuses. The message names
            the entry.
    """
    try:
        document = json.loads(text, parse_constant=_no_number, parse_int=_whole)
    except (ValueError, TypeError, RecursionError) as error:
        raise RecordError(
            f"a stage plan is JSON text; got text that cannot be read: {error}"
        ) from error
    if not isinstance(document, dict) or document.get(_KEY) != "plan":
        raise RecordError(
            f"a stage plan is JSON with the entry {_KEY!r}: 'plan', as StagePlan.to_json writes "
            f"it; got {_shown(document)}"
        )
    version = document.get("version")
    if type(version) is int and version > _VERSION:
        raise RecordError(
            f"this plan was written by a newer stagecut in version {version} of the format, and "
            f"this stagecut reads version {_VERSION}: update stagecut, or plan again"
        )
    if version != _VERSION:
        raise RecordError(
            f"this stagecut reads version {_VERSION}; got version {_shown(version)}: plan again"
        )
    plan: T = _object(of, document.get("plan"), "plan")
    return plan


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, SubmeshOfKind):
        return {"hosts": [list(each) for each in value.hosts], "devices_per_host": value[1]}
    if isinstance(value, tuple):
        return [_encode(one) for one in value]
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Integral):  # such as those of numpy
        return int(value)
    raise RecordError(
        "to be written to JSON, an option of a stage is a number, a text, a bool, None or a tuple "
        f"of these; got {_shown(value)}"
    )


def _decode(of: Any, value: Any, path: str) -> Any:
    """A JSON value converted to the type that a type hint says."""
    if of in _WORDS:
        if of is float and type(value) is int and abs(value) <= 2**1023:
            value = float(value)
        if type(value) is of and (of is not float or math.isfinite(value)):
            return value
        raise RecordError(f"{path} is {_WORDS[of]}; got {_shown(value)}")
    if of is Hashable:
        return _option(value, path)
    if get_origin(of) is UnionType:
        (kind,) = (one for one in get_args(of) if one is not NoneType)
        return None if value is None else _decode(kind, value, path)
    if of == Submesh and isinstance(value, dict):
        submesh = _object(_Hosts, value, path)
        return SubmeshOfKind(submesh.hosts, submesh.devices_per_host)
    if get_origin(of) is tuple:
        parts = get_args(of)
        if not isinstance(value, list):
            raise RecordError(f"{path} is a list; got {_shown(value)}")
        kinds = parts[:1] * len(value) if Ellipsis in parts else parts
        if len(kinds) != len(value):
            raise RecordError(f"{path} is a list of {len(kinds)}; got {_shown(value)}")
        items = enumerate(zip(kinds, value, strict=True))
        return tuple(_decode(kind, one, f"{path}[{index}]") for index, (kind, one) in items)
    return _object(of, value, path)


def _object(of: Any, value: Any, path: str) -> Any:
    """A JSON object converted to a dataclass."""
    hints = _hints(of)
    if not isinstance(value, dict):
        raise RecordError(f"{path} is an object with {', '.join(hints)}; got {_shown(value)}")
    for name in value:
        if name not in hints:
            raise RecordError(f"{path} has only {', '.join(hints)}; got {_shown(name)}, too")
    for name, (_, is_required) in hints.items():
        if is_required and name not in value:
            raise RecordError(f"{path} has {', '.join(hints)}; {name} is missing")
    arguments = {
        name: _decode(hints[name][0], entry, f"{path}.{name}") for name, entry in value.items()
    }
    try:
        return of(**arguments)
    except StagecutError as error:
        raise RecordError(f"{path}: {error}") from error


def _option(value: Any, path: str) -> Hashable:
    if isinstance(value, list):
        return tuple(_option(one, path) for one in value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise RecordError(f"{path} is not an object; got {_shown(value)}")


@cache
def _hints(of: Any) -> dict[str, tuple[Any, bool]]:
    """For each field of a dataclass its type, and whether it has no default."""
    types = get_type_hints(of)
    return {f.name: (types[f.name], f.default is MISSING) for f in fields(of)}


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number has at most {_MOST_DIGITS} digits; got {len(digits)}")
    return int(digits)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
