"""`python integration/hosts` measures and reports; `... report` only reports.

`nox -s hosts` installs what it needs and calls it. It has to be root, or to be run by
`integration/netlab/netlab rootless --`. It takes two minutes; other work on the machine waits
meanwhile.
"""

import datetime
import json
import sys
from importlib.metadata import version
from pathlib import Path

if not __package__:  # run by its folder's name: make `import hosts` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from hosts.job import TIMED
from hosts.measure import RATE, lab, measure
from hosts.report import as_json, record, rewrite

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULT = DOCS / "results" / "hosts" / "schedules.json"


def main(arguments: list[str]) -> None:
    """Measure, then report of what is there."""
    if arguments not in ([], ["report"]):
        sys.exit(__doc__)
    if not arguments:
        with lab() as hosts:
            seen = measure(hosts, TIMED)
            if drops := hosts.drops():
                sys.exit(f"a lab loses no packets, else times are not of its link; lost {drops}")
        about = {
            "date": str(datetime.date.today()),
            "versions": ", ".join(f"{name} {version(name)}" for name in ("jax", "mpi4py", "mpich")),
        }
        RESULT.write_text(as_json(record(about, TIMED, RATE, seen)))
    rewrite(DOCS / "several_processes.md", json.loads(RESULT.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
