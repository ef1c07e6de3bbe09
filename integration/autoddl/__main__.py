"""`python integration/autoddl`: search all six cases and write the record and the page.

It needs what the packages declare, and a few minutes.
"""

import sys
from pathlib import Path

if not __package__:  # run by its folder's name: make `import autoddl` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from autoddl.cases import TRANSFORMER_MESHES, VGG_MESHES, transformer, vgg
from autoddl.report import as_json, page

DOCS = Path(__file__).resolve().parents[2] / "docs"


def main() -> None:
    """Search, tell of each case as it is there, and write."""
    results = []
    for search, devices in ((vgg, VGG_MESHES), (transformer, TRANSFORMER_MESHES)):
        for n in devices:
            results.append(search(n))
            print(f"{results[-1].model} on {n} devices: {results[-1].saved:.1%} saved", flush=True)
    (DOCS / "results" / "autoddl" / "autoddl.json").write_text(as_json(results))
    (DOCS / "autoddl.md").write_text(page(results))


if __name__ == "__main__":
    main()
