"""Makes and saves figures with matplotlib (extra `plot`), which is imported when it is needed."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from pipesched.base.checks import check_kind
from pipesched.errors import ArgumentError, MissingExtraError
from pipesched.simulation.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SUFFIXES = (".png", ".svg")


def timelines_of(value: object) -> tuple[Timeline, ...]:
    """One timeline, or several, as a tuple.

    Raises:
        ArgumentError: There is no timeline, or `value` contains something else.
    """
    timelines = tuple(value) if isinstance(value, Iterable) else (value,)
    for timeline in timelines:
        check_kind("timeline", timeline, Timeline)
    if not timelines:
        raise ArgumentError("a picture shows at least one timeline; got none")
    return timelines


def new_figure(path: str | PathLike[str], width: float, height: float) -> Figure:
    """An empty figure of this size in inches, which can be saved at `path`.

    Raises:
        ArgumentError: The suffix of `path` is neither .png nor .svg.
        MissingExtraError: matplotlib is not installed.
    """
    if not isinstance(path, (str, PathLike)):
        raise ArgumentError(f"a picture is written to a file; got path={path!r}")
    if Path(path).suffix.lower() not in _SUFFIXES:
        raise ArgumentError(
            f"a picture's file name ends in {' or '.join(_SUFFIXES)}; got path={fspath(path)!r}"
        )
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "pictures need matplotlib; install it with: pip install 'meshwright-pipesched[plot]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # this canvas measures text without a display
    return figure


def save(figure: Figure, path: str | PathLike[str]) -> None:
    """Write a figure to a file; the same figure gives the same file, byte for byte.

    Raises:
        OSError: The file cannot be written.
    """
    from matplotlib import rc_context

    is_svg = Path(path).suffix.lower() == ".svg"
    with rc_context({"svg.hashsalt": "pipesched"}):  # without it, ids in the file are random
        figure.savefig(path, dpi=150, metadata={"Date": None} if is_svg else None)
