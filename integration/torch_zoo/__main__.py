"""`python integration/torch_zoo [MODEL ...]`: train every model every way, write docs/torch_zoo.md.

Models that are named are trained anew, all of them without a name. The page shows all that is kept.
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # run by its folder's name: make `import torch_zoo` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch

from torch_zoo.check import WAYS, check
from torch_zoo.models import MODELS
from torch_zoo.report import keep, read, write

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "results" / "torch_zoo.json"


def main() -> None:
    """Train what is asked for, one after another, and render the page."""
    parser = argparse.ArgumentParser(prog="python integration/torch_zoo", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    given = parser.parse_args()
    if unknown := set(given.models) - MODELS.keys():
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    torch.set_num_threads(1)
    for name in given.models or MODELS:
        for way in WAYS:
            found = check(name, way)
            keep(name, way, found, RESULTS)
            print(name, way, found, flush=True)
    write(DOCS / "torch_zoo.md", read(RESULTS))


if __name__ == "__main__":
    main()
