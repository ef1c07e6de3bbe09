"""Where Python keeps a value: a key of a dict, an attribute, or a variable of a closure.

Through its place, a value can be read again at the next call, and replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from types import CellType, MappingProxyType
from typing import Any

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()
"""The value of a place at which nothing is."""

WHOLE: Any = type("Whole", (), {"__repr__": lambda self: "all attributes"})()
"""The key for a whole dict, when code may read everything in it."""

IS_ALIVE: Any = type("IsAlive", (), {"__repr__": lambda self: "is alive"})()
"""The key for whether the object of a weak reference is alive."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where Python keeps a value: a key of a dict, an attribute, or a variable of a closure."""

    container: Any
    """The object that holds the value; or the `Location` of that, if it may be another by then."""

    key: Any
    name: str
    """What the user would write."""

    def inside(self, keys: Sequence[Any], path: str = "") -> Location:
        """Return the place of a value inside the one at this place.

        Args:
            keys: The keys that lead to it.
            path: What the user would write after the name of this place.
        """
        place = self
        for key in keys:
            place = Location(place, key, self.name + path)
        return place

    def get(self) -> Any:
        """Return the value that is there now; `MISSING` if there is none."""
        container = self.container
        if isinstance(container, Location):
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
        """Set the value."""
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
        """Remove the value; variables of closures and contexts keep theirs."""
        if isinstance(self.container, dict):
            self.container.pop(self.key, None)
        elif not isinstance(self.container, CellType | ContextVar):
            delattr(self.container, self.key)
