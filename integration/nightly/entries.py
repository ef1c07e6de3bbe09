"""The entries of a night: every test file with many examples, and those of processes often.

The latter run while another process keeps a processor busy, because a process hangs or is late only
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
    """A test file, and how often it has to pass."""

    test: str
    """The path of the file below the root."""

    digest: str
    """The digest of everything that it depends on."""

    times: int = 1
    """How often it has to pass, without a failure in between."""

    is_beside_burner: bool = False
    """Whether another process keeps a processor busy meanwhile; then it runs with the number of
    examples of the default profile."""

    @property
    def name(self) -> str:
        """The name of the entry in the record of what passed."""
        return f"{self.test} beside a burner" if self.is_beside_burner else self.test

    @property
    def command(self) -> list[str]:
        """The command that runs it once."""
        options = ["--benchmark-disable"] if "benchmarks" in Path(self.test).parts else []
        return [sys.executable, "-m", "pytest", "-q", self.test, *options]

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the command."""
        return {"HYPOTHESIS_PROFILE": "default" if self.is_beside_burner else "nightly"}


def entries(sources: Sources, times: int) -> list[Entry]:
    """All entries of a night.

    Args:
        sources: The sources.
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
