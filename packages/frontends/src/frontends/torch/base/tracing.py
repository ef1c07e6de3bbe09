"""Only one thread of a process traces at a time.

Tracing replaces functions of torch for the whole process, and so does Inductor's.
"""

from __future__ import annotations

import threading

TRACING = threading.RLock()
"""Held by the thread that captures a step, or compiles its regions."""
