"""Makes and saves figures of matplotlib (extra `plot`), which is imported when it is needed.

All packages that depend on this one draw with these functions, and raise errors of their own.
"""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def wrong_name(path: object) -> str | None:
    """Why no picture can be written to a path, for an error message; None if one can.

    Examples:
        >>> wrong_name("plan.svg"), wrong_name("plan.jpg")
        (None, "a picture's file name ends in .png or .svg; got 'plan.jpg'")
    """
    name = fspath(path) if isinstance(path, PathLike) else path
    if isinstance(name, str) and Path(name).suffix.lower() in (".png", ".svg"):
        return None
    return f"a picture's file name ends in .png or .svg; got {name!r}"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches.

    It does not use pyplot, which has global state, and its canvas measures text without a display.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | PathLike[str], package: str, *, dpi: int = 150) -> None:
    """Write a figure to a .png or .svg file; the same figure gives the same file, byte for byte.

    Args:
        figure: From `new_figure`.
        path: The file; its suffix decides the format.
        package: The name of the package that draws; ids in an SVG are made from it.
        dpi: The resolution of a PNG.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib import rc_context

    is_svg = Path(path).suffix.lower() == ".svg"
    with rc_context({"svg.hashsalt": package}):  # without it, ids in the file are random
        figure.savefig(path, dpi=dpi, metadata={"Date": None} if is_svg else None)
