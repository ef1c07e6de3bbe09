"""Graphs and shardings as JSON: versioned, read back to equal values, no other text accepted.

A document is `{"autoshard": kind, "version": 1, "shared": {...}, kind: {...}}`. A dataclass is an
object with an entry for each field; entries that have a default may be left out. What many
operators have in common, such as rules, is written once, in `shared`, and named by its place there.
A class may have a `Packing`, a shorter value that is written in the place of its own.
Specs are text in Alpa's notation, infinite numbers are `"inf"` and `"-inf"`, as JSON has none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from costmodel import Cluster
from shardspec import Mesh, Spec

from autoshard.errors import RecordError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Packing:
    """What is written in the place of a class."""

    of: type
    """Class of what is written."""
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


Packings = Mapping[type, Packing]


@dataclass(frozen=True, slots=True)
class _Context:
    """What decoding an entry takes besides its type."""

    tables: Mapping[str, list[Any]]
    """Of shared classes, by name."""
    packings: Packings


KEY = "autoshard"
"""What every document has, and an IOPDDL problem has not."""
_VERSION = 1
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
_INFINITE = {"inf": math.inf, "-inf": -math.inf}
_NO_PACKINGS: Packings = {}


def kind_of(text: str) -> str | None:
    """`graph`, `sharding` or what else a document says it is; `None` for JSON of another make.

    Raises:
        RecordError: the text is no JSON.
    """
    document = _loads(text)
    kind = document.get(KEY) if isinstance(document, dict) else None
    return kind if isinstance(kind, str) else None


def write(
    kind: str, value: Any, shared: tuple[type, ...] = (), packings: Packings = _NO_PACKINGS
) -> str:
    """The text of a frozen dataclass.

    Args:
        kind: What it is, which `read` asks for again.
        value: Made of numbers, texts, tuples, dataclasses, specs, meshes and clusters.
        shared: Classes whose equal values are written once; each after those that it has parts of.
        packings: Classes that others are written for.
    """
    tables: dict[str, dict[Any, int]] = {of.__name__: {} for of in shared}
    written: dict[str, list[Any]] = {of.__name__: [] for of in shared}

    def encode(value: Any) -> Any:
        if isinstance(value, float) and math.isinf(value):
            return "inf" if value > 0 else "-inf"
        if isinstance(value, tuple):
            return [encode(one) for one in value]
        if type(value) in packings:
            return encode(packings[type(value)].pack(value))
        name = type(value).__name__
        if name not in tables:
            return entries(value)
        if value not in tables[name]:
            written[name].append(entries(value))
            tables[name][value] = len(written[name]) - 1
        return tables[name][value]

    def entries(value: Any) -> Any:
        for of, (dump, _) in _FOREIGN.items():
            if isinstance(value, of):
                return dump(value)
        if not is_dataclass(value):
            return value
        return {f.name: encode(getattr(value, f.name)) for f in fields(value) if f.init}

    body = encode(value)
    return json.dumps(
        {KEY: kind, "version": _VERSION, "shared": written, kind: body}, allow_nan=False
    )


def read(
    kind: str,
    of: type[T],
    text: str,
    shared: tuple[type, ...] = (),
    packings: Packings = _NO_PACKINGS,
) -> T:
    """The value that `write` wrote.

    Raises:
        RecordError: the text is no JSON of this kind and version, or an entry is missing, unknown,
            of another type, or against the rules of what it stands for; says which entry.
    """
    document = _loads(text)
    if not isinstance(document, dict) or document.get(KEY) != kind:
        raise RecordError(
            f"a {kind} is JSON with the entry {KEY!r}: {kind!r}, as its to_json writes it; got "
            f"{_shown(document.get(KEY) if isinstance(document, dict) else document)}"
        )
    version = document.get("version")
    if type(version) is int and version > _VERSION:
        raise RecordError(
            f"this {kind} was written by a newer autoshard, in version {version} of the format; "
            f"this one reads version {_VERSION}: update autoshard, or write the {kind} again with "
            "this one"
        )
    if version != _VERSION:
        raise RecordError(
            f"this autoshard reads version {_VERSION} of a {kind}; got version {_shown(version)}: "
            f"write the {kind} again with this one"
        )
    given = document.get("shared", {})
    if not isinstance(given, dict) or not all(isinstance(one, list) for one in given.values()):
        raise RecordError("'shared' has a list for each class")
    tables: dict[str, list[Any]] = {}
    context = _Context(tables, packings)
    for one in shared:
        tables[one.__name__] = [
            _entry(one, entry, f"shared.{one.__name__}[{place}]", context)
            for place, entry in enumerate(given.get(one.__name__, []))
        ]
    found: T = _decode(of, document.get(kind), kind, context)
    return found


def _loads(text: str) -> Any:
    if not isinstance(text, str):
        raise RecordError(f"JSON is read from a text; got {_shown(text)}")

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no number of JSON")

    try:
        return json.loads(text, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"this is no JSON that can be read: {error}") from error


def _decode(of: Any, value: Any, path: str, context: _Context) -> Any:
    """A JSON value as what a type hint says."""
    if of in _WORDS:
        return _scalar(of, value, path)
    if get_origin(of) in (Union, UnionType):
        return _member(of, value, path, context)
    if get_origin(of) is Literal:
        if isinstance(value, str) and value in get_args(of):
            return value
        raise RecordError(f"{path} is one of {get_args(of)}; got {_shown(value)}")
    if get_origin(of) is tuple:
        parts = get_args(of)
        if isinstance(value, list):
            hints = parts[:1] * len(value) if Ellipsis in parts else parts
            if len(hints) == len(value):
                return tuple(
                    _decode(hint, one, f"{path}[{index}]", context)
                    for index, (hint, one) in enumerate(zip(hints, value, strict=True))
                )
        length = "" if Ellipsis in parts else f" of {len(parts)}"
        raise RecordError(f"{path} is a list{length}; got {_shown(value)}")
    if of in context.packings:
        packing = context.packings[of]
        return _checked(packing.unpack, path, _decode(packing.of, value, path, context))
    if of.__name__ in context.tables:
        table = context.tables[of.__name__]
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(table):
            return table[value]
        raise RecordError(
            f"{path} is a place among the {len(table)} of shared.{of.__name__}; got {_shown(value)}"
        )
    return _entry(of, value, path, context)


def _entry(of: Any, value: Any, path: str, context: _Context) -> Any:
    """An object as a dataclass or as a sibling's class."""
    if of in _FOREIGN:
        return _checked(_FOREIGN[of][1], path, value)
    return _object(of, value, path, context)


def _object(of: Any, value: Any, path: str, context: _Context) -> Any:
    """An object as a dataclass."""
    if not isinstance(value, dict):
        raise RecordError(f"{path} is an object; got {_shown(value)}")
    hints = _hints(of)
    for name in value:
        if name not in hints:
            raise RecordError(f"{path} has the entries {tuple(hints)}; got {_shown(name)}, too")
    for name, (_, required) in hints.items():
        if required and name not in value:
            raise RecordError(f"{path} has the entries {tuple(hints)}; {name!r} is missing")
    arguments = {
        name: _decode(hints[name][0], entry, f"{path}.{name}", context)
        for name, entry in value.items()
    }
    return _checked(lambda given: of(**given), path, arguments)


@lru_cache(maxsize=256)
def _hints(of: Any) -> dict[str, tuple[Any, bool]]:
    """Type of each field of a dataclass, and whether it must be given."""
    types = get_type_hints(of)
    return {
        f.name: (types[f.name], f.default is MISSING and f.default_factory is MISSING)
        for f in fields(of)
        if f.init
    }


def _member(of: Any, value: Any, path: str, context: _Context) -> Any:
    """A value as the first member of a union that it fits."""
    members = get_args(of)
    if value is None and NoneType in members:
        return None
    problems = []
    for member in members:
        if member is not NoneType:
            try:
                return _decode(member, value, path, context)
            except RecordError as error:
                problems.append(error)
    raise problems[0]


def _scalar(of: Any, value: Any, path: str) -> Any:
    if of is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _checked(float, path, value)
    if of is float and isinstance(value, str) and value in _INFINITE:
        return _INFINITE[value]
    if of is not float and type(value) is of:
        return value
    raise RecordError(f"{path} is {_WORDS[of]}; got {_shown(value)}")


def _checked(make: Callable[[Any], Any], path: str, given: Any) -> Any:
    """What `make` makes of a value; its complaints get the path."""
    try:
        return make(given)
    except RecordError:
        raise
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise RecordError(f"{path}: {error}") from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read_mesh(value: Any) -> Mesh:
    return Mesh(tuple(value["shape"]), tuple(value["axis_names"]), tuple(value["device_ids"]))


def _read_spec(value: Any) -> Spec:
    return _parsed(value) if isinstance(value, str) else Spec.parse(value)


_parsed = lru_cache(maxsize=4096)(Spec.parse)


_FOREIGN: dict[Any, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    Spec: (str, _read_spec),
    Mesh: (
        lambda mesh: {
            "shape": list(mesh.shape),
            "axis_names": list(mesh.axis_names),
            "device_ids": list(mesh.device_ids),
        },
        _read_mesh,
    ),
    Cluster: (
        lambda cluster: json.loads(cluster.to_json()),
        lambda value: Cluster.from_json(json.dumps(value)),
    ),
}
"""Per class of a sibling: to JSON, and back."""
