"""Simulates, measures and reports: `python integration/unlike`; a word for one of these does one.

Measuring has to run as root and takes four minutes, without other work on the machine; simulating
takes a quarter of an hour.
"""

import datetime
import json
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import unlike` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from unlike.measured import CASES, measure
from unlike.report import as_json, rewrite
from unlike.shares import supported
from unlike.simulated import N_CLUSTERS, row_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "unlike_hosts.md"
RESULT = DOCS / "results" / "unlike.json"


def main(arguments: list[str]) -> None:
    """Do the parts that are asked for, or all; then write the page from the record."""
    parts = arguments or ["simulate", "measure"]
    if not set(parts) <= {"simulate", "measure", "report"}:
        sys.exit(__doc__)
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if "measure" in parts:
        if reason := supported():
            sys.exit(f"devices cannot be slowed down here: {reason}")
        kept["timed"] = [asdict(measure(case)) for case in CASES]
        kept["measured"] = about()
    if "simulate" in parts:
        kept["rows"] = []
        for seed in range(N_CLUSTERS):
            kept["rows"].append(asdict(row_of(seed)))
            print(f"{seed + 1} of {N_CLUSTERS}: {kept['rows'][-1]['hosts']}", file=sys.stderr)
        kept["simulated"] = about()
    RESULT.write_text(as_json(kept))
    if {"rows", "timed"} <= kept.keys():
        rewrite(PAGE, kept)


def about() -> str:
    """When, and by which versions."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "torch"))
    return f"{datetime.date.today()}, {versions}"


if __name__ == "__main__":
    main(sys.argv[1:])
