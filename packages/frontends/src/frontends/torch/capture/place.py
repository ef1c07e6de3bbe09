"""Where Python keeps a value: a key of a dict, an attribute, or a variable of a closure.

There it can be looked at again at the next call, and put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from types import CellType, MappingProxyType
from typing import Any

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()
"""What is where nothing is."""

WHOLE: Any = type("Whole", (), {"__repr__": lambda self: "all attributes"})()
"""The key of a dict itself, where code looks at all that is in it."""

IS_ALIVE: Any = type("IsAlive", (), {"__repr__": lambda self: "is alive"})()
"""The key of a weak reference, by which it is known whether its object is there."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where Python keeps a value: a key of a dict, an attribute, or a variable of a closure."""

    container: Any
    """Of a value inside of another one, the `Place` of that, where another may be by now."""

    key: Any
    name: str
    """As the user would write it."""

    def inside(self, keys: Sequence[Any], path: str = "") -> Place:
        """Where a value is that lies inside of the one that is here."""
        place = self
        for key in keys:
            place = Place(place, key, self.name + path)
        return place

    def get(self) -> Any:
        """What is there now; `MISSING` if nothing is."""
        container = self.container
        if isinstance(container, Place):
            container = container.get()
        if self.key is WHOLE:
            return container
        if self.key is IS_ALIVE:
            return container() is not None
        if isinstance(container, dict):
            return dict.get(container, self.key, MISSING)
        if isinstance(container, ContextVar):
            return container.get(MISSING)
        if isinstance(container, MappingProxyType):
            return container.get(self.key, MISSING)
        if isinstance(container, CellType):
            try:
                return container.cell_contents
            except ValueError:  # it is empty
                return MISSING
        if isinstance(container, type):
            return vars(container).get(self.key, MISSING)
        if isinstance(self.key, int):
            with suppress(TypeError, IndexError):  # it is something else by now
                return container[self.key]
            return MISSING
        return getattr(container, self.key, MISSING)

    def set(self, value: Any) -> None:
        """Put a value there."""
        container = self.container
        if isinstance(container, CellType):
            container.cell_contents = value
        elif isinstance(container, ContextVar):
            container.set(value)
        elif isinstance(container, dict) or isinstance(self.key, int):
            container[self.key] = value
        else:
            setattr(container, self.key, value)

    def delete(self) -> None:
        """Let nothing be there."""
        if isinstance(self.container, dict):
            self.container.pop(self.key, None)
        elif not isinstance(self.container, CellType | ContextVar):
            delattr(self.container, self.key)
