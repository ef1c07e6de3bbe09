"""Python's garbage collector: pause it while planning, and list objects that it tracks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import compress
from operator import countOf
from typing import Any


@contextmanager
def paused() -> Iterator[None]:
    """A context without garbage collection, which would scan a million live objects in vain.

    Reference counts still free objects that are not in a cycle.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


Selection = Callable[[Iterable[Any]], Iterable[Any]]
"""Selects among objects of one type."""


class TrackedObjects:
    """Lists objects of some types that the collector tracks, those that `gc.freeze` hides included.

    A process that has imported JAX and PyTorch has a million objects, so they are selected by
    functions that are written in C. What is frozen is listed once, and remembered by weak
    references: a process that calls `gc.freeze()` after its imports has few other objects to list.

    Args:
        selection: Called once for each type, with the type; returns what selects among its
            objects, or None if they are left out. What is selected must not change while an object
            lives.
    """

    def __init__(self, selection: Callable[[type], Selection | None]) -> None:
        self._selection = selection
        self._frozen: dict[type, list[Callable[[], Any]]] = {}
        """What was selected of the frozen objects, each by a function that returns it, or None if
        it is gone."""

        self._mark: list[Any] | None = None
        """An object that has not been frozen. While this is so, nothing has been frozen since it
        was made; None if nothing was frozen when objects were listed last."""

    def by_type(self) -> dict[type, list[Any]]:
        """The selected objects by type."""
        objects = gc.get_objects()
        if self._is_frozen_anew(objects):
            del objects
            self._remember_frozen()
            objects = gc.get_objects()
        found = self._select(objects)
        for kind, references in self._frozen.items():
            there = (refer() for refer in references)
            found.setdefault(kind, []).extend(one for one in there if one is not None)
        return found

    def _is_frozen_anew(self, objects: list[Any]) -> bool:
        if self._mark is None:
            return gc.get_freeze_count() > 0
        return not countOf(map(id, objects), id(self._mark))

    def _remember_frozen(self) -> None:
        """Select among all objects; only those that are not frozen can be listed."""
        gc.unfreeze()
        selected = self._select(gc.get_objects())
        self._frozen = {kind: list(map(_reference, ones)) for kind, ones in selected.items()}
        del selected
        gc.freeze()
        self._mark = []

    def _select(self, objects: list[Any]) -> dict[type, list[Any]]:
        types = list(map(type, objects))
        selections = {kind: self._selection(kind) for kind in set(types)}
        by_type: dict[type, list[Any]] = {
            kind: [] for kind, selection in selections.items() if selection is not None
        }
        for one in compress(objects, map(by_type.__contains__, types)):
            by_type[type(one)].append(one)
        return {
            kind: list(selection(by_type[kind]))
            for kind, selection in selections.items()
            if selection is not None
        }


def _reference(one: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(one)
    except TypeError:  # an iterator of Python's own; it was frozen to stay
        return lambda: one
