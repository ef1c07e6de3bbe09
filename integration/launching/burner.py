"""Keeps a processor busy, to find tests that only pass if processes are not delayed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def burner() -> Iterator[None]:
    """Run a process that computes all the time, until the block ends."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as burning:
        try:
            yield
        finally:
            burning.kill()
