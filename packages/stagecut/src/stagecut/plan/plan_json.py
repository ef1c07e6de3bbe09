"""Stage plans as JSON: versioned, read back to equal values, no other text accepted.

The text is `{"stagecut": "plan", "version": 1, "plan": {...}}`. A dataclass is an object with an
entry for each field; entries that have a default may be left out. Tuples are lists. A submesh of
hosts of several kinds is `{"hosts": [[name, number], ...], "devices_per_host": m}`. An option of a
stage is a number, a text, true, false, null or a list of options.
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
    """A `SubmeshOfKind`."""

    hosts: tuple[tuple[str, int], ...]
    devices_per_host: int


T = TypeVar("T")
_VERSION = 1
_KEY = "stagecut"
_WORDS = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}
_MOST_DIGITS = 300  # of a whole number; a float has as many at most, and reading more is slow


def write(value: Any) -> str:
    """The text of a plan.

    Raises:
        RecordError: An option of a stage is none that JSON can keep.
    """
    return json.dumps({_KEY: "plan", "version": _VERSION, "plan": _encode(value)}, allow_nan=False)


def read(of: type[T], text: str | bytes) -> T:
    """The plan that `write` wrote.

    Raises:
        RecordError: The text is no JSON of this kind and version, or an entry is missing, unknown,
            of another type, or against the rules of what it stands for; says which entry.
    """
    try:
        document = json.loads(text, parse_constant=_no_number, parse_int=_whole)
    except (ValueError, TypeError, RecursionError) as error:
        raise RecordError(f"this is no JSON that can be read: {error}") from error
    if not isinstance(document, dict) or document.get(_KEY) != "plan":
        raise RecordError(
            f"a stage plan is JSON with the entry {_KEY!r}: 'plan', as StagePlan.to_json writes "
            f"it; got {_shown(document)}"
        )
    version = document.get("version")
    if type(version) is int and version > _VERSION:
        raise RecordError(
            f"this plan was written by a newer stagecut, in version {version} of the format; this "
            f"one reads version {_VERSION}: update stagecut, or plan again"
        )
    if version != _VERSION:
        raise RecordError(
            f"this stagecut reads version {_VERSION}; got version {_shown(version)}: plan again"
        )
    found: T = _object(of, document.get("plan"), "plan")
    return found


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, SubmeshOfKind):
        return {"hosts": [list(each) for each in value.hosts], "devices_per_host": value[1]}
    if isinstance(value, tuple):
        return [_encode(one) for one in value]
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Integral):  # numpy's, say
        return int(value)
    raise RecordError(
        "in JSON, an option of a stage is a number, a text, true, false, None or a tuple of such; "
        f"got {_shown(value)}"
    )


def _decode(of: Any, value: Any, path: str) -> Any:
    """A JSON value as what a type hint says."""
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
        its = _object(_Hosts, value, path)
        return SubmeshOfKind(its.hosts, its.devices_per_host)
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
    """An object as a dataclass."""
    hints = _hints(of)
    if not isinstance(value, dict):
        raise RecordError(f"{path} is an object with {', '.join(hints)}; got {_shown(value)}")
    for name in value:
        if name not in hints:
            raise RecordError(f"{path} has {', '.join(hints)}; got {_shown(name)}, too")
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
    raise RecordError(f"{path} is no object; got {_shown(value)}")


@cache
def _hints(of: Any) -> dict[str, tuple[Any, bool]]:
    """Type of each field of a dataclass, and whether it must be given."""
    types = get_type_hints(of)
    return {f.name: (types[f.name], f.default is MISSING) for f in fields(of)}


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number has at most {_MOST_DIGITS} digits; got {len(digits)}")
    return int(digits)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
