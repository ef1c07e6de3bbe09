"""What passed: a file that is written anew after every run, so that a night can be cut anywhere."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nightly.entries import Entry


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of an entry."""

    digest: str
    """Of what it depended on."""

    passed: int = 0
    """How often it has passed since it failed, or since that digest."""

    seconds: float = 0.0
    """What its last run took."""

    commit: str = ""
    """On which it passed last."""

    date: str = ""
    """When."""


class Memory:
    """Records by the names of entries.

    Args:
        path: Of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        found = json.loads(path.read_text()) if path.exists() else {}
        self.records = {name: Record(**fields) for name, fields in found.items()}

    def passed(self, entry: Entry) -> int:
        """How often an entry has passed as it is now."""
        record = self.records.get(entry.name)
        return record.passed if record is not None and record.digest == entry.digest else 0

    def seconds(self, entry: Entry) -> float | None:
        """What it took last, whatever it depended on; None if it has never run."""
        record = self.records.get(entry.name)
        return None if record is None else record.seconds

    def note(self, entry: Entry, passed: bool, seconds: float, commit: str, date: str) -> None:
        """Remember a run; a failure forgets those before."""
        record = Record(entry.digest, 0, seconds)
        if passed:
            record = replace(record, passed=self.passed(entry) + 1, commit=commit, date=date)
        self.records[entry.name] = record
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = {name: asdict(self.records[name]) for name in sorted(self.records)}
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(text, indent=1) + "\n")
        os.replace(new, self._path)
