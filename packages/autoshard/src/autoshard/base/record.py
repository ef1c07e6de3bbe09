"""Graphs and shardings as JSON: versioned, read back to equal values, no other text accepted.

A document is `{"autoshard": kind, "version": 1, "shared": {...}, kind: {...}}`. A dataclass is an
object with an entry for each field; entries that have a default may be left out. Values that many
operators have in common, such as rules, are written once, in `shared`, and referred to by their
index there. A class may have a `Packing`: a shorter value that is written instead of its fields.
Specs are text in Alpa's notation. Infinite numbers, which JSON lacks, are `"inf"` and `"-inf"`.
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

from autoshard.base.arrays import shown
from autoshard.errors import RecordError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Packing:
    """A shorter form in which the instances of a class are written."""

    of: type
    """The class of the shorter form."""
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


Packings = Mapping[type, Packing]


@dataclass(frozen=True, slots=True)
class _Context:
    """What decoding an entry needs besides its type."""

    tables: Mapping[str, list[Any]]
    """The decoded values of each shared class, by the name of the class."""
    packings: Packings


KEY = "autoshard"
"""An entry that every document has, and that the JSON of an IOPDDL problem lacks."""
LEFT_OUT_IF_DEFAULT = "left out if it is the default"
"""Metadata of a field that older versions do not know: values without it are written as before."""
_VERSION = 1
_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
_INFINITE = {"inf": math.inf, "-inf": -math.inf}
_NO_PACKINGS: Packings = {}


def kind_of(text: str) -> str | None:
    """The kind that a document says it is, such as `graph`; `None` for any other JSON.

    Raises:
        RecordError: the text is not JSON.
    """
    document = _loads(text)
    kind = document.get(KEY) if isinstance(document, dict) else None
    return kind if isinstance(kind, str) else None


def write(
    kind: str, value: Any, shared: tuple[type, ...] = (), packings: Packings = _NO_PACKINGS
) -> str:
    """The JSON of a frozen dataclass.

    Args:
        kind: The name of the kind of document; `read` takes the same one.
        value: Made of numbers, strings, tuples, dataclasses, specs, meshes and clusters.
        shared: Classes whose equal values are written once; a class comes after those of its parts.
        packings: The shorter forms, by the class that each stands for.
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
        named = {f: getattr(value, f.name) for f in fields(value) if f.init}
        return {
            f.name: encode(of)
            for f, of in named.items()
            if not f.metadata.get(LEFT_OUT_IF_DEFAULT) or of != f.default
        }

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
        RecordError: the text is not JSON of this kind and version, or an entry is missing, unknown,
            of the wrong type, or refused by the class that it is read as. The message names the
            entry.
    """
    document = _loads(text)
    if not isinstance(document, dict) or document.get(KEY) != kind:
        raise RecordError(
            f"a {kind} is JSON with the entry {KEY!r}: {kind!r}, as its to_json writes it; got "
            f"{shown(document.get(KEY) if isinstance(document, dict) else document)}"
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
            f"this autoshard reads version {_VERSION} of a {kind}; got version {shown(version)}: "
            f"write the {kind} again with this one"
        )
    lists = document.get("shared", {})
    if not isinstance(lists, dict) or not all(isinstance(one, list) for one in lists.values()):
        raise RecordError("'shared' has a list for each class")
    tables: dict[str, list[Any]] = {}
    context = _Context(tables, packings)
    for one in shared:
        tables[one.__name__] = [
            _entry(one, entry, f"shared.{one.__name__}[{place}]", context)
            for place, entry in enumerate(lists.get(one.__name__, []))
        ]
    value: T = _decode(of, document.get(kind), kind, context)
    return value


def _loads(text: str) -> Any:
    if not isinstance(text, str):
        raise RecordError(f"JSON is read from a string; got {shown(text)}")

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not a number in JSON")

    try:
        return json.loads(text, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"this is not JSON that can be read: {error}") from error


def _decode(of: Any, value: Any, path: str, context: _Context) -> Any:
    """A JSON value as an instance of a type hint.

    Args:
        of: The type hint.
        value: What the JSON has.
        path: Where the JSON has it, for messages.
        context: Shared values and packings.
    """
    if of in _WORDS:
        return _scalar(of, value, path)
    if get_origin(of) in (Union, UnionType):
        return _member(of, value, path, context)
    if get_origin(of) is Literal:
        if isinstance(value, str) and value in get_args(of):
            return value
        raise RecordError(f"{path} is one of {get_args(of)}; got {shown(value)}")
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
        raise RecordError(f"{path} is a list{length}; got {shown(value)}")
    if of in context.packings:
        packing = context.packings[of]
        return _checked(packing.unpack, path, _decode(packing.of, value, path, context))
    if of.__name__ in context.tables:
        table = context.tables[of.__name__]
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(table):
            return table[value]
        raise RecordError(
            f"{path} is an index into the {len(table)} of shared.{of.__name__}; got {shown(value)}"
        )
    return _entry(of, value, path, context)


def _entry(of: Any, value: Any, path: str, context: _Context) -> Any:
    """A JSON value as a dataclass or as a class of another package (`_FOREIGN`)."""
    if of in _FOREIGN:
        return _checked(_FOREIGN[of][1], path, value)
    return _object(of, value, path, context)


def _object(of: Any, value: Any, path: str, context: _Context) -> Any:
    """A JSON object as a dataclass."""
    if not isinstance(value, dict):
        raise RecordError(f"{path} is an object; got {shown(value)}")
    hints = _hints(of)
    for name in value:
        if name not in hints:
            raise RecordError(f"{path} has the entries {tuple(hints)}; got {shown(name)}, too")
    for name, (_, required) in hints.items():
        if required and name not in value:
            raise RecordError(f"{path} has the entries {tuple(hints)}; {name!r} is missing")
    arguments = {
        name: _decode(hints[name][0], entry, f"{path}.{name}", context)
        for name, entry in value.items()
    }
    return _checked(lambda named: of(**named), path, arguments)


@lru_cache(maxsize=256)
def _hints(of: Any) -> dict[str, tuple[Any, bool]]:
    """The type of each field of a dataclass, and whether the field is required."""
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
    raise RecordError(f"{path} is {_WORDS[of]}; got {shown(value)}")


def _checked(make: Callable[[Any], Any], path: str, value: Any) -> Any:
    """`make(value)`; an error that it raises becomes a `RecordError` that begins with the path."""
    try:
        return make(value)
    except RecordError:
        raise
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise RecordError(f"{path}: {error}") from error


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
"""For each class of another package: the functions that turn it to JSON and back."""
