"""Draws quality against time of every method on every instance. Needs the extra `plot`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardspec.report.figure import new_figure, save_figure, wrong_name

from autoshard.cli.benchmark import BenchmarkRow
from autoshard.errors import MissingExtraError, PictureError

_COLUMNS = 4
_LEAST, _MOST = 1e-3, 1e3
"""The ends of the logarithmic axis, in per cent; values beyond an end are drawn at it."""


def draw(results: Sequence[BenchmarkRow], path: Path) -> None:
    """Write a PNG or SVG file with a panel for each instance.

    Solid lines show how much more the best choice costs than the lowest cost, known or found here,
    in per cent of that cost; dashed lines show how far the lower bound is below it.

    Raises:
        MissingExtraError: matplotlib is not installed.
        PictureError: the suffix of the path is neither .png nor .svg.
        OSError: the file cannot be written.
    """
    if problem := wrong_name(path):
        raise PictureError(problem)
    save_figure(figure_of(results), path, "autoshard", dpi=120)


def figure_of(results: Sequence[BenchmarkRow]) -> Any:
    """The figure that `draw` writes.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    names = list(dict.fromkeys(result.instance.name for result in results))
    methods = list(dict.fromkeys(result.method for result in results))
    n_columns = min(len(names), _COLUMNS)
    n_rows = math.ceil(len(names) / _COLUMNS)
    try:
        figure = new_figure(max(5.0, 3.8 * n_columns), 3.2 * n_rows)
    except ImportError as error:
        raise MissingExtraError("a picture", "plot") from error
    panels = list(figure.subplots(n_rows, n_columns, squeeze=False).flat)
    for panel, name in zip(panels, names, strict=False):
        of_instance = [result for result in results if result.instance.name == name]
        costs = [r.solution.objective for r in of_instance if r.solution is not None]
        best = min(costs + [result.instance.best or math.inf for result in of_instance])
        end = max(result.instance.time_s for result in of_instance)
        for result in of_instance:
            if result.solution is None:
                continue
            trace, colour = result.solution.trace, f"C{methods.index(result.method)}"
            seconds = [at.seconds for at in trace] + [max(end, result.solution.seconds)]
            above = [_per_cent(at.objective, best) for at in trace]
            below = [_per_cent(2 * best - at.lower_bound, best) for at in trace]
            step = {"where": "post", "color": colour}
            panel.step(
                seconds, [*above, *above[-1:]], ".-", markersize=3, label=result.method, **step
            )
            panel.step(seconds, [*below, *below[-1:]], linestyle="--", linewidth=0.8, **step)
        panel.set(title=name, xscale="log", yscale="log", xlabel="seconds")
        panel.set(ylabel="% from the best cost", ylim=(_LEAST / 1.5, _MOST * 1.5))
        if costs:
            panel.legend(fontsize="small")
    for unused in panels[len(names) :]:
        unused.set_axis_off()
    return figure


def _per_cent(objective: float, best: float) -> float:
    """How far a cost is above the best one, in per cent; nan, which is not drawn, if infinite."""
    if not math.isfinite(objective) or not best:
        return math.nan
    return min(max(100.0 * (objective / best - 1.0), _LEAST), _MOST)
