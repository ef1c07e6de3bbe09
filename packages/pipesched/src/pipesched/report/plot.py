"""Draws timelines as a picture: a row for each rank, and a line for each transfer."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from pipesched.base.kind import Kind
from pipesched.report.picture import new_figure, save, timelines_of
from pipesched.report.style import LOOKS, kinds_seen, title
from pipesched.simulation.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 12.0
_AXES_WIDTH = 10.0  # about what is left beside legend and labels
_DIGIT_WIDTH = 0.065  # width of a digit in the bars; all three are in inches
_BAR = 0.84  # height of a bar, as a share of its row


def plot(timelines: Timeline | Sequence[Timeline], path: str | PathLike[str]) -> None:
    """Write timelines to a PNG or SVG file, one below the other, all to the same scale.

    A bar has the number of its microbatch, if the number fits. If a rank has several stages, the
    bars of later stages are darker. The same timelines give the same file, byte for byte, with one
    version of matplotlib.

    Args:
        timelines: The timeline to draw, or several to compare.
        path: The file; its suffix, .png or .svg, decides the format.

    Raises:
        ArgumentError: There is no timeline, or the suffix is neither .png nor .svg.
        MissingExtraError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    timelines = timelines_of(timelines)
    heights = [0.5 + min(0.42 * len(t.schedule.ranks), 10.0) for t in timelines]
    figure = new_figure(path, _WIDTH, 0.6 + sum(heights))
    from matplotlib.patches import Patch

    panels = figure.subplots(
        len(timelines), squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights}
    )
    span_s = max(timeline.makespan_s for timeline in timelines) or 1.0
    for axes, timeline in zip(panels[:, 0], timelines, strict=True):
        n_ranks = len(timeline.schedule.ranks)
        _draw_bars(axes, timeline, _AXES_WIDTH / span_s)
        _draw_transfers(axes, timeline)
        step = -(-n_ranks // 16)
        axes.set_yticks(
            range(0, n_ranks, step), [f"rank {rank}" for rank in range(0, n_ranks, step)]
        )
        axes.set_ylim(n_ranks - 0.5, -0.5)
        axes.set_title(title(timeline), fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(0.0, span_s)
    axes.set_xlabel("seconds")
    patches = [
        Patch(color=LOOKS[kind].colour, label=LOOKS[kind].name) for kind in kinds_seen(timelines)
    ]
    if patches:
        figure.legend(handles=patches, loc="outside right upper", frameon=False, fontsize=9)
    save(figure, path)


def _draw_bars(axes: Axes, timeline: Timeline, inches_per_s: float) -> None:
    placement = timeline.schedule.placement
    chunk = {
        (rank, stage): n
        for rank in range(len(timeline.schedule.ranks))
        for n, stage in enumerate(placement.stages_of(rank))
    }
    bars: dict[tuple[int, Kind, int], list[tuple[float, float]]] = {}
    for event in timeline.events:
        action, duration_s = event.action, event.stop_s - event.start_s
        if not duration_s:
            continue
        key = event.rank, action.kind, chunk[event.rank, action.stage]
        bars.setdefault(key, []).append((event.start_s, duration_s))
        label = "" if action.microbatch is None else str(action.microbatch)
        if _DIGIT_WIDTH * len(label) < duration_s * inches_per_s:
            axes.text(
                event.start_s + duration_s / 2,
                event.rank,
                label,
                ha="center",
                va="center",
                fontsize=7,
                color="black" if key[2] < 2 else "white",
            )
    # White lines between bars would hide bars that are only a little wider than the lines.
    n_columns = max((len(actions) for actions in timeline.schedule.ranks), default=0)
    line_width = 0.6 if n_columns < 40 * _AXES_WIDTH else 0.0
    for (rank, kind, n), spans in bars.items():
        axes.broken_barh(
            spans,
            (rank - _BAR / 2, _BAR),
            facecolor=_darker(LOOKS[kind].colour, n),
            edgecolor="white",
            linewidth=line_width,
        )


def _draw_transfers(axes: Axes, timeline: Timeline) -> None:
    from matplotlib.collections import LineCollection

    placement = timeline.schedule.placement
    lines = []
    for transfer in timeline.transfers:
        sender, receiver = (
            placement.rank(stage, transfer.microbatch)
            for stage in (transfer.edge.src[1], transfer.edge.dst[1])
        )
        down = _BAR / 2 if receiver > sender else -_BAR / 2  # from bar edge to bar edge
        lines.append(((transfer.start_s, sender + down), (transfer.stop_s, receiver - down)))
    axes.add_collection(LineCollection(lines, colors="0.4", linewidths=0.6, zorder=2))


def _darker(colour: str, times: int) -> tuple[float, float, float]:
    """The colour #rrggbb, made darker `times` times, down to half of its brightness."""
    shade = max(0.5, 1.0 - 0.22 * times)
    red, green, blue = (int(colour[i : i + 2], 16) / 255 * shade for i in (1, 3, 5))
    return red, green, blue
