"""Records the attributes of objects that a step reads and sets.

While the step runs, the classes of the objects that it uses have a `__getattribute__` and a
`__setattr__` that record each access.
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
from frontends.torch.capture.location import IS_ALIVE, MISSING, WHOLE, Location
from frontends.torch.capture.met import BOOKKEEPING, Met
from frontends.torch.capture.named import NamedMembers
from frontends.torch.capture.streams import Streams
from frontends.torch.capture.users_code import is_users, is_watched

_PATCHED = ("__getattribute__", "__setattr__")
_PARTS = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that are dicts of its parameters, buffers and submodules."""


@dataclass
class Attributes:
    """Watches attributes, and reports what is read and written.

    Args:
        met: Receives the reads and writes.
        streams: Checks each value for files and iterators that were there before the step.
        generators: Receives generators of random numbers.
        named: Receives methods of libraries.
    """

    met: Met
    streams: Streams
    generators: Generators
    named: NamedMembers
    tracers: Any = None
    """The module in which the tracer keeps constants; it is not the step's, and is ignored."""

    _patched: dict[type, tuple[Any, Any]] = field(default_factory=dict)
    """Watched classes, with the methods that they defined themselves."""

    def read(self, container: Any, key: Any, value: Any, name: str) -> None:
        """Record a value that is read, and watch what is inside it."""
        self.streams.check(value, name)
        if self.met.add(container, key, value, name):
            self.watch_inside(value)

    def watch_inside(self, value: Any) -> None:
        """Watch the attributes of a value and of everything inside it."""
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
            return  # it inherits from a watched class
        getter: Any = kind.__getattribute__
        setter: Any = kind.__setattr__
        originals = vars(kind).get(_PATCHED[0]), vars(kind).get(_PATCHED[1])
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
        self._patched[kind] = originals

    def unwatch(self) -> None:
        """Restore all classes."""
        for patched, originals in self._patched.items():
            for name, original in zip(_PATCHED, originals, strict=True):
                if original is None:
                    delattr(patched, name)
                else:
                    setattr(patched, name, original)
        self._patched.clear()

    def look_at_all(self, obj: Any) -> None:
        """Record that the step may look at all attributes of an object."""
        attributes = _attributes(obj)
        if attributes is not None and obj is not self.tracers:
            self.met.own(attributes, obj)
            if not any(map(is_value, attributes.values())):  # else the step has made the object
                self.read(attributes, WHOLE, attributes, f"attributes of a {type(obj).__name__}")

    def _attribute(self, obj: Any, name: str, value: Any) -> None:
        if self.met.is_skipped(obj, name) or obj is self.tracers:
            return
        attributes = _attributes(obj)
        self.met.own(attributes, obj)
        label = f"{type(obj).__name__}.{name}"
        if attributes is not None and name in attributes:
            self.read(attributes, name, attributes[name], label)
            return
        for kind in type(obj).__mro__:
            member = vars(kind).get(name, MISSING)
            if member is MISSING:
                continue
            if isinstance(member, MemberDescriptorType):
                self.read(obj, name, value, label)
            elif isinstance(member, FunctionType):
                self._method(obj, attributes, kind, name, member)
            elif not callable(member) and not hasattr(member, "__get__"):
                if attributes is not None:  # an attribute of the object would hide the class's
                    self.read(attributes, name, MISSING, label)
                self.read(kind, name, member, f"{kind.__name__}.{name}")
            return

    def _method(self, obj: Any, attributes: Any, kind: type, name: str, method: Any) -> None:
        """Record a method that is read: users replace those of an object or of their classes."""
        is_of_user = is_users(method.__code__.co_filename)
        if attributes is not None and (is_of_user or name == "forward"):
            self.read(attributes, name, MISSING, f"{type(obj).__name__}.{name}")
        if is_of_user:
            self.read(kind, name, method, f"{kind.__name__}.{name}")
        elif name == "forward":
            self.named.note(vars(kind), kind.__name__, name)

    def _absent(self, obj: Any, name: str) -> None:
        """Record a name that is no attribute; it may be a parameter, buffer or submodule."""
        attributes = _attributes(obj)
        if attributes is None or obj is self.tracers:
            return
        self.met.own(attributes, obj)
        for among in _PARTS:
            parts = attributes.get(among)
            if isinstance(parts, dict) and name in parts:
                self.met.own(parts, obj)
                self.read(parts, name, parts[name], f"{type(obj).__name__}.{name}")
                return
        self.read(attributes, name, MISSING, f"{type(obj).__name__}.{name}")

    def _writes(self, obj: Any, name: str) -> None:
        attributes = _attributes(obj)
        label = f"{type(obj).__name__}.{name}"
        if attributes is None or has_slot(type(obj), name):
            self.met.write_slot(Location(obj, name, label))
            return
        parts = (attributes[part] for part in _PARTS if isinstance(attributes.get(part), dict))
        container = next((part for part in parts if name in part), attributes)
        self.met.own(container, obj)
        self.met.write(Location(container, name, label))


def _is_object(owner: Any) -> bool:
    """Return whether a method's owner is an object, as of `log.append`, not a module or class."""
    return owner is not None and not isinstance(owner, ModuleType | type)


def _attributes(obj: Any) -> dict[str, Any] | None:
    try:
        attributes = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    return attributes if isinstance(attributes, dict) else None
