"""Tries the frontends with what is installed, and adds it to docs/versions.md.

`python integration/versions` runs tests of the frontends for about 15 minutes, in this environment;
`python integration/versions PyTorch` only those of PyTorch.
`nox -s versions-3.12 -- torch==2.14.1` makes an environment for it, with other versions than the
tests of every day. A record is a file in docs/results/versions; the page is made of all of them.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs" / "results" / "versions"
PAGE = ROOT / "docs" / "versions.md"
TESTS = ROOT / "packages" / "frontends" / "tests"
LIBRARIES = ("torch", "jax", "transformers", "flax", "equinox", "optax", "lightning")
FILES = {
    "JAX": ("test_api.py", "test_trace.py", "test_run.py", "test_adapters.py"),
    "PyTorch": ("torch_capture", "torch_execution/test_torch_run.py", "torch_programs"),
    "trainers": ("torch_trainer",),
}
"""By a word for the page, which tests are run."""

_LONGEST_S = 7200
"""How long the tests of a word may take."""

HEAD = """# Versions

The tests of every day run with Python 3.11, torch 2.13.0, JAX 0.10.2 and the newest transformers.
`nox -s versions-3.12 -- torch==2.14.1` tries the frontends with another Python and other libraries,
and adds a row. A cell has how many tests passed, of those that ran: capture and tracing, running by
plans, other people's programs, and the trainers of libraries. What is not in the table was not
tried.

"""


def outcome(files: tuple[str, ...]) -> dict[str, Any]:
    """Run tests; return how many there are, and the names of those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not nightly",
            f"--junitxml={path}",
            "-n",
            "2",
        ]
        # What a newer library announces to remove is no failure yet.
        ignored = ("ignore::DeprecationWarning", "ignore::FutureWarning")
        command += [f"-W{warning}" for warning in ignored]
        command += ["--show-capture=no", *[str(TESTS / file) for file in files]]
        subprocess.run(command, cwd=ROOT, check=False, timeout=_LONGEST_S)
        cases = list(ElementTree.parse(path).iter("testcase"))
    skipped = [case for case in cases if case.find("skipped") is not None]
    failed = [case for case in cases if any(case.find(k) is not None for k in ("failure", "error"))]
    names = [f"{case.get('classname')}::{case.get('name')}" for case in failed]
    return {"ran": len(cases) - len(skipped), "failed": sorted(names)}


def page(records: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of the page."""
    yield HEAD
    columns = ["Python", *LIBRARIES[:3], *FILES, "date"]
    yield f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}\n"
    notes = []
    for record in records:
        cells = [record["python"], *[record["libraries"][name] for name in LIBRARIES[:3]]]
        for name in FILES:
            if name not in record["tests"]:
                cells.append("–")
                continue
            ran, failed = record["tests"][name]["ran"], record["tests"][name]["failed"]
            cells.append(f"{ran - len(failed)} of {ran}")
            notes += [f"- Python {cells[0]}, torch {cells[1]}: `{test}`\n" for test in failed]
        yield f"| {' | '.join([*cells, record['date']])} |\n"
    if notes:
        yield "\nWhat failed:\n\n"
        yield from notes


def main() -> None:
    """Run the tests, and write the record and the page."""
    libraries = {name: version(name) for name in LIBRARIES}
    record = {
        "python": platform.python_version(),
        "libraries": libraries,
        "tests": {name: outcome(FILES[name]) for name in sys.argv[1:] or FILES},
        "date": date.today().isoformat(),
    }
    RECORDS.mkdir(parents=True, exist_ok=True)
    words = [f"python-{record['python']}", *[f"{n}-{libraries[n]}" for n in LIBRARIES[:3]]]
    path = RECORDS / f"{'_'.join(words).replace('+', '-')}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    records = [json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))]
    PAGE.write_text("".join(page(records)))


if __name__ == "__main__":
    main()
