"""Attributes of objects that a step reads and sets.

The classes of the objects that it meets get a `__getattribute__` and a `__setattr__` that take
notes, for as long as it runs.
"""

from __future__ import annotations

import functools
import sys
import weakref
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import BuiltinMethodType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from frontends.torch.base.compat.values import is_value
from frontends.torch.base.frozen import inside
from frontends.torch.base.slots import has_slot
from frontends.torch.capture import generators
from frontends.torch.capture.generators import Generators
from frontends.torch.capture.met import BOOKKEEPING, Met
from frontends.torch.capture.named import Named
from frontends.torch.capture.place import IS_ALIVE, MISSING, WHOLE, Place
from frontends.torch.capture.streams import Streams
from frontends.torch.capture.users_code import is_users, is_watched

_PATCHED = ("__getattribute__", "__setattr__")
_PARTS = ("_parameters", "_buffers", "_modules")
"""Modules keep what they are made of in dicts, beside their attributes."""


@dataclass
class Attributes:
    """Those that are looked at, and what is found there.

    Args:
        met: Gets what is read and written.
        streams: Checks what the step goes on with.
        generators: Gets those of random numbers.
        named: Gets methods of libraries.
    """

    met: Met
    streams: Streams
    generators: Generators
    named: Named
    tracers: Any = None
    """The module in which a tracer keeps constants, which is not the step's."""

    _patched: dict[type, tuple[Any, Any]] = field(default_factory=dict)
    """Classes, and what they had of their own."""

    def read(self, container: Any, key: Any, value: Any, name: str) -> None:
        """A value that is read; what it holds is watched."""
        self.streams.check(value, name)
        if self.met.add(container, key, value, name):
            self.watch_inside(value)

    def watch_inside(self, value: Any) -> None:
        """Watch the attributes of whatever a value holds."""
        for item in inside(value):
            if isinstance(item, functools.partial):
                self.watch_inside(item.func)
                for part in ("args", "keywords"):
                    label = f"what a partial of {getattr(item.func, '__name__', '')} is given"
                    self.read(item, part, getattr(item, part), label)
            elif isinstance(item, ContextVar):
                self.read(item, None, item.get(MISSING), f"the context variable {item.name}")
            elif isinstance(item, weakref.ref):
                self.read(item, IS_ALIVE, item() is not None, "whether an object is alive")
                self.watch_inside(item())
            elif isinstance(item, MethodType):
                self.watch(type(item.__self__))
            elif isinstance(item, BuiltinMethodType) and _is_object(item.__self__):
                self.read(item, "__self__", item.__self__, f"the owner of {item.__name__}")
            elif isinstance(item, generators.TYPES):
                self.generators.add(item)
            elif isinstance(item, type):
                continue
            else:
                self.watch(type(item))

    def watch(self, kind: type) -> None:
        """Watch the attributes of all objects of a class."""
        if kind in self._patched or not is_watched(kind):
            return
        if getattr(kind.__getattribute__, "is_reads", False):
            return  # it inherits from one that is watched
        getter: Any = kind.__getattribute__
        setter: Any = kind.__setattr__
        own = vars(kind).get(_PATCHED[0]), vars(kind).get(_PATCHED[1])
        is_on = self.met.is_on

        def get(obj: Any, name: str) -> Any:
            if is_on(name) and obj is not self.tracers:
                self.met.own(_attributes(obj), obj)
            elif name == "__dict__" and is_on() and is_users(sys._getframe(1).f_code.co_filename):
                self.look_at_all(obj)
            try:
                value = getter(obj, name)
            except AttributeError:
                if is_on(name):
                    self._absent(obj, name)
                raise
            if is_on(name):
                self._attribute(obj, name, value)
            return value

        def put(obj: Any, name: str, value: Any) -> None:
            if is_on(name) and name not in BOOKKEEPING and obj is not self.tracers:
                with self.met.paused():
                    self._writes(obj, name)
            setter(obj, name, value)

        get.is_reads = True  # type: ignore[attr-defined]
        kind.__getattribute__ = get  # type: ignore[method-assign, assignment]
        kind.__setattr__ = put  # type: ignore[method-assign, assignment]
        self._patched[kind] = own

    def unwatch(self) -> None:
        """Let all classes be what they were."""
        for patched, own in self._patched.items():
            for name, before_it in zip(_PATCHED, own, strict=True):
                if before_it is None:
                    delattr(patched, name)
                else:
                    setattr(patched, name, before_it)
        self._patched.clear()

    def look_at_all(self, obj: Any) -> None:
        """All attributes of an object are looked at."""
        own = _attributes(obj)
        if own is not None and obj is not self.tracers:
            self.met.own(own, obj)
            if not any(map(is_value, own.values())):  # the step made the object
                self.read(own, WHOLE, own, f"attributes of a {type(obj).__name__}")

    def _attribute(self, obj: Any, name: str, value: Any) -> None:
        if self.met.is_skipped(obj, name) or obj is self.tracers:
            return
        own = _attributes(obj)
        self.met.own(own, obj)
        label = f"{type(obj).__name__}.{name}"
        if own is not None and name in own:
            self.read(own, name, own[name], label)
            return
        for kind in type(obj).__mro__:
            found = vars(kind).get(name, MISSING)
            if found is MISSING:
                continue
            if isinstance(found, MemberDescriptorType):
                self.read(obj, name, value, label)
            elif isinstance(found, FunctionType):
                self._method(obj, own, kind, name, found)
            elif not callable(found) and not hasattr(found, "__get__"):
                if own is not None:  # which would hide that of the class
                    self.read(own, name, MISSING, label)
                self.read(kind, name, found, f"{kind.__name__}.{name}")
            return

    def _method(self, obj: Any, own: Any, kind: type, name: str, found: Any) -> None:
        """Methods may be replaced, of an object or of the user's classes."""
        is_own = is_users(found.__code__.co_filename)
        if own is not None and (is_own or name == "forward"):
            self.read(own, name, MISSING, f"{type(obj).__name__}.{name}")
        if is_own:
            self.read(kind, name, found, f"{kind.__name__}.{name}")
        elif name == "forward":
            self.named.note(vars(kind), kind.__name__, name)

    def _absent(self, obj: Any, name: str) -> None:
        """Something that is no attribute; it may be a part of a module."""
        own = _attributes(obj)
        if own is None or obj is self.tracers:
            return
        self.met.own(own, obj)
        for among in _PARTS:
            parts = own.get(among)
            if isinstance(parts, dict) and name in parts:
                self.met.own(parts, obj)
                self.read(parts, name, parts[name], f"{type(obj).__name__}.{name}")
                return
        self.read(own, name, MISSING, f"{type(obj).__name__}.{name}")

    def _writes(self, obj: Any, name: str) -> None:
        own = _attributes(obj)
        label = f"{type(obj).__name__}.{name}"
        if own is None or has_slot(type(obj), name):
            self.met.write_slot(Place(obj, name, label))
            return
        parts = (own[among] for among in _PARTS if isinstance(own.get(among), dict))
        found = next((part for part in parts if name in part), own)
        self.met.own(found, obj)
        self.met.write(Place(found, name, label))


def _is_object(owner: Any) -> bool:
    """Whether a method belongs to an object, as `log.append`, and is no function of a module."""
    return owner is not None and not isinstance(owner, ModuleType | type)


def _attributes(obj: Any) -> dict[str, Any] | None:
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None
