"""Draws a stage plan as text: a timeline with a row for each stage, and the memory of each."""

from __future__ import annotations

from costmodel import in_flight
from shardspec.amounts import bytes_text, seconds_text

from stagecut.base.checks import is_count
from stagecut.errors import InvalidInputError
from stagecut.plan.stage_plan_fields import StagePlanFields
from stagecut.plan.timeline import MicrobatchPass, simulate

_FILL = {"forward": "░", "backward": "▓"}
_FULL = "█"
_MOST_COLUMNS = 100_000
_ASCII = str.maketrans("░▓█", ".#=")
_DRAWN = 8
"""The least number of microbatches in a timeline. With many stages it shows twice as many as there
are stages, so that one sees the pipeline fill and drain."""


def timeline_of(plan: StagePlanFields) -> tuple[tuple[MicrobatchPass, ...], ...]:
    """The actions of each stage in a step with only a few microbatches, for drawing."""
    n_microbatches = min(plan.n_microbatches, max(_DRAWN, 2 * len(plan.stages)))
    held = [min(stage.in_flight, n_microbatches) for stage in plan.stages]
    return simulate([stage.time_s for stage in plan.stages], held, n_microbatches)


def drawn_as(plan: StagePlanFields) -> str:
    """A line that says how a drawing differs from the plan's schedule; empty if it does not differ.

    Some schedules split backward in two. When each half runs is not part of Eq. 2, and the timeline
    does not show it.
    """
    if not in_flight(plan.schedule, 1, 2, 2).weight_gradients:
        return ""
    return f"drawn with whole backwards; {plan.schedule} runs gradients of weights in its bubbles"


def draw(plan: StagePlanFields, *, width: int = 72, ascii: bool = False) -> str:
    """The timeline and the memory of each stage, to be printed in a terminal.

    Each bar starts with the number of its microbatch, if the number fits. An action that is shorter
    than half a column may have no bar. Work done once a step is not shown.

    Args:
        plan: The plan to draw.
        width: Columns of the bars; labels and numbers take about 30 more.
        ascii: Draw with `.`, `#` and `=`.

    Raises:
        InvalidInputError: `width` is below 1, or above 100,000.
    """
    if not is_count(width) or width > _MOST_COLUMNS:
        raise InvalidInputError(
            f"a drawing has at most {_MOST_COLUMNS:,} columns, and at least one column; "
            f"got width={width!r}"
        )
    stages = timeline_of(plan)
    end_s = max(actions[-1].stop_s for actions in stages)
    n_drawn = sum(action.kind == "forward" for action in stages[0])
    lines = [
        f"0{_FILL['forward'] * 2} forward, 0{_FILL['backward'] * 2} backward of microbatch 0; "
        f"{n_drawn} of {plan.n_microbatches} microbatches, {seconds_text(end_s)}"
    ]
    if drawn_as(plan):
        lines.append(drawn_as(plan))
    label = len(str(len(stages) - 1))
    for number, actions in enumerate(stages):
        bar = [" "] * width
        for action in actions:
            _paint(bar, action, width / end_s if end_s else 0.0)
        lines.append(f"stage {number:>{label}} |{''.join(bar)}|")
    peaks = [stage.peak_bytes for stage in plan.stages]
    most = max(*peaks, plan.memory_bytes or 0, 1)
    limit = "" if plan.memory_bytes is None else f" of {bytes_text(plan.memory_bytes)}"
    lines += ["", f"{_FULL} memory of a device at its peak{limit}"]
    for number, peak in enumerate(peaks):
        bar_text = _FULL * round(width * peak / most)
        lines.append(f"stage {number:>{label}} |{bar_text:<{width}}| {bytes_text(peak)}")
    text = "\n".join(lines)
    return text.translate(_ASCII) if ascii else text


def _paint(bar: list[str], action: MicrobatchPass, columns_per_s: float) -> None:
    start, stop = (int(time * columns_per_s + 0.5) for time in (action.start_s, action.stop_s))
    number = str(action.microbatch)
    if len(number) > stop - start:
        number = ""
    bar[start:stop] = number + _FILL[action.kind] * (stop - start - len(number))
