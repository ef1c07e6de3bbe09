"""Draws a timeline as text with a row for each rank, as figure 4 of Zhuang et al. (MLSys 2023)."""

from __future__ import annotations

from pipesched.base.checks import MOST, check_kind, is_amount, is_count
from pipesched.base.event import Event
from pipesched.errors import ArgumentError
from pipesched.report.style import LOOKS, kinds_seen, title
from pipesched.simulation.timeline import Timeline


def draw(timeline: Timeline, width: int = 96, span_s: float | None = None) -> str:
    """The timeline as text, to be printed in a terminal.

    A rank runs one action at a time, and has a row for each of its stages: an action is in the row
    of its stage. A cell starts with the number of its microbatch, if the number fits; `legend`
    says what the fill of a cell means. Starts and stops are rounded to the nearest column, so an
    action that is shorter than half a column may have no cell.

    Args:
        timeline: The timeline to draw.
        width: Columns of the bars; labels and numbers take about 50 more.
        span_s: Seconds that `width` stands for, to draw several timelines to the same scale; the
            makespan if None.

    Raises:
        ArgumentError: `width` is below 1 or too large, or the span is shorter than the makespan.

    Examples:
        >>> from pipesched import Costs, make, simulate
        >>> print(draw(simulate(make("zb-v", 4, 2), Costs(1.0, 2.0)), width=28))
        zb-v: 4 stages, 2 microbatches, 14 s, 14.3% idle
        rank 0 stage 0 |0░1░              0▒0█  1▒1█| 2 s idle, 3 in flight
               stage 3 |      0░0▒0█1░1▒1█          |
        rank 1 stage 1 |  0░  1░      0▒0█    1▒1█  | 2 s idle, 4 in flight
               stage 2 |    0░  1░0▒0█    1▒1█      |
    """
    check_kind("timeline", timeline, Timeline)
    makespan_s = timeline.makespan_s
    span_s = makespan_s if span_s is None else span_s
    if not is_count(width) or width > MOST or not is_amount(span_s) or span_s < makespan_s:
        raise ArgumentError(
            "a drawing has at least one column, and its span contains the whole timeline; "
            f"got width={width!r} and span_s={span_s!r} for {makespan_s:g} s"
        )
    columns_per_s = width / span_s if span_s else 0.0
    schedule = timeline.schedule
    labels: list[str] = []
    figures: list[str] = []
    row_of: dict[tuple[int, int], int] = {}  # row of each rank and stage
    for rank, (idle_s, in_flight) in enumerate(
        zip(timeline.bubble_s, timeline.peak_in_flight, strict=True)
    ):
        stages = schedule.placement.stages_of(rank)
        name = f"rank {rank}"
        of_rank = [f"{name} stage {stage}" for stage in stages] if len(stages) > 1 else [name]
        row_of |= {(rank, stage): len(labels) + n for n, stage in enumerate(stages)}
        labels += [of_rank[0], *(" " * len(name) + label[len(name) :] for label in of_rank[1:])]
        figures += [f" {idle_s:.4g} s idle, {in_flight} in flight", *[""] * (len(of_rank) - 1)]
    bars = [[" "] * width for _ in labels]
    for event in timeline.events:
        if event.stop_s > event.start_s:
            _paint(bars[row_of[event.rank, event.action.stage]], event, columns_per_s)
    label_width = max(map(len, labels))
    rows = [
        f"{label:<{label_width}} |{''.join(bar)}|{figure}"
        for label, bar, figure in zip(labels, bars, figures, strict=True)
    ]
    return "\n".join([title(timeline), *rows])


def legend(*timelines: Timeline) -> str:
    """A line that says what the cells of `draw` mean, for the kinds in these timelines."""
    for timeline in timelines:
        check_kind("timeline", timeline, Timeline)
    kinds = ", ".join(
        f"{LOOKS[kind].fill * 2} {LOOKS[kind].name}" for kind in kinds_seen(timelines)
    )
    return f"{kinds or 'nothing takes time'}; a cell starts with its microbatch's number"


def _paint(bar: list[str], event: Event, columns_per_s: float) -> None:
    start, stop = (int(time * columns_per_s + 0.5) for time in (event.start_s, event.stop_s))
    microbatch = event.action.microbatch
    number = "" if microbatch is None else str(microbatch)
    if len(number) > stop - start:
        number = ""
    bar[start:stop] = number + LOOKS[event.action.kind].fill * (stop - start - len(number))
