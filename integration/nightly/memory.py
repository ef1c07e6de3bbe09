"""The record of what passed.

Its file is rewritten after every run, so that a night may be interrupted at any time.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nightly.entries import Entry


@dataclass(frozen=True, slots=True)
class Record:
    """The record of an entry."""

    digest: str
    """The digest of what it depended on."""

    passed: int = 0
    """How often it has passed with this digest since it last failed."""

    seconds: float = 0.0
    """How long its last run took."""

    commit: str = ""
    """The commit on which it last passed."""

    date: str = ""
    """The date on which it last passed."""


class Memory:
    """The records of all entries, by name.

    Args:
        path: The path of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        saved = json.loads(path.read_text()) if path.exists() else {}
        self.records = {name: Record(**fields) for name, fields in saved.items()}

    def passed(self, entry: Entry) -> int:
        """How often an entry has passed with its present digest."""
        record = self.records.get(entry.name)
        return record.passed if record is not None and record.digest == entry.digest else 0

    def seconds(self, entry: Entry) -> float | None:
        """How long its last run took, with any digest; None if it has never run."""
        record = self.records.get(entry.name)
        return None if record is None else record.seconds

    def note(self, entry: Entry, passed: bool, seconds: float, commit: str, date: str) -> None:
        """Record a run; a failure discards the runs before it."""
        record = Record(entry.digest, 0, seconds)
        if passed:
            record = replace(record, passed=self.passed(entry) + 1, commit=commit, date=date)
        self.records[entry.name] = record
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = {name: asdict(self.records[name]) for name in sorted(self.records)}
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(text, indent=1) + "\n")
        os.replace(new, self._path)
