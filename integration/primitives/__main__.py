"""Writes docs/primitives.md: `python integration/primitives`; `... print` prints it instead."""

import sys
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import primitives` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from primitives.table import page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "primitives.md"

if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["print"]):
        sys.exit(__doc__)
    if sys.argv[1:]:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page())
