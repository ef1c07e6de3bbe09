"""Draws the memory of every rank over time as a picture, with a limit to compare."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from pipesched.base.checks import is_amount
from pipesched.errors import ArgumentError
from pipesched.report.picture import new_figure, save, timelines_of
from pipesched.simulation.memory import Held
from pipesched.simulation.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Fields of `Held`, labels and colours, from the bottom up.
_PARTS = (
    ("parameter_bytes", "parameters", "#d9d9d9"),
    ("activation_bytes", "activations", "#9ecae1"),
    ("weight_gradient_bytes", "for weight gradients", "#a1d99b"),
    ("message_bytes", "messages", "#fdae6b"),
)
_COLUMN_WIDTH = 4.5  # inches
_ROW_HEIGHT = 0.8


def plot_memory(
    timelines: Timeline | Sequence[Timeline],
    path: str | PathLike[str],
    cap_bytes: float | None = None,
) -> None:
    """Write the memory of ranks over time to a PNG or SVG file.

    It has a row for each rank, and a column for each timeline.

    Args:
        timelines: The timeline to draw, or several to compare.
        path: The file; its suffix, .png or .svg, decides the format.
        cap_bytes: The most bytes that a rank may hold, drawn as a line; None for no line.

    Raises:
        ArgumentError: There is no timeline, the cap is negative or not finite, or the suffix is
            neither .png nor .svg.
        MissingExtraError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    timelines = timelines_of(timelines)
    if cap_bytes is not None and not is_amount(cap_bytes):
        raise ArgumentError(f"a cap is finite and not negative; got cap_bytes={cap_bytes!r}")
    n_ranks = max(len(timeline.schedule.ranks) for timeline in timelines)
    figure = new_figure(
        path, max(9.0, _COLUMN_WIDTH * len(timelines)), 1.3 + min(_ROW_HEIGHT * n_ranks, 20.0)
    )
    panels = figure.subplots(n_ranks, len(timelines), squeeze=False, sharex=True, sharey=True)
    span_s = max(timeline.makespan_s for timeline in timelines) or 1.0
    all_curves = [timeline.memory() for timeline in timelines]
    parts = [
        part
        for part in _PARTS
        if any(
            getattr(held, part[0]) for curves in all_curves for curve in curves for held in curve
        )
    ]
    for column, (timeline, curves) in enumerate(zip(timelines, all_curves, strict=True)):
        peak_bytes = max(held.total_bytes for curve in curves for held in curve)
        name = timeline.schedule.name
        panels[0, column].set_title(f"{name}: at most {peak_bytes:.4g} bytes", fontsize=10)
        for rank, axes in enumerate(panels[:, column]):
            if rank < len(curves):
                _draw_curve(axes, curves[rank], timeline.makespan_s, parts, cap_bytes)
            else:
                axes.set_visible(False)
        panels[-1, column].set_xlabel("seconds")
    for rank, axes in enumerate(panels[:, 0]):
        axes.set_ylabel(f"rank {rank}\nbytes", fontsize=8)
    panels[0, 0].set_xlim(0.0, span_s)
    panels[0, 0].set_ylim(bottom=0.0)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    save(figure, path)


def _draw_curve(
    axes: Axes,
    curve: Sequence[Held],
    makespan_s: float,
    parts: Sequence[tuple[str, str, str]],
    cap_bytes: float | None,
) -> None:
    times_s = [*(held.time_s for held in curve), makespan_s]
    below = [0.0] * len(times_s)
    for field, label, colour in parts:
        part = [getattr(held, field) for held in curve]
        above = [low + n for low, n in zip(below, [*part, part[-1]], strict=True)]
        axes.fill_between(
            times_s, below, above, step="post", color=colour, linewidth=0.0, label=label
        )
        below = above
    if cap_bytes is not None:
        axes.axhline(cap_bytes, color="#cb181d", linestyle="--", linewidth=1.0, label="cap")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
