"""Collects the places that a step reads and writes while it runs.

For each place, the value is kept that was there when the step first used the place; the step may
change it later, or may have created it. Objects that the step created and that are gone when it
ends are removed at the end.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from frontends.base.sources import OURS
from frontends.torch.base.frozen import Frozen, freeze
from frontends.torch.base.slots import slots
from frontends.torch.capture.location import MISSING, Location

BOOKKEEPING = frozenset(
    (
        "_opt_called",
        "_step_count",
        "_zero_grad_profile_name",
        "_warned_capturable_if_run_uncaptured",
    )
)
"""Attributes that torch uses to warn of calls in a wrong order, and to name what it profiles."""


@dataclass(slots=True)
class Overwritten:
    """A place that a step wrote."""

    place: Location
    before: Any


@dataclass
class Met:
    """The places that were read and written.

    Args:
        skipped: Attributes that become no guards, as (`id` of the object, name): the program has
            them as inputs.
    """

    skipped: frozenset[tuple[int, str]] = frozenset()
    read: dict[tuple[int, Any], tuple[Location, Frozen]] = field(default_factory=dict)
    """By `id` of the container and key, the place and what was there at the first read."""

    written: dict[tuple[int, Any], Overwritten] = field(default_factory=dict)
    made: dict[int, Any] = field(default_factory=dict)
    """By `id`, what the step creates: `__dict__`s of objects, and objects with slots."""

    _containers: dict[int, Frozen] = field(default_factory=dict)
    """By `id`, copies of containers from when the step first used them."""

    _owners: dict[int, tuple[Any, weakref.ref[Any], dict[Any, Any]]] = field(default_factory=dict)
    """By `id`, each `__dict__` that was read, kept so that no other object gets its `id`; a
    reference to its object; and its contents at first."""

    _armed: bool = False
    _thread: int = 0

    def is_on(self, name: str = "") -> bool:
        """Return whether the step runs in this thread, and attributes of this name are recorded."""
        return self._armed and name[:2] != "__" and threading.get_ident() == self._thread

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, the step runs, in this thread."""
        self._thread, self._armed = threading.get_ident(), True
        try:
            yield
        finally:
            self._armed = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, nothing is recorded: it is not the step that reads."""
        armed, self._armed = self._armed, False
        try:
            yield
        finally:
            self._armed = armed

    def add(self, container: Any, key: Any, value: Any, name: str) -> bool:
        """Record a value that is read; return whether its place is a new one."""
        at = id(container), key
        if at in self.read or at in self.written:
            return False
        with self.paused():
            if (frozen := self._was(container, key, value)) is not None:
                self.read[at] = Location(container, key, name), frozen
                for each in frozen.containers():
                    self._containers.setdefault(id(each.value), each)
        return True

    def _was(self, container: Any, key: Any, value: Any) -> Frozen | None:
        """Return a copy of what was at the place first; None if nothing was there.

        The current value may differ: `functional_call` replaces a module's parameters for a while,
        and a list may grow before it is read through a second attribute.
        """
        known = self._containers.get(id(container)) if isinstance(container, dict) else None
        if known is not None and isinstance(known.contents, dict):
            return known.contents.get(key)
        return freeze(value, known=self._containers)

    def write(self, place: Location) -> None:
        """Record a place that is about to be written."""
        at = id(place.container), place.key
        if at not in self.written:
            before = self.read[at][1].value if at in self.read else place.get()
            self.written[at] = Overwritten(place, before)

    def write_slot(self, place: Location) -> None:
        """Record a place in `__slots__` that is about to be written."""
        owner = place.container
        attributes = getattr(owner, "__dict__", None)
        is_empty = not attributes and next(slots(owner), None) is None
        if id(attributes) in self.made or (is_empty and _is_made_here(owner)):
            self.made[id(owner)] = owner
            if attributes is not None:
                self.made[id(attributes)] = attributes
        self.write(place)

    def own(self, attributes: Any, owner: Any) -> None:
        """Record to which object a `__dict__` belongs: both live equally long."""
        if attributes is not None and id(attributes) not in self._owners:
            with suppress(TypeError):  # there are no weak references to it
                seen = self._containers.get(id(attributes))
                before = dict(attributes)
                if seen is not None and isinstance(seen.contents, dict):
                    before = {name: each.value for name, each in seen.contents.items()}
                self._owners[id(attributes)] = attributes, weakref.ref(owner), before
                if not attributes and _is_made_here(owner):
                    self.made[id(attributes)] = attributes

    def is_skipped(self, owner: Any, name: str) -> bool:
        """Return whether an attribute is ignored: the program does not depend on it."""
        return name in BOOKKEEPING or (id(owner), name) in self.skipped

    def was_there(self, value: Any) -> bool:
        """Return whether a value was read from a recorded place: the step has not created it."""
        known = [frozen for _, frozen in self.read.values()]
        return any(item is value for frozen in known for item in frozen.held())

    def find_written(self) -> None:
        """Record attributes that changed without being set, as `cached_property` changes them."""
        for attributes, owner, before in self._owners.values():
            for name in {**before, **attributes}:
                was, now = before.get(name, MISSING), attributes.get(name, MISSING)
                if was is not now and not self.is_skipped(owner(), name):
                    label = f"{type(owner()).__name__}.{name}"
                    place = Location(attributes, name, label)
                    self.written.setdefault((id(attributes), name), Overwritten(place, was))

    def forget_dead(self) -> None:
        """Remove places in objects that the step created, or that are gone.

        The step creates them again at each call.
        """
        self._containers.clear()
        self._forget(set(self.made))
        # A record keeps alive what its object holds; removing it may let more objects go.
        while dead := {at for at, (_, owner, _) in self._owners.items() if owner() is None}:
            self._forget(dead)
            for at in dead:
                del self._owners[at]
                self.made.pop(at, None)
        self._owners.clear()

    def _forget(self, owners: Set[int]) -> None:
        for places in (self.read, self.written):
            for at in [at for at in places if at[0] in owners]:
                del places[at]


def _is_made_here(obj: Any) -> bool:
    """Return whether the `__init__` of an object is running: the step creates the object."""
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "__init__":
        return False
    first = next(iter(frame.f_code.co_varnames), "")
    return frame.f_locals.get(first) is obj
