"""The places that a step reads and writes, as they are met while it runs.

Of a place it is kept what was there when it was met first: the step may change it, or be the one
that makes it. What the step made for itself, and what is gone with it, is forgotten in the end.
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
from frontends.torch.capture.place import MISSING, Place

BOOKKEEPING = frozenset(
    (
        "_opt_called",
        "_step_count",
        "_zero_grad_profile_name",
        "_warned_capturable_if_run_uncaptured",
    )
)
"""Attributes by which torch warns of calls in a wrong order, and names what it profiles."""


@dataclass(slots=True)
class Overwritten:
    """A place that a step wrote."""

    place: Place
    before: Any


@dataclass
class Met:
    """What was read and written.

    Args:
        skipped: Attributes that are no guards, as (id of the object, name): the step knows them.
    """

    skipped: frozenset[tuple[int, str]] = frozenset()
    read: dict[tuple[int, Any], tuple[Place, Frozen]] = field(default_factory=dict)
    """By container and key, what was there when it was read first."""

    written: dict[tuple[int, Any], Overwritten] = field(default_factory=dict)
    made: dict[int, Any] = field(default_factory=dict)
    """By `id`, what the step makes: attributes of objects, and objects with slots."""

    _containers: dict[int, Frozen] = field(default_factory=dict)
    """By `id`, containers as they were when they were met first."""

    _owners: dict[int, tuple[Any, weakref.ref[Any], dict[Any, Any]]] = field(default_factory=dict)
    """By `id`, attributes that were looked at, kept so that the number stays theirs; whose; and
    what they were."""

    _armed: bool = False
    _thread: int = 0

    def is_on(self, name: str = "") -> bool:
        """Whether the step runs, in this thread, and an attribute of that name is looked at."""
        return self._armed and name[:2] != "__" and threading.get_ident() == self._thread

    @contextmanager
    def running(self) -> Iterator[None]:
        """The step runs inside, in this thread."""
        self._thread, self._armed = threading.get_ident(), True
        try:
            yield
        finally:
            self._armed = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is read meanwhile is not the step's to read."""
        armed, self._armed = self._armed, False
        try:
            yield
        finally:
            self._armed = armed

    def add(self, container: Any, key: Any, value: Any, name: str) -> bool:
        """A value that is read; whether its place was not met before."""
        at = id(container), key
        if at in self.read or at in self.written:
            return False
        with self.paused():
            if (frozen := self._was(container, key, value)) is not None:
                self.read[at] = Place(container, key, name), frozen
                for each in frozen.containers():
                    self._containers.setdefault(id(each.value), each)
        return True

    def _was(self, container: Any, key: Any, value: Any) -> Frozen | None:
        """What a value is compared with: what it was when it, or where it is, was met first.

        `functional_call` puts other tensors among a module's parameters for a while, and a list
        has grown before another attribute is looked at that is it, too. None if there was nothing.
        """
        known = self._containers.get(id(container)) if isinstance(container, dict) else None
        if known is not None and isinstance(known.contents, dict):
            return known.contents.get(key)
        return freeze(value, known=self._containers)

    def write(self, place: Place) -> None:
        """A place that is about to be written."""
        at = id(place.container), place.key
        if at not in self.written:
            before = self.read[at][1].value if at in self.read else place.get()
            self.written[at] = Overwritten(place, before)

    def write_slot(self, place: Place) -> None:
        """A place in `__slots__` that is about to be written."""
        owner = place.container
        own = getattr(owner, "__dict__", None)
        is_empty = not own and next(slots(owner), None) is None
        if id(own) in self.made or (is_empty and _is_made_here(owner)):
            self.made[id(owner)] = owner
            if own is not None:
                self.made[id(own)] = own
        self.write(place)

    def own(self, attributes: Any, owner: Any) -> None:
        """The attributes of an object live as long as it does."""
        if attributes is not None and id(attributes) not in self._owners:
            with suppress(TypeError):  # it cannot be referred to weakly
                seen = self._containers.get(id(attributes))
                before = dict(attributes)
                if seen is not None and isinstance(seen.contents, dict):
                    before = {name: each.value for name, each in seen.contents.items()}
                self._owners[id(attributes)] = attributes, weakref.ref(owner), before
                if not attributes and _is_made_here(owner):
                    self.made[id(attributes)] = attributes

    def is_skipped(self, owner: Any, name: str) -> bool:
        """Whether an attribute is none of what a program depends on."""
        return name in BOOKKEEPING or (id(owner), name) in self.skipped

    def was_there(self, value: Any) -> bool:
        """Whether a value was read from somewhere, and not made by the step."""
        known = [frozen for _, frozen in self.read.values()]
        return any(item is value for frozen in known for item in frozen.held())

    def find_written(self) -> None:
        """Attributes that changed in another way than by being set, as `cached_property` does."""
        for own, owner, before in self._owners.values():
            for name in {**before, **own}:
                was, now = before.get(name, MISSING), own.get(name, MISSING)
                if was is not now and not self.is_skipped(owner(), name):
                    label = f"{type(owner()).__name__}.{name}"
                    place = Place(own, name, label)
                    self.written.setdefault((id(own), name), Overwritten(place, was))

    def forget_dead(self) -> None:
        """What the step made for itself, and what is gone with it, it makes again."""
        self._containers.clear()
        self._forget(set(self.made))
        # What was noted of an object keeps alive what it holds, which may be the step's, too.
        while dead := {at for at, (_, owner, _) in self._owners.items() if owner() is None}:
            self._forget(dead)
            for own in dead:
                del self._owners[own]
                self.made.pop(own, None)
        self._owners.clear()

    def _forget(self, owners: Set[int]) -> None:
        for places in (self.read, self.written):
            for at in [at for at in places if at[0] in owners]:
                del places[at]


def _is_made_here(obj: Any) -> bool:
    """Whether an object without attributes is looked at by its `__init__`."""
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "__init__":
        return False
    first = next(iter(frame.f_code.co_varnames), "")
    return frame.f_locals.get(first) is obj
