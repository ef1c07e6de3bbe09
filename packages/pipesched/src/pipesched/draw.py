"""A timeline as text, after figure 4 of Zhuang et al. (MLSys 2023): a row a rank."""

from __future__ import annotations

from pipesched.errors import ArgumentError
from pipesched.event import Event
from pipesched.kind import Kind
from pipesched.timeline import Timeline

_FILL = {Kind.FORWARD: "░", Kind.BACKWARD: "▓"}

LEGEND = (
    f"0{_FILL[Kind.FORWARD] * 2} forward and 0{_FILL[Kind.BACKWARD] * 2} backward of microbatch 0"
)
"""What the cells of `draw` mean."""


def draw(timeline: Timeline, width: int = 96, span_s: float | None = None) -> str:
    """The timeline, to be read in a terminal.

    A cell starts with its microbatch's number where that fits. Starts and stops are rounded to the
    nearest column, so an action shorter than half a column may have none.

    Args:
        timeline: What to draw.
        width: Columns of the bars; labels and figures take about 50 more.
        span_s: Seconds that `width` stands for, to draw several timelines to one scale; the
            makespan if None.

    Raises:
        ArgumentError: No column, or a span shorter than the makespan.
    """
    makespan_s = timeline.makespan_s
    span_s = makespan_s if span_s is None else span_s
    if width < 1 or span_s < makespan_s:
        raise ArgumentError(
            "a drawing has at least one column and spans the whole timeline; "
            f"got width={width} and span_s={span_s:g} for {makespan_s:g} s"
        )
    columns_per_s = width / span_s if span_s else 0.0
    schedule = timeline.schedule
    lines = [
        f"{schedule.name}: {schedule.n_stages} stages, {schedule.n_microbatches} microbatches, "
        f"{makespan_s:.4g} s, {timeline.bubble_ratio:.1%} idle"
    ]
    bars = [[" "] * width for _ in schedule.ranks]
    for event in timeline.events:
        _paint(bars[event.rank], event, columns_per_s)
    labels = [f"rank {rank}" for rank in range(len(bars))]
    label_width = max(map(len, labels))
    for label, bar, idle_s, in_flight in zip(
        labels, bars, timeline.bubble_s, timeline.peak_in_flight, strict=True
    ):
        lines.append(
            f"{label:<{label_width}} |{''.join(bar)}| {idle_s:.4g} s idle, {in_flight} in flight"
        )
    return "\n".join(lines)


def _paint(bar: list[str], event: Event, columns_per_s: float) -> None:
    start, stop = (int(time * columns_per_s + 0.5) for time in (event.start_s, event.stop_s))
    number = str(event.action.microbatch)
    if len(number) > stop - start:
        number = ""
    bar[start:stop] = number + _FILL[event.action.kind] * (stop - start - len(number))
