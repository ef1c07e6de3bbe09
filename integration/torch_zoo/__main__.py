"""`python integration/torch_zoo [MODEL ...]`: train every model every way, write docs/torch_zoo.md.

If models are named, only these are trained again, otherwise all; `--way` restricts the ways. The
page shows all results that are kept.
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import torch_zoo` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch

from torch_zoo.check import WAYS, check
from torch_zoo.launch import LAUNCHED, LAUNCHED_WAYS, LAUNCHERS, launch
from torch_zoo.models import MODELS
from torch_zoo.report import keep, launched, read, write

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "results" / "torch_zoo.json"


def main() -> None:
    """Train the models that the command line names, one after another, and write the page."""
    in_processes = [launched(way, launcher) for launcher in LAUNCHERS for way in LAUNCHED_WAYS]
    parser = argparse.ArgumentParser(prog="python integration/torch_zoo", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--way", action="append", choices=[*WAYS, *in_processes])
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - MODELS.keys():
        parser.error(f"a MODEL is one of {', '.join(MODELS)}; got {', '.join(sorted(unknown))}")
    names, ways = arguments.models or list(MODELS), arguments.way or [*WAYS, *in_processes]
    torch.set_num_threads(1)
    for name in names:
        for way in WAYS:
            if way in ways:
                keep(name, way, check(name, way), RESULTS)
                print(name, way, flush=True)
    for launcher in LAUNCHERS:
        cases = [
            (name, way)
            for name in LAUNCHED
            for way in LAUNCHED_WAYS
            if name in names and launched(way, launcher) in ways
        ]
        for (name, way), result in zip(cases, launch(launcher, cases), strict=True):
            keep(name, launched(way, launcher), result, RESULTS)
            print(name, launched(way, launcher), flush=True)
    write(DOCS / "torch_zoo.md", read(RESULTS))


if __name__ == "__main__":
    main()
