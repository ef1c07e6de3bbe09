"""Gives a process a share of a core, by a control group of Linux (version 1)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 5000
"""Short beside an operator's time, so that a share is a speed."""


def supported() -> str:
    """Why no process can get a share; empty if one can."""
    if not (GROUPS / "cpu.cfs_quota_us").exists():
        return f"{GROUPS} is no control group of version 1"
    return "" if os.access(GROUPS, os.W_OK) else f"{GROUPS} can be written by root only"


@contextmanager
def at_share_of_a_core(share: float) -> Iterator[None]:
    """Run with this share of a core's time, over all threads of the process together."""
    group = GROUPS / f"unlike-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(max(1000, round(share * PERIOD_US))))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()
