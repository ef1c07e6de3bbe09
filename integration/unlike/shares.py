"""Gives a process a share of a core, by a control group of Linux (version 1)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 5000
"""Short beside an operator's time, so that a share is a speed."""
WEIGHT = 1 << 18
"""The most that Linux takes: a process has its share beside others, who would halve it else."""


def supported() -> str:
    """Why no process can get a share; empty if one can."""
    if not (GROUPS / "cpu.cfs_quota_us").exists():
        return f"{GROUPS} is no control group of version 1"
    return "" if os.access(GROUPS, os.W_OK) else f"{GROUPS} can be written by root only"


@contextmanager
def share_of_a_core(name: str, share: float) -> Iterator[Callable[[int], None]]:
    """A function that gives processes this share of a core's time, all of them together.

    Their children belong to them. In the end, those that are left go back.
    """
    group = GROUPS / f"unlike-{name}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(max(1000, round(share * PERIOD_US))))
        (group / "cpu.shares").write_text(str(WEIGHT))
        yield lambda process: _put(group, process)
    finally:
        for process in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                _put(GROUPS, int(process))
        group.rmdir()


@contextmanager
def at_share_of_a_core(share: float) -> Iterator[None]:
    """Run this process with this share of a core's time, over all its threads together."""
    with share_of_a_core(str(os.getpid()), share) as put:
        put(os.getpid())
        yield


def _put(group: Path, process: int) -> None:
    (group / "cgroup.procs").write_text(str(process))
