"""Quality against time of every method on every instance, as a picture. Needs the extra `plot`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from autoshard.cli.benchmark import BenchmarkRow
from autoshard.errors import MissingExtraError, PictureError

_COLUMNS = 4
_LEAST, _MOST = 1e-3, 1e3
"""Per cent: the ends of the logarithmic axis; what is beyond them lies on them."""


def draw(results: Sequence[BenchmarkRow], path: Path) -> None:
    """Write a PNG or SVG file: a panel for each instance.

    Lines are what the best choice costs above the lowest cost, that is known or was found here, in
    per cent of it; dashed lines are what the lower bound is below it.

    Raises:
        MissingExtraError: matplotlib is not installed.
        PictureError: a suffix other than .png and .svg.
        OSError: the file cannot be written.
    """
    if path.suffix.lower() not in (".png", ".svg"):
        raise PictureError(f"a picture's file name ends in .png or .svg; got {str(path)!r}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("a picture", "plot") from error

    names = list(dict.fromkeys(result.instance.name for result in results))
    methods = list(dict.fromkeys(result.method for result in results))
    n_columns = min(len(names), _COLUMNS)
    n_rows = math.ceil(len(names) / _COLUMNS)
    figure = Figure(figsize=(max(5.0, 3.8 * n_columns), 3.2 * n_rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(n_rows, n_columns, squeeze=False).flat
    for panel, name in zip(panels, names, strict=False):
        here = [result for result in results if result.instance.name == name]
        found = [result.solution.objective for result in here if result.solution is not None]
        best = min(found + [result.instance.best or math.inf for result in here])
        end = max(result.instance.time_s for result in here)
        for result in here:
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
        if found:
            panel.legend(fontsize="small")
    for unused in list(panels)[len(names) :]:
        unused.set_axis_off()
    figure.savefig(path, dpi=120, metadata={} if path.suffix == ".png" else {"Date": None})


def _per_cent(objective: float, best: float) -> float:
    """Above the best cost; nan, which is not drawn, where there is none yet."""
    if not math.isfinite(objective) or not best:
        return math.nan
    return min(max(100.0 * (objective / best - 1.0), _LEAST), _MOST)
