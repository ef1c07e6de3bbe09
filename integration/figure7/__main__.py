"""`python integration/figure7`: simulate figure 7, write its table and picture into docs/."""

import sys
from pathlib import Path

if not __package__:  # run by its folder's name: make `import figure7` find it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from figure7.report import write

DOCS = Path(__file__).resolve().parents[2] / "docs"

if __name__ == "__main__":
    write(DOCS / "pipesched.md", DOCS / "pictures" / "pipesched_figure7.svg")
