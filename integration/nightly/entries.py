"""What a night runs: every file of tests with many examples, and those of processes often.

The latter run beside a process that keeps a processor busy, as what hangs or comes too late does so
by chance, and rarely on a quiet machine.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from nightly.sources import Sources

_STARTS_PROCESSES = re.compile(r"^\s*(from launching import|import launching)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of tests, and how often it has to pass."""

    test: str
    """Its path below the root."""

    digest: str
    """Of all that it depends on."""

    times: int = 1
    """How often, without a failure in between."""

    is_beside_burner: bool = False
    """Whether a processor is kept busy meanwhile; the number of examples is that of a day then."""

    @property
    def name(self) -> str:
        """What the entry is remembered by."""
        return f"{self.test} beside a burner" if self.is_beside_burner else self.test

    @property
    def command(self) -> list[str]:
        """What runs it once."""
        options = ["--benchmark-disable"] if "benchmarks" in Path(self.test).parts else []
        return [sys.executable, "-m", "pytest", "-q", self.test, *options]

    @property
    def environment(self) -> dict[str, str]:
        """Of the command."""
        return {"HYPOTHESIS_PROFILE": "default" if self.is_beside_burner else "nightly"}


def entries(sources: Sources, times: int) -> list[Entry]:
    """All that a night runs.

    Args:
        sources: The tree.
        times: How often tests of processes run beside a burner.
    """
    once = [Entry(test, sources.digest(test)) for test in sources.tests]
    benchmarks = [
        path.relative_to(sources.root).as_posix()
        for path in sorted(sources.root.glob("packages/*/benchmarks/test_*.py"))
    ]
    often = [
        Entry(test, sources.digest(test), times, is_beside_burner=True)
        for test in [*sources.tests, *benchmarks]
        if times > 0 and _STARTS_PROCESSES.search(sources.text(test))
    ]
    return [*once, *often]
