"""Python's garbage collector: planning without it, and all objects that it knows."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def paused() -> Iterator[None]:
    """Switch the collector off for a while, as it looks at a million live objects for nothing.

    Reference counts still free what is not in a cycle.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def objects_by_type() -> dict[type, list[Any]]:
    """All objects that may be part of a cycle, those that `gc.freeze` hides included."""
    is_frozen = gc.get_freeze_count() > 0
    if is_frozen:
        gc.unfreeze()
    objects = gc.get_objects()
    if is_frozen:
        gc.freeze()
    found: defaultdict[type, list[Any]] = defaultdict(list)
    for one in objects:
        found[type(one)].append(one)
    return found
