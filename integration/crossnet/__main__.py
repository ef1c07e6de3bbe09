"""Measures and reports: `python integration/crossnet [figure5|figure6|figure8]... [gloo|mpi]...`.

Without figures, it makes all of them; without backends, it uses both; `... report` only reports.
`nox -s crossnet` installs the requirements and calls it. It has to run as root, or by
`integration/netlab/netlab rootless --`. Everything takes eleven minutes; meanwhile, do no other
work on the machine.
"""

import datetime
import json
import sys
from importlib.metadata import version
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import crossnet` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from crossnet.measure import BACKENDS, lab, measure
from crossnet.report import as_json, draw, record, rewrite
from crossnet.runs import FIGURES, SHAPE

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "results" / "crossnet"
LIBRARIES = {"gloo": ("torch",), "mpi": ("mpi4py", "mpich")}


def main(arguments: list[str]) -> None:
    """Measure the figures that are named, then report all figures that have results."""
    if not set(arguments) <= {*FIGURES, *BACKENDS, "report"}:
        sys.exit(__doc__)
    if arguments != ["report"]:
        figures = [name for name in FIGURES if name in arguments] or list(FIGURES)
        for backend in [name for name in BACKENDS if name in arguments] or BACKENDS:
            _measure(backend, figures)
    measured = {}
    for name in FIGURES:
        files = [RESULTS / f"{name}_{backend}.json" for backend in BACKENDS]
        if records := [json.loads(file.read_text()) for file in files if file.exists()]:
            measured[name] = records
            draw(name, records, DOCS / "pictures" / f"crossmesh_{name}.svg")
    rewrite(DOCS / "crossmesh_figures.md", measured)


def _measure(backend: str, figures: list[str]) -> None:
    runs = {name: list(FIGURES[name](SHAPE)) for name in figures}
    every = [run for of_figure in runs.values() for run in of_figure]
    n_hosts = 1 + max(host for run in every for _, host in run.plan.hosts)
    with lab(n_hosts) as hosts:
        seen = measure(hosts, backend, every)
        if drops := hosts.drops():
            sys.exit(f"times of a lab are valid only if it loses no packets; it lost {drops}")
    about = {
        "date": str(datetime.date.today()),
        "versions": ", ".join(f"{name} {version(name)}" for name in LIBRARIES[backend]),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, of_figure in runs.items():
        text = as_json(record(backend, about, of_figure, seen))
        (RESULTS / f"{name}_{backend}.json").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
