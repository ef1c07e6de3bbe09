"""`python integration/zoo table [--full] [MODEL ...]`: plan and run the zoo, write docs/zoo.md.

Models that are named are measured anew, all small ones without a name, and with --full those of the
papers' sizes too, which are planned only. The page shows all that is known.
"""

import argparse
import sys
from pathlib import Path

if not __package__:  # run by its folder's name: make `import zoo` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import frontends.jax

frontends.jax.init(8)  # before anything else uses JAX

from zoo.cases import FULL, SMALL  # noqa: E402
from zoo.measure import keep, measure_full, measure_small, read  # noqa: E402
from zoo.report import write  # noqa: E402

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "results" / "zoo"


def main() -> None:
    """Measure what is asked for, one after another, and render the page."""
    parser = argparse.ArgumentParser(prog="python integration/zoo", description=__doc__)
    parser.add_argument("command", choices=["table"])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--full", action="store_true", help="plan the papers' sizes, too")
    given = parser.parse_args()
    if unknown := set(given.models) - SMALL.keys() - FULL.keys():
        parser.error(
            f"no model {', '.join(sorted(unknown))}; there are {', '.join([*SMALL, *FULL])}"
        )
    for name in given.models or [*SMALL, *(FULL if given.full else ())]:
        row = measure_small(name) if name in SMALL else measure_full(name)
        keep(row, RESULTS)
        print(name, f"{row.step_s:.3g} s", row.difference, flush=True)
    write(DOCS / "zoo.md", DOCS / "pictures" / "zoo.svg", read(RESULTS))


if __name__ == "__main__":
    main()
