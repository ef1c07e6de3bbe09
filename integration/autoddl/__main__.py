"""Searches all six cases and writes record, page and figure 8: `python integration/autoddl`.

It needs the requirements of the packages, and takes a few minutes.
"""

import sys
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import autoddl` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from autoddl.cases import TRANSFORMER_MESHES, VGG_MESHES, transformer, vgg
from autoddl.figure_8 import draw
from autoddl.report import as_json, page

DOCS = Path(__file__).resolve().parents[2] / "docs"


def main() -> None:
    """Search all cases, print a line for each as soon as it is done, and write the results."""
    results = []
    for search, devices in ((vgg, VGG_MESHES), (transformer, TRANSFORMER_MESHES)):
        for n in devices:
            results.append(search(n))
            print(f"{results[-1].model} on {n} devices: {results[-1].saved:.1%} saved", flush=True)
    (DOCS / "results" / "autoddl" / "autoddl.json").write_text(as_json(results))
    (DOCS / "autoddl.md").write_text(page(results))
    draw(DOCS / "pictures" / "searches.png")


if __name__ == "__main__":
    main()
