"""Copies of Python values: to compare with the values later, and to restore them.

Numbers, strings and the like are compared by value, containers by their contents, all else by
identity. Objects with attributes are compared attribute by attribute elsewhere (see `reads`),
except those whose attribute reads cannot be watched: these count as containers of attributes.
"""

from __future__ import annotations

import array
import collections
import enum
import functools
import math
import operator
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

_VALUES = (
    *(bool, int, float, complex, str, bytes, type(None), enum.Enum, range, slice),
    *(torch.dtype, torch.device, torch.Size, np.generic),
)
_ITEMS: Any = type({}.items())
_VIEWS: tuple[Any, ...] = (type({}.keys()), type({}.values()), _ITEMS)
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, MappingProxyType, *_VIEWS)
_MAPPINGS = (dict, MappingProxyType)
_BYTES = (bytearray, array.array, memoryview)
_PROXIES = weakref.ProxyTypes
_DEEPEST = 8
_LARGEST = 100_000
"""Up to this many items of a container are copied recursively; beyond, compared by identity."""


class Many(tuple[Any, ...]):
    """The items of a large list, or the keys and then the values of a large dict, not copied."""

    @classmethod
    def of(cls, value: Any) -> Many:
        """Return the items of a container."""
        if isinstance(value, _MAPPINGS):
            return cls((*_keys(value), *value.values()))
        if isinstance(value, _ITEMS):  # which creates new pairs each time
            return cls(part for pair in value for part in pair)
        return cls(value)

    def are_in(self, value: Any) -> bool:
        """Return whether a container holds the same objects in the same order."""
        now = Many.of(value)
        return len(now) == len(self) and all(map(operator.is_, now, self))

    def looked_into(self, value: Any) -> Any:
        """Return these items in the form that `Frozen.contents` has for a small container."""
        if not isinstance(value, _MAPPINGS):
            return tuple(map(Frozen, self))
        half = len(self) // 2
        return dict(zip(self[:half], map(Frozen, self[half:]), strict=True))


@dataclass(frozen=True, slots=True)
class Frozen:
    """A value as it was at some time."""

    value: Any
    """The value itself, not a copy; a container may have other contents now."""

    contents: Any = None
    """Items of a container, a copy of an array or its bytes; None for all else."""

    def holds(self, now: Any, loose: Collection[int] = ()) -> bool:
        """Return whether a value equals what this one was.

        Args:
            now: The value.
            loose: `id`s of tensors for which another tensor of the same form counts as equal.
        """
        then, contents = self.value, self.contents
        if contents is None:
            if now is then:
                return True
            if id(then) in loose:
                return is_like(now, then)
            if type(now) is not type(then) or not isinstance(then, _VALUES):
                return False
            return bool(now == then) or (
                isinstance(then, float) and math.isnan(then) and now != now
            )
        if type(now) is not type(then):
            return False
        if isinstance(contents, Many):
            return contents.are_in(now)
        if isinstance(contents, np.ndarray):
            return bool(
                now.shape == contents.shape
                and now.dtype == contents.dtype
                and now.tobytes() == contents.tobytes()
            )
        if isinstance(contents, bytes):
            return bytes(now) == contents
        if isinstance(contents, dict):
            items = now if isinstance(now, _MAPPINGS) else vars(now)
            return (
                len(items) == len(contents)
                and (not isinstance(now, _MAPPINGS) or _keys(items) == [*contents])
                and all(
                    k in items and each.holds(_at(items, k), loose) for k, each in contents.items()
                )
            )
        if isinstance(contents, frozenset):
            return bool(now == contents)
        return len(now) == len(contents) and all(
            each.holds(item, loose) for each, item in zip(contents, now, strict=True)
        )

    def restore(self) -> None:
        """Restore the contents of containers, in place."""
        value, contents = self.value, self.contents
        if contents is None or isinstance(contents, np.ndarray | bytes):
            return
        if isinstance(contents, frozenset):
            if isinstance(value, set) and value != contents:
                value.clear()
                value.update(contents)
            return
        if isinstance(contents, Many):
            if not contents.are_in(value):
                Frozen(value, contents.looked_into(value)).restore()
            return
        inside = contents.values() if isinstance(contents, dict) else contents
        for each in inside:
            each.restore()
        if isinstance(value, MappingProxyType) or self.has_its_items():
            return
        if isinstance(contents, dict):
            items = value if isinstance(value, dict) else vars(value)
            is_ordered = isinstance(value, dict) and self.has_other_order()
            for key in [key for key in items if is_ordered or key not in contents]:
                del items[key]
            for key, each in contents.items():
                items[key] = each.value
        elif isinstance(value, list | collections.deque):
            value.clear()
            value.extend(each.value for each in contents)

    def has_its_items(self) -> bool:
        """Return whether a container still holds the same objects in the same order."""
        if isinstance(self.contents, dict):
            items = self.value if isinstance(self.value, _MAPPINGS) else vars(self.value)
            return (
                items.keys() == self.contents.keys()
                and all(items[key] is each.value for key, each in self.contents.items())
                and not (isinstance(self.value, dict) and self.has_other_order())
            )
        return len(self.value) == len(self.contents) and all(
            item is each.value for item, each in zip(self.value, self.contents, strict=True)
        )

    def has_other_order(self) -> bool:
        """Return whether the remaining keys of a dict are in another order than before."""
        now = [key for key in _keys(self.value) if key in self.contents]
        return now != [key for key in self.contents if key in self.value]

    def containers(self) -> Iterator[Frozen]:
        """Yield this value and those inside it that are containers."""
        if self.contents is None:
            return
        yield self
        for each in self._inside():
            yield from each.containers()

    def held(self) -> Iterator[Any]:
        """Yield the value and everything that was inside it."""
        yield self.value
        if isinstance(self.contents, Many):
            yield from self.contents
        for each in self._inside():
            yield from each.held()

    def _inside(self) -> Collection[Frozen]:
        if isinstance(self.contents, dict):
            return self.contents.values()
        is_looked_into = isinstance(self.contents, tuple) and not isinstance(self.contents, Many)
        return self.contents if is_looked_into else ()

    def places(self, path: str = "") -> Iterator[tuple[tuple[Any, ...], Frozen, str]]:
        """Yield what was inside: the keys that lead to it, the copy, and the path as code."""
        contents = self.contents
        if isinstance(contents, Many):
            contents = contents.looked_into(self.value)
        if isinstance(contents, dict):
            items: Any = contents.items()
        elif isinstance(contents, tuple):
            items = enumerate(contents)
        else:
            return
        for key, each in items:
            is_attribute = isinstance(contents, dict) and not isinstance(self.value, _MAPPINGS)
            inner = f"{path}.{key}" if is_attribute else f"{path}[{key!r}]"
            yield (key,), each, inner
            for keys, other, text in each.places(inner):
                yield (key, *keys), other, text


def freeze(
    value: Any, depth: int = 0, known: Mapping[int, Frozen] = MappingProxyType({})
) -> Frozen:
    """Return a copy of a value to compare with later.

    Values nested more than `_DEEPEST` levels deep are compared by identity.

    Args:
        value: Any value.
        depth: The nesting depth of the value in what is copied.
        known: By `id`, copies of containers from before, which may have changed since.
    """
    if type(value) in _PROXIES:  # whose object may be gone
        return Frozen(value)
    if isinstance(value, np.ndarray):
        return Frozen(value, value.copy()) if value.dtype != object else Frozen(value)
    if isinstance(value, _BYTES):
        return Frozen(value, bytes(value))
    if id(value) in known:
        return known[id(value)]
    if depth >= _DEEPEST:
        return Frozen(value)
    inner = functools.partial(freeze, depth=depth + 1, known=known)
    if isinstance(value, _CONTAINERS) and not isinstance(value, torch.Size):
        if len(value) > _LARGEST and not isinstance(value, set | frozenset):
            return Frozen(value, Many.of(value))
        if isinstance(value, dict):
            return Frozen(value, {k: inner(dict.get(value, k)) for k in _keys(value)})
        if isinstance(value, MappingProxyType):
            return Frozen(value, {k: inner(v) for k, v in value.items()})
        if isinstance(value, set | frozenset):
            return Frozen(value, frozenset(value))
        return Frozen(value, tuple(map(inner, value)))
    if has_plain_attributes(value):
        return Frozen(value, {k: inner(v) for k, v in vars(value).items()})
    return Frozen(value)


def _keys(items: Any) -> list[Any]:
    """Return the keys of a dict in its order, even if a subclass overrides iteration."""
    if not isinstance(items, dict):
        return list(items)
    is_ordered = isinstance(items, collections.OrderedDict)
    return list((collections.OrderedDict if is_ordered else dict).keys(items))


def _at(items: Any, key: Any) -> Any:
    """Return the value of a key, even if a subclass of dict overrides the lookup."""
    return dict.get(items, key) if isinstance(items, dict) else items[key]


def is_like(now: Any, then: torch.Tensor) -> bool:
    """Return whether a tensor has the form of another one and can be its replacement as an input.

    A parameter cannot be replaced.
    """
    return (
        type(now) is type(then)
        and not isinstance(then, torch.nn.Parameter)
        and now.shape == then.shape
        and now.dtype == then.dtype
        and now.stride() == then.stride()
        and now.requires_grad == then.requires_grad
        and now.device == then.device
    )


def has_plain_attributes(value: Any) -> bool:
    """Return whether a value is an object whose attribute reads cannot be watched."""
    kind = type(value)
    is_static = not kind.__flags__ & (1 << 9)  # Py_TPFLAGS_HEAPTYPE
    return (is_static and kind.__name__ == "SimpleNamespace") or kind is threading.local


def inside(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield a value and, if it is a container, everything inside it."""
    if type(value) in _PROXIES:  # whose object may be gone
        return
    yield value
    if depth >= _DEEPEST or not isinstance(value, _CONTAINERS) or len(value) > _LARGEST:
        if has_plain_attributes(value):
            for item in vars(value).values():
                yield from inside(item, depth + 1)
        return
    items: Any = dict.values(value) if isinstance(value, dict) else value
    for item in value.values() if isinstance(value, MappingProxyType) else items:
        yield from inside(item, depth + 1)
