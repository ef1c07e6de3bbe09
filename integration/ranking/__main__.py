"""Measures and reports: `python integration/ranking [gloo|mpi]...`; `... report` only reports.

`nox -s ranking` installs the requirements, which are the extras `calibrate`, `mpi`, `plot` and
`torch` of costmodel, and calls it. It has to run as root, or by `integration/netlab/netlab rootless
--`. It takes four minutes; meanwhile, do no other work on the machine.
"""

import json
import sys
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import ranking` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from costmodel.profile import Profile

from ranking.compare import FULL, compare
from ranking.measure import BACKENDS, lab
from ranking.report import as_json, draw, rewrite

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "results" / "ranking"


def main(arguments: list[str]) -> None:
    """Measure over the backends that are named, then report all backends that have results."""
    if not set(arguments) <= {*BACKENDS, "report"}:
        sys.exit(__doc__)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for backend in (arguments or BACKENDS) if arguments != ["report"] else ():
        with lab(FULL.n_hosts, FULL.rate) as hosts:
            result, profile = compare(hosts, backend, FULL)
        (RESULTS / f"{backend}.json").write_text(as_json(result) + "\n")
        (RESULTS / f"{backend}_profile.json").write_text(profile.to_json())
    results = [
        (
            json.loads(file.read_text()),
            Profile.from_json((RESULTS / f"{backend}_profile.json").read_text()),
        )
        for backend in BACKENDS
        if (file := RESULTS / f"{backend}.json").exists()
    ]
    draw(results, DOCS / "pictures" / "ranking.svg")
    rewrite(DOCS / "costs.md", results, "pictures/ranking.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
