"""Writes docs/primitives.md."""

import sys
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import primitives` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from primitives.table import page

if __name__ == "__main__":
    (Path(__file__).resolve().parents[2] / "docs" / "primitives.md").write_text(page())
