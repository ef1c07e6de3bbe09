"""Pictures of a plan, of its pipeline and of training losses, as PNG or SVG files.

With one version of matplotlib, the same data gives the same file. No display is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pipesched
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch, Rectangle
from shardspec.amounts import bytes_text, seconds_text
from shardspec.report.figure import new_figure, save_figure, wrong_name

from frontends.errors import OutputError
from frontends.plan.plan_fields import PlanFields, Stage
from frontends.program.predict import timeline_of
from frontends.report.svg_charts import COLLECTIVE_COLOURS
from frontends.report.text import (
    describe_inputs,
    describe_layers,
    describe_mesh,
    runs_per_step,
    sum_collectives,
)

_COLOURS = COLLECTIVE_COLOURS | {"compute": "#999999", "transfer": "#d55e00"}
_BOX, _GAP = 3.0, 1.5  # inches: width of a stage, and of the gap between two
_DETOUR = 0.3  # inches: height of an arrow that passes over boxes
_MEMORY = "#9ecae1"


def draw_plan(plan: PlanFields, path: str | Path) -> None:
    """Draw the stages with their devices, what they send, and where a step's time goes.

    Args:
        plan: The plan to draw.
        path: The file; its suffix is the format.

    Raises:
        OutputError: The suffix is neither .png nor .svg, or the file cannot be written.
    """
    n_stages = len(plan.stages)
    n_rows = max(_grid(stage)[0] for stage in plan.stages)
    width = max(10.0, n_stages * (_BOX + _GAP))
    stages_height = 2.7 + 0.75 * n_rows + _DETOUR * _count_detours(plan)
    heights = (stages_height, 1.1 + 0.4 * n_stages)
    with _figure(path, (width, sum(heights))) as figure:
        figure.suptitle(
            f"{plan.cluster}, {plan.schedule_name}, {plan.microbatches} microbatches: "
            f"{seconds_text(plan.step_s)} a step predicted"
        )
        grid = figure.add_gridspec(2, 2, height_ratios=heights)
        _draw_stages(figure.add_subplot(grid[0, :]), plan, heights[0], width)
        _draw_bytes(figure.add_subplot(grid[1, 0]), plan)
        _draw_times(figure.add_subplot(grid[1, 1]), plan)
        used = {"compute", *(row.kind for row in sum_collectives(plan))}
        used |= {"transfer"} if plan.transfers else set()
        handles = [
            Patch(color=colour, label=name.replace("_", "-"))
            for name, colour in _COLOURS.items()
            if name in used
        ]
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=len(handles),
            fontsize=8,
            frameon=False,
        )


def draw_timeline(plan: PlanFields, path: str | Path) -> None:
    """Draw the simulated pipeline of a plan.

    Raises:
        OutputError: As in `draw_plan`.
        PlanError: The schedule of the plan cannot run.
    """
    timeline = timeline_of(plan)
    try:
        pipesched.plot(timeline, path)
    except (OSError, pipesched.ArgumentError) as error:
        raise OutputError(f"a picture is written to a file; {path}: {error}") from error


def draw_losses(
    losses: Sequence[float],
    path: str | Path,
    *,
    single_device: Sequence[float] = (),
    validation: Mapping[int, float] | None = None,
) -> None:
    """Draw the losses of a parallel run, and those of the first steps on a single device.

    Args:
        losses: The losses of the parallel run, in nats a token.
        path: As in `draw_plan`.
        single_device: The losses of the first steps, run on one device.
        validation: Losses on other text, by the number of the loss after which they were computed.

    Raises:
        OutputError: As in `draw_plan`.
    """
    with _figure(path, (8.0, 4.5)) as figure:
        axes = figure.add_subplot()
        axes.plot(range(1, len(losses) + 1), losses, label="parallel", color="#0072b2")
        if single_device:
            axes.plot(
                range(1, len(single_device) + 1),
                single_device,
                linestyle="",
                marker="o",
                fillstyle="none",
                label="single device",
                color=_COLOURS["transfer"],
            )
        if validation:
            axes.plot([*validation], [*validation.values()], marker="s", label="other text")
        axes.set(xlabel="step", ylabel="loss [nats a token]", title="Training loss")
        axes.set_ylim(bottom=0.0)
        axes.grid(alpha=0.3)
        axes.legend()


def check_name(path: str | Path) -> None:
    """Raise `OutputError` unless the name of a file ends in .png or .svg."""
    if problem := wrong_name(path):
        raise OutputError(problem)


@contextmanager
def _figure(path: str | Path, size_inches: tuple[float, float]) -> Iterator[Figure]:
    """A context with a figure, which is written to `path` at the end."""
    check_name(path)
    figure = new_figure(*size_inches)
    yield figure
    try:
        save_figure(figure, path, "frontends", dpi=120)
    except OSError as error:
        raise OutputError(f"a picture is written to a file; {path}: {error.strerror}") from error


def _grid(stage: Stage) -> tuple[int, int]:
    """Rows and columns in which a stage's devices are drawn.

    A row is the last axis of the mesh; a single row of more than 4 is folded.
    """
    columns = stage.mesh.shape[-1] if stage.mesh.ndim else 1
    rows = stage.mesh.size // columns
    while rows == 1 and columns > 4 and columns % 2 == 0:
        rows, columns = rows * 2, columns // 2
    return rows, columns


def _draw_stages(axes: Axes, plan: PlanFields, height: float, width: float) -> None:
    """Draw a box for each stage with its devices, which are filled as far as their memory is."""
    axes.set_axis_off()
    axes.set_xlim(0.0, width)
    axes.set_ylim(0.0, height)
    left = (width - len(plan.stages) * (_BOX + _GAP) + _GAP) / 2
    bottom, top = 0.35, height - 0.1 - _DETOUR * _count_detours(plan)
    for index, stage in enumerate(plan.stages):
        limit = plan.memory_limit(index)
        x = left + index * (_BOX + _GAP)
        box = FancyBboxPatch(
            (x, bottom),
            _BOX,
            top - bottom,
            boxstyle="round,pad=0,rounding_size=0.12",
            facecolor="#f7f7f7",
            edgecolor="0.4",
        )
        axes.add_patch(box)
        title = f"stage {index}: layers {describe_layers(stage)}"
        axes.text(x + _BOX / 2, top - 0.2, title, ha="center", va="center", weight="bold")
        mesh = f"mesh {describe_mesh(stage.mesh)}"
        axes.text(x + _BOX / 2, top - 0.45, mesh, ha="center", va="center", fontsize=9)
        lines = [f"{name}: {layouts}" for name, layouts in describe_inputs(plan, index)]
        memory = f"{bytes_text(stage.memory_bytes)} of {bytes_text(limit)}"
        axes.text(x + _BOX / 2, 1.45, f"{memory} a device", ha="center", va="center", fontsize=9)
        text = "\n".join(_shortened(line) for line in lines)
        axes.text(x + 0.15, 1.25, text, ha="left", va="top", fontsize=7.5, linespacing=1.4)
        area = (x + 0.15, 1.65, _BOX - 0.3, top - 0.65 - 1.65)
        _draw_devices(axes, stage, stage.memory_bytes / limit if limit else 0.0, area)
    _draw_sent(axes, plan, left, bottom, top)
    note = "fill: peak memory; arrows: bytes sent in one step"
    axes.text(left, 0.1, note, fontsize=8, color="0.4", va="center")


def _draw_devices(
    axes: Axes, stage: Stage, filled: float, area: tuple[float, float, float, float]
) -> None:
    x, y, width, height = area
    rows, columns = _grid(stage)
    cell = (width / columns, height / rows)
    for position, device in enumerate(stage.mesh.device_ids):
        row, column = divmod(position, columns)
        corner = (x + column * cell[0] + 0.04, y + (rows - 1 - row) * cell[1] + 0.04)
        size = (cell[0] - 0.08, cell[1] - 0.08)
        full = Rectangle(corner, size[0], size[1] * min(1.0, filled), color=_MEMORY, linewidth=0)
        axes.add_patch(full)
        axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor="0.3", linewidth=0.8))
        axes.text(
            corner[0] + size[0] / 2,
            corner[1] + size[1] / 2,
            str(device),
            ha="center",
            va="center",
            fontsize=min(9.0, 30 * cell[0]),
        )


def _sent(plan: PlanFields) -> dict[tuple[int, int], int]:
    """By source and destination, the bytes that a stage sends to another one in a step."""
    sent: dict[tuple[int, int], int] = {}
    for t in plan.transfers:
        key = (t.source, t.destination)
        sent[key] = sent.get(key, 0) + t.n_bytes * runs_per_step(plan, t)
    return sent


def _count_detours(plan: PlanFields) -> int:
    return sum(abs(destination - source) > 1 for source, destination in _sent(plan))


def _draw_sent(axes: Axes, plan: PlanFields, left: float, bottom: float, top: float) -> None:
    """Draw arrows between neighbours, and over the boxes between other stages.

    Of two arrows between neighbours, the forward one is above.
    """
    detours = 0
    for (source, destination), n_bytes in _sent(plan).items():
        start, stop = (left + stage * (_BOX + _GAP) for stage in (source, destination))
        forwards = stop > start
        if abs(destination - source) == 1:
            tail, head = (start + _BOX, stop) if forwards else (start, stop + _BOX)
            y = bottom + (top - bottom) * (0.6 if forwards else 0.4)
            _draw_arrow(axes, (tail, y), (head, y))
        else:
            leave, arrive = (0.75, 0.25) if forwards else (0.15, 0.85)
            tail, head = start + leave * _BOX, stop + arrive * _BOX
            y = top + _DETOUR * (0.4 + detours)
            detours += 1
            axes.plot([tail, tail, head], [top, y, y], color=_COLOURS["transfer"], linewidth=1.4)
            _draw_arrow(axes, (head, y), (head, top))
        axes.text((tail + head) / 2, y + 0.05, bytes_text(n_bytes), ha="center", fontsize=8.5)


def _draw_arrow(axes: Axes, tail: tuple[float, float], head: tuple[float, float]) -> None:
    arrow = FancyArrowPatch(
        tail,
        head,
        arrowstyle="-|>",
        mutation_scale=14,
        shrinkA=0.0,
        color=_COLOURS["transfer"],
        linewidth=1.4,
    )
    axes.add_patch(arrow)


def _stage_axis(axes: Axes, plan: PlanFields) -> None:
    n_stages = len(plan.stages)
    axes.set_yticks(range(n_stages), [f"stage {i}" for i in range(n_stages)])
    axes.set_ylim(n_stages - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_bars(axes: Axes, rows: Sequence[Mapping[str, float]]) -> None:
    """Draw a stacked bar for each stage; each row has the widths of its parts by name."""
    left = [0.0] * len(rows)
    for name, colour in _COLOURS.items():
        if any(name in row for row in rows):
            widths = [row.get(name, 0.0) for row in rows]
            axes.barh(range(len(rows)), widths, 0.65, left, color=colour)
            left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlim(0.0, 1.05 * max(left) or 1.0)
    if not any(left):
        axes.text(0.5, 0.5, "none", ha="center", va="center", transform=axes.transAxes)


def _draw_bytes(axes: Axes, plan: PlanFields) -> None:
    rows: list[dict[str, float]] = [{} for _ in plan.stages]
    for row in sum_collectives(plan):
        rows[row.stage][row.kind] = rows[row.stage].get(row.kind, 0.0) + row.sent_bytes
    largest = max((sum(row.values()) for row in rows), default=0.0)
    exponent = min(3, max(0, math.floor(math.log(largest or 1.0, 1024))))
    unit = ("B", "KiB", "MiB", "GiB")[exponent]
    scaled = [{name: n / 1024**exponent for name, n in row.items()} for row in rows]
    _stage_axis(axes, plan)
    _draw_bars(axes, scaled)
    axes.set(xlabel=f"{unit} that a device sends in collectives, per step")


def _draw_times(axes: Axes, plan: PlanFields) -> None:
    """Draw where a stage's time in one step goes, apart from waiting."""
    rows: list[dict[str, float]] = []
    for index, stage in enumerate(plan.stages):
        each_s = stage.forward_s + stage.backward_s
        busy_s = plan.microbatches_of(index) * each_s + stage.apply_s
        sent_s = sum(c.time_s * c.repeats for c in stage.collectives)
        rows.append({"compute": max(0.0, busy_s - sent_s) * 1e3})
    for row in sum_collectives(plan):
        rows[row.stage][row.kind] = rows[row.stage].get(row.kind, 0.0) + row.time_s * 1e3
    for t in plan.transfers:
        sent_s = t.time_s * runs_per_step(plan, t)
        rows[t.source]["transfer"] = rows[t.source].get("transfer", 0.0) + sent_s * 1e3
    _stage_axis(axes, plan)
    _draw_bars(axes, rows)
    axes.set(xlabel="predicted ms per step")


def _shortened(line: str, length: int = 48) -> str:
    return line if len(line) <= length else line[: length - 1] + "…"
