"""Python's garbage collector: pause it while planning, and list objects that it tracks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, compress
from operator import not_
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
            objects, or None if they are left out, as tuples are. What is selected must not change
            while an object lives.
    """

    def __init__(self, selection: Callable[[type], Selection | None]) -> None:
        self._selection = selection
        self._left_out: dict[int, weakref.ref[type]] = {}
        """The types that are left out, by `id`: a hash of a type may run Python code."""

        self._leave_out(tuple)
        self._frozen: dict[type, list[Callable[[], Any]]] = {}
        """What was selected of the frozen objects, each by a function that returns it, or None if
        it is gone."""

        self._mark: _Mark | None = None
        """An object that has not been frozen. While this is so, nothing has been frozen since it
        was made; None if nothing was frozen when objects were listed last."""

    def by_type(self) -> dict[type, list[Any]]:
        """The selected objects by type."""
        with paused():
            found = self._select()
            if self._is_frozen_anew(found):
                self._remember_frozen()
                found = self._select()
        for kind, references in self._frozen.items():
            there = (refer() for refer in references)
            found.setdefault(kind, []).extend(one for one in there if one is not None)
        found.pop(_Mark, None)
        return found

    def _is_frozen_anew(self, found: dict[type, list[Any]]) -> bool:
        if self._mark is None:
            return gc.get_freeze_count() > 0
        return self._mark not in found.get(_Mark, ())

    def _remember_frozen(self) -> None:
        """Select among all objects; only those that are not frozen can be listed."""
        gc.unfreeze()
        selected = self._select()
        self._frozen = {kind: list(map(_reference, ones)) for kind, ones in selected.items()}
        del selected
        gc.freeze()
        self._mark = _Mark()

    def _select(self) -> dict[type, list[Any]]:
        by_type: dict[type, list[Any]] = {}
        for one in _tracked(self._left_out):
            by_type.setdefault(type(one), []).append(one)
        found = {}
        for kind, ones in by_type.items():
            selection = list if kind is _Mark else self._selection(kind)
            if selection is None:
                self._leave_out(kind)
            else:
                found[kind] = list(selection(ones))
        return found

    def _leave_out(self, kind: type) -> None:
        key = id(kind)
        self._left_out[key] = weakref.ref(kind, lambda _: self._left_out.pop(key, None))


class _Mark:
    """An object that the collector tracks."""


def _tracked(left_out: Container[int]) -> list[Any]:
    """List the objects that are tracked and not frozen.

    Another thread may be making one of them: Python fills a tuple from an iterator in parts, and
    fails if anybody else refers to it meanwhile. `gc.get_objects()` in a statement of its own is
    such a reference when the next statement begins. Here it happens inside a single call of `list`,
    which runs no Python code and is therefore not interrupted, and which then refers to no tuple.

    Args:
        left_out: The `id`s of the types of objects to leave out, that of `tuple` among them.
    """
    listed: list[list[Any]] = []  # empty until `list` reads what is made of it below
    fill = map(listed.append, map(gc.get_objects, [None]))
    objects, same = chain.from_iterable(listed), chain.from_iterable(listed)
    are_left_out = map(left_out.__contains__, map(id, map(type, same)))
    clear = map(list.clear, listed)  # in a cycle: these iterators are listed, and hold the list
    nothing = None  # what the first and the last return
    return list(
        chain(
            filter(nothing, fill),
            compress(objects, map(not_, are_left_out)),
            filter(nothing, clear),
        )
    )


def _reference(one: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(one)
    except TypeError:  # an iterator of Python's own; it was frozen to stay
        return lambda: one
