"""Draws a stage plan as a picture, with matplotlib (extra `plot`), imported when it is needed."""

from __future__ import annotations

from importlib.util import find_spec
from os import PathLike

from shardspec.amounts import seconds_text
from shardspec.report.figure import new_figure, save_figure, wrong_name

from stagecut.errors import InvalidInputError, MissingExtraError
from stagecut.plan.stage_plan_fields import StagePlanFields
from stagecut.plan.text import drawn_as, timeline_of
from stagecut.slice import phrases

_COLOURS = {"forward": "#9ecae1", "backward": "#fdae6b"}
_MEMORY = {"fixed": "#74c476", "in flight": "#c7e9c0", "temporary": "#d9d9d9"}


def picture(plan: StagePlanFields, path: str | PathLike[str]) -> None:
    """Write the timeline and the memory of each stage to a PNG or SVG file.

    The same plan gives the same file, byte for byte, with one version of matplotlib.

    Args:
        plan: The plan to draw.
        path: The file; its suffix, .png or .svg, decides the format.

    Raises:
        InvalidInputError: The suffix is neither .png nor .svg.
        MissingExtraError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    check_picture(path)
    figure = new_figure(12.0, 1.6 + 0.4 * len(plan.stages))
    timeline, memory = figure.subplots(1, 2, sharey=True, width_ratios=(3, 1))
    shown: set[str] = set()
    stages = timeline_of(plan)
    for number, actions in enumerate(stages):
        for kind in ("forward", "backward"):
            bars = [(a.start_s, a.stop_s - a.start_s) for a in actions if a.kind == kind]
            timeline.broken_barh(
                bars,
                (number - 0.4, 0.8),
                color=_COLOURS[kind],
                edgecolor="white",
                linewidth=0.3,
                label="" if kind in shown else kind,
            )
            shown.add(kind)
        stage = plan.stages[number]
        parts = (
            stage.cost.fixed_bytes,
            stage.in_flight * (stage.cost.activation_bytes + stage.held_bytes),
            stage.cost.temporary_bytes,
        )
        left = 0.0
        for (part, colour), n_bytes in zip(_MEMORY.items(), parts, strict=True):
            label = "" if number else part
            memory.barh(number, n_bytes / 2**30, left=left, color=colour, label=label)
            left += n_bytes / 2**30
    if plan.memory_bytes is not None:
        limit = plan.memory_bytes / 2**30
        memory.axvline(limit, color="black", linewidth=1)
        memory.set_xlim(0.0, 1.05 * limit)
    labels = [
        f"stage {number}: layers {phrases.layers(stage.first, stage.last)} on "
        f"{phrases.shape(stage.submesh)}"
        for number, stage in enumerate(plan.stages)
    ]
    timeline.set_yticks(range(len(labels)), labels)
    timeline.set_ylim(len(labels) - 0.5, -0.5)
    timeline.set_xlim(0.0, max(actions[-1].stop_s for actions in stages) or 1.0)
    n_drawn = sum(action.kind == "forward" for action in stages[0])
    drawn = f"seconds, {n_drawn} of {plan.n_microbatches} microbatches"
    timeline.set_xlabel(f"{drawn}\n{drawn_as(plan)}" if drawn_as(plan) else drawn)
    memory.set_xlabel("GiB a device")
    for axes in (timeline, memory):
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    title = f"{plan.title}: " if plan.title else ""
    figure.suptitle(f"{title}{seconds_text(plan.time_s)} a step, {plan.schedule}")
    save_figure(figure, path, "stagecut")


def check_picture(path: str | PathLike[str]) -> None:
    """Check that a picture could be drawn, before anything is computed for it.

    Raises:
        InvalidInputError: The suffix is neither .png nor .svg.
        MissingExtraError: matplotlib is not installed.
    """
    if problem := wrong_name(path):
        raise InvalidInputError(problem)
    if find_spec("matplotlib") is None:
        raise MissingExtraError("a picture", "plot")
