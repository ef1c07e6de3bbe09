"""Measures and reports: `python integration/hosts`; `... report` only reports.

`nox -s hosts` installs the requirements and calls it. It has to run as root, or by
`integration/netlab/netlab rootless --`. It takes two minutes; meanwhile, do no other work on the
machine.
"""

import datetime
import json
import sys
from importlib.metadata import version
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import hosts` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from hosts.job import TIMED
from hosts.measure import RATE, lab, measure
from hosts.report import as_json, record, rewrite

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULT = DOCS / "results" / "hosts" / "schedules.json"


def main(arguments: list[str]) -> None:
    """Measure, unless told to report only; then write the page from the record."""
    if arguments not in ([], ["report"]):
        sys.exit(__doc__)
    if not arguments:
        with lab() as hosts:
            seen = measure(hosts, TIMED)
            if drops := hosts.drops():
                sys.exit(f"times of a lab are valid only if it loses no packets; it lost {drops}")
        about = {
            "date": str(datetime.date.today()),
            "versions": ", ".join(f"{name} {version(name)}" for name in ("jax", "mpi4py", "mpich")),
        }
        RESULT.write_text(as_json(record(about, TIMED, RATE, seen)))
    rewrite(DOCS / "several_processes.md", json.loads(RESULT.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
