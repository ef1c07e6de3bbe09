"""The tables of the zoo and their picture, from kept results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from shardspec.amounts import bytes_text, seconds_text

from zoo.cases import FULL, SMALL
from zoo.measure import BASELINES, Row

MARKER = "<!-- From here on written by `python integration/zoo table`. -->"
_TITLES = ("data parallel", "ZeRO-2", "ZeRO-3", "Megatron", "equal layers")
_COLOURS = ("#999999", "#56b4e9", "#0072b2", "#e69f00", "#009e73")  # of Okabe and Ito
_MOST_TIMES = 100.0
"""The end of the picture's axis; slower plans are drawn at this edge."""


def write(page: Path, picture: Path, rows: dict[str, Row]) -> None:
    """Rewrite the part of the page that follows the marker, and draw the small cases."""
    before, _, _ = page.read_text(encoding="utf-8").partition(MARKER)
    small = [row for name, row in rows.items() if name in SMALL]
    full = [row for name, row in rows.items() if name in FULL]
    parts = [MARKER, "## Small, planned and run", table(small)]
    if full:
        parts += ["## As large as the papers', planned", table(full)]
    page.write_text(before + "\n\n".join(parts) + "\n", encoding="utf-8")
    draw(small, picture)


def table(rows: Sequence[Row]) -> str:
    """A line for each case; the cell of a baseline has its step relative to the plan's."""
    has_run = any(row.difference is not None for row in rows)
    heads = ["model", "parameters", "stages", "schedule", "microbatches", "step", "memory"]
    heads += [*_TITLES, "whole", *(["difference"] if has_run else [])]
    lines = [_line(heads), f"|---|{'--:|' * (len(heads) - 1)}"]
    for row in rows:
        cells = [row.name, _count(row.n_parameters), _meshes(row.stages), row.schedule]
        cells += [str(row.microbatches), seconds_text(row.step_s), bytes_text(row.memory_bytes)]
        cells += [_times(row, baseline) for baseline in BASELINES]
        cells += [f"{row.whole_share:.1%}"]
        cells += [f"{row.difference:.1e}"] if row.difference is not None else []
        lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _count(n: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return str(n)


def _meshes(stages: Sequence[tuple[int, ...]]) -> str:
    """Text of the meshes of a plan, such as `2 + 2 of 1×2`: equal neighbours are counted."""
    runs: list[tuple[str, int]] = []
    for shape in ("×".join(map(str, sizes)) for sizes in stages):
        if runs and runs[-1][0] == shape:
            runs[-1] = (shape, runs[-1][1] + 1)
        else:
            runs.append((shape, 1))
    return " + ".join(shape if n == 1 else f"{n} of {shape}" for shape, n in runs)


def _times(row: Row, baseline: str) -> str:
    step_s = row.baselines_s[baseline]
    return "–" if step_s is None else f"{step_s / row.step_s:.2f}"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the step of each baseline relative to the plan's, on a logarithmic axis."""
    with rc_context({"svg.hashsalt": "zoo", "font.size": 8}):
        figure = Figure(figsize=(8.0, 1.2 + 0.2 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        for place, (baseline, title) in enumerate(zip(BASELINES, _TITLES, strict=True)):
            of = [(i, row, row.baselines_s[baseline]) for i, row in enumerate(rows)]
            xs = [min(_MOST_TIMES, s / row.step_s) for _, row, s in of if s is not None]
            ys = [i + 0.12 * (place - 2) for i, _, s in of if s is not None]
            axes.scatter(xs, ys, s=14, color=_COLOURS[place], label=title, clip_on=False, zorder=3)
        axes.set_xscale("log")
        axes.set_xlim(0.9, _MOST_TIMES)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
        axes.minorticks_off()
        axes.grid(axis="x", color="#dddddd")
        axes.set_xlabel("predicted step, relative to the plan that was found")
        figure.legend(loc="outside upper center", ncols=len(_TITLES), frameon=False)
        FigureCanvasSVG(figure)
        figure.savefig(path, format="svg", metadata={"Date": None})
