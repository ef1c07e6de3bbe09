"""Which tests passed on which commit: a record in docs/results, and a page rendered from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nightly.entries import Entry
from nightly.memory import Memory

Passed = Mapping[str, Any]

_HEAD = """# Nights

Written by `nox -s nightly` from `docs/results/nights.json`; edit neither. Each row is a file of
tests and the commit on which it last passed: with 10,000 examples of each property (slow ones
2,000) and the tests marked nightly. Files that start processes also run many times beside a process
that keeps a processor busy; how often they passed without a failure is in the last column. A file
runs again when something changes that it depends on: itself, the helpers beside it, its package and
those that this one requires, or the versions of Python and the libraries. "+changes" after a
commit: files differed from it. What failed last, or has not run yet, has no row.

"""


def gather(
    entries: Sequence[Entry], memory: Memory, versions: Mapping[str, str], before: Passed
) -> Passed:
    """The record of all entries.

    Args:
        entries: All entries.
        memory: The record of this machine.
        versions: The versions of Python and of the libraries.
        before: The last record that was kept, perhaps from another machine; its rows stay where
            `memory` has none.
    """
    rows = {}
    for name in sorted(entry.name for entry in entries):
        record = memory.records.get(name)
        if record is None and name in before.get("passed", {}):
            rows[name] = before["passed"][name]
        elif record is not None and record.passed:
            rows[name] = {**asdict(record), "digest": record.digest[:16]}
            rows[name]["seconds"] = round(record.seconds)
    return {"command": "nox -s nightly", "versions": dict(versions), "passed": rows}


def read(docs: Path) -> Passed:
    """The last record that was kept; empty if there is none."""
    path = docs / "results" / "nights.json"
    return json.loads(path.read_text()) if path.exists() else {}


def render(passed: Passed) -> str:
    """The text of the page."""
    versions = ", ".join(f"{name} {version}" for name, version in passed["versions"].items())
    lines = [f"Versions: {versions}.", ""]
    lines += ["| tests | commit | date | seconds | beside a burner |", "|---|---|---|--:|--:|"]
    records = passed["passed"]
    for test in sorted({name.removesuffix(" beside a burner") for name in records}):
        once, often = records.get(test), records.get(f"{test} beside a burner")
        shown = once or often
        commit, *changes = shown["commit"].split("+")
        cells = [f"`{test}`", f"`{'+'.join([commit[:12], *changes])}`", shown["date"]]
        cells += [f"{once['seconds']}" if once else "not alone"]
        cells += [f"{often['passed']} times" if often else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return _HEAD + "\n".join(lines) + "\n"


def keep(passed: Passed, docs: Path) -> None:
    """Write the record and the page."""
    (docs / "results").mkdir(parents=True, exist_ok=True)
    (docs / "results" / "nights.json").write_text(json.dumps(passed, indent=1) + "\n")
    (docs / "nights.md").write_text(render(passed))
