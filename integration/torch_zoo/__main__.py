"""`python integration/torch_zoo [MODEL ...]`: train every model every way, write docs/torch_zoo.md.

Models that are named are trained anew, all of them without a name; `--way` takes some of the ways
only. The page shows all that is kept.
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # run by its folder's name: make `import torch_zoo` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch

from torch_zoo.check import WAYS, check
from torch_zoo.launch import LAUNCHED, LAUNCHED_WAYS, LAUNCHERS, launch
from torch_zoo.models import MODELS
from torch_zoo.report import keep, launched, read, write

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "results" / "torch_zoo.json"


def main() -> None:
    """Train what is asked for, one after another, and render the page."""
    in_processes = [launched(way, launcher) for launcher in LAUNCHERS for way in LAUNCHED_WAYS]
    parser = argparse.ArgumentParser(prog="python integration/torch_zoo", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--way", action="append", choices=[*WAYS, *in_processes])
    given = parser.parse_args()
    if unknown := set(given.models) - MODELS.keys():
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    names, ways = given.models or list(MODELS), given.way or [*WAYS, *in_processes]
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
        for (name, way), found in zip(cases, launch(launcher, cases), strict=True):
            keep(name, launched(way, launcher), found, RESULTS)
            print(name, launched(way, launcher), flush=True)
    write(DOCS / "torch_zoo.md", read(RESULTS))


if __name__ == "__main__":
    main()
