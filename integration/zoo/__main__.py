"""`python integration/zoo table [--full] [MODEL ...]`: plan and run the zoo, write docs/zoo.md.

If models are named, only these are measured again, otherwise all small ones; with --full also the
models at the papers' sizes, which are only planned. The page shows all results that are kept.
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import zoo` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import frontends.jax

frontends.jax.init(8)  # before anything else uses JAX

from zoo.cases import FULL, SMALL  # noqa: E402
from zoo.measure import keep, measure_full, measure_small, read  # noqa: E402
from zoo.report import write  # noqa: E402

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "results" / "zoo"


def main() -> None:
    """Measure the models that the command line names, one after another, and write the page."""
    parser = argparse.ArgumentParser(prog="python integration/zoo", description=__doc__)
    parser.add_argument("command", choices=["table"])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--full", action="store_true", help="also plan the papers' sizes")
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - SMALL.keys() - FULL.keys():
        parser.error(
            f"a MODEL is one of {', '.join([*SMALL, *FULL])}; got {', '.join(sorted(unknown))}"
        )
    for name in arguments.models or [*SMALL, *(FULL if arguments.full else ())]:
        row = measure_small(name) if name in SMALL else measure_full(name)
        keep(row, RESULTS)
        print(name, f"{row.step_s:.3g} s", row.difference, flush=True)
    write(DOCS / "zoo.md", DOCS / "pictures" / "zoo.svg", read(RESULTS))


if __name__ == "__main__":
    main()
