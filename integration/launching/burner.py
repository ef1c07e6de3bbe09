"""Keeps a processor busy: what is late then was late by luck before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def burner() -> Iterator[None]:
    """One process that computes all the time, until the end."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as burning:
        try:
            yield
        finally:
            burning.kill()
