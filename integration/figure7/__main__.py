"""Simulates figure 7 and writes its table and picture to docs/: `python integration/figure7`."""

import sys
from pathlib import Path

if not __package__:  # run by the name of the folder: make `import figure7` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from figure7.report import write

DOCS = Path(__file__).resolve().parents[2] / "docs"

if __name__ == "__main__":
    write(DOCS / "pipesched.md", DOCS / "pictures" / "pipesched_figure7.svg")
