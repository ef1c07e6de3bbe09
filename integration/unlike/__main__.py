"""Plans, runs and reports: `python integration/unlike`; `... report` only reports.

It has to run as root and takes half an hour; meanwhile, do no other work on the machine.
"""

import datetime
import json
import sys
from importlib.metadata import version
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import unlike` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from unlike.measured import CASES, measure
from unlike.report import as_json, record, rewrite
from unlike.shares import supported
from unlike.simulated import N_CLUSTERS, row_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "unlike_hosts.md"
RESULT = DOCS / "results" / "unlike.json"


def main(arguments: list[str]) -> None:
    """Plan and run, unless told to report only; then write the page from the record."""
    if arguments not in ([], ["report"]):
        sys.exit(__doc__)
    if not arguments:
        if reason := supported():
            sys.exit(f"devices cannot be slowed down here: {reason}")
        timed = [measure(case) for case in CASES]
        rows = []
        for seed in range(N_CLUSTERS):
            rows.append(row_of(seed))
            print(f"{seed + 1} of {N_CLUSTERS}: {rows[-1].hosts}", file=sys.stderr)
        about = {
            "date": str(datetime.date.today()),
            "versions": ", ".join(f"{name} {version(name)}" for name in ("jax", "torch")),
        }
        RESULT.write_text(as_json(record(about, rows, timed)))
    rewrite(PAGE, json.loads(RESULT.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
