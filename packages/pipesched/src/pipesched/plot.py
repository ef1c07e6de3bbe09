"""A timeline as a picture. Needs the extra `plot` (matplotlib), which is imported when called."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from pipesched.errors import ArgumentError, MissingExtraError
from pipesched.kind import Kind
from pipesched.timeline import Timeline

_COLOURS = {Kind.FORWARD: "#9ecae1", Kind.BACKWARD: "#fdae6b"}
_SUFFIXES = (".png", ".svg")


def plot(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Write the timeline to a PNG or SVG file: a row a rank, a line a transfer.

    The same timeline gives the same file, byte for byte, with one version of matplotlib.

    Args:
        timeline: What to draw.
        path: The file; its suffix says what it is.

    Raises:
        ArgumentError: A suffix other than .png and .svg.
        MissingExtraError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise ArgumentError(
            f"a picture's file name ends in {' or '.join(_SUFFIXES)}; got path={fspath(path)!r}"
        )
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "plot needs matplotlib; install it with: pip install 'meshwright-pipesched[plot]'"
        ) from error

    schedule = timeline.schedule
    n_ranks = len(schedule.ranks)
    figure = Figure(figsize=(12.0, 1.2 + 0.5 * n_ranks), layout="constrained")
    FigureCanvasAgg(figure)  # measures text without a display
    axes = figure.add_subplot()
    shown: set[Kind] = set()
    for event in timeline.events:
        kind, duration_s = event.action.kind, event.stop_s - event.start_s
        axes.barh(
            event.rank,
            duration_s,
            left=event.start_s,
            height=0.8,
            color=_COLOURS[kind],
            edgecolor="white",
            label="" if kind in shown else kind.name.lower(),
        )
        shown.add(kind)
        middle_s = event.start_s + duration_s / 2
        axes.text(
            middle_s, event.rank, str(event.action.microbatch), ha="center", va="center", fontsize=7
        )
    placement = schedule.placement
    for transfer in timeline.transfers:
        sender, receiver = (
            placement.rank(stage, transfer.microbatch)
            for stage in (transfer.edge.src[1], transfer.edge.dst[1])
        )
        down = 0.4 if receiver > sender else -0.4  # from bar edge to bar edge
        axes.plot(
            [transfer.start_s, transfer.stop_s],
            [sender + down, receiver - down],
            color="0.4",
            linewidth=0.8,
        )
    axes.set_yticks(range(n_ranks), [f"rank {rank}" for rank in range(n_ranks)])
    axes.set_xlim(0.0, timeline.makespan_s or 1.0)
    axes.set_ylim(n_ranks - 0.5, -0.5)
    axes.set_xlabel("seconds")
    axes.set_title(
        f"{schedule.name}: {schedule.n_stages} stages, {schedule.n_microbatches} microbatches, "
        f"{timeline.makespan_s:.4g} s, {timeline.bubble_ratio:.1%} idle"
    )
    figure.legend(loc="outside right upper")
    with rc_context({"svg.hashsalt": "pipesched"}):  # else the ids in the file are random
        figure.savefig(path, dpi=150, metadata={"Date": None} if suffix == ".svg" else None)
