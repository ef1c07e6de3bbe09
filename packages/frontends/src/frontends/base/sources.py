"""Lines of source code for messages, and who wrote them."""

from __future__ import annotations

import linecache
import sysconfig
from pathlib import Path
from typing import Literal

Whose = Literal["nobody's", "a library's", "the user's"]

OURS = str(Path(__file__).parents[1]) + "/"
"""The folder of this package."""

_STANDARD = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
_INSTALLED = {"site-packages", "dist-packages"}
_FRAMEWORKS = {"jax", "jaxlib", "torch"}
_TYPED = ("<stdin", "<ipython")
"""Prefixes of the file names of code that a user typed at a prompt."""

_LONGEST = 100
"""Characters of a line that a message shows."""


def whose(filename: str) -> Whose:
    """Who wrote a file: the user, a library, or nobody that a user wants to see.

    Nobody's are files of JAX and PyTorch, of this package and of Python itself.
    """
    if filename.startswith("<"):
        return "the user's" if filename.startswith(_TYPED) else "nobody's"
    if filename.startswith(OURS):
        return "nobody's"
    parts = Path(filename).parts
    installed = next((i for i, part in enumerate(parts) if part in _INSTALLED), None)
    if installed is not None:
        return "nobody's" if parts[installed + 1] in _FRAMEWORKS else "a library's"
    return "nobody's" if filename.startswith(_STANDARD) else "the user's"


def shown(filename: str, line: int, function: str) -> str:
    """A line as `file:line: code`; the name of the function if the code cannot be read."""
    text = linecache.getline(filename, line).strip()
    return f"{filename}:{line}: `{text[:_LONGEST] or function}`"
