"""Lets one thread of a process trace at a time.

Capturing a step replaces functions of torch for the whole process, and so does compiling a region.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from frontends.base.heartbeat import PATIENCE_S
from frontends.errors import DeviceError

_LOCK = threading.RLock()


@contextmanager
def traced_alone() -> Iterator[None]:
    """Inside, no other thread captures a step or compiles regions.

    Raises:
        DeviceError: Another thread has done so for an hour.
    """
    if not _LOCK.acquire(timeout=PATIENCE_S):
        raise DeviceError(
            "one thread of a process captures or compiles steps at a time; thread "
            f"{threading.current_thread().name} has waited {PATIENCE_S} s for another: see what "
            "that one does, or call steps from one thread"
        )
    try:
        yield
    finally:
        _LOCK.release()
