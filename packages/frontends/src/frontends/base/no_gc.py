"""Python's garbage collector: pause it while planning, and list objects that it tracks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import compress
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


def objects_by_type(is_wanted: Callable[[type], bool]) -> dict[type, list[Any]]:
    """Objects that the collector tracks, those that `gc.freeze` hides included.

    A process that has imported JAX and PyTorch has a million of them, so they are selected by
    functions that are written in C.

    Args:
        is_wanted: Called once for each type, with the type; the objects of others are left out.
    """
    is_frozen = gc.get_freeze_count() > 0
    if is_frozen:
        gc.unfreeze()
    objects = gc.get_objects()
    if is_frozen:
        gc.freeze()
    types = list(map(type, objects))
    by_type: dict[type, list[Any]] = {kind: [] for kind in set(types) if is_wanted(kind)}
    for one in compress(objects, map(by_type.__contains__, types)):
        by_type[type(one)].append(one)
    return by_type
