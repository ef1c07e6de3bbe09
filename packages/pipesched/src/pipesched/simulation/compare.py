"""Compares timelines in a table."""

from __future__ import annotations

from pipesched.base.checks import check_kind
from pipesched.errors import ArgumentError
from pipesched.simulation.timeline import Timeline

_HEADS = ("schedule", "ranks", "makespan", "to first", "idle", "idle in span", "peak memory")


def compare(*timelines: Timeline) -> str:
    """A table with a row for each timeline.

    "to first" is how much longer a timeline takes than the first one. "idle" is the bubble ratio,
    the share of the time of all ranks in which they do not compute. "idle in span" leaves out the
    time before a rank's first action and after its last. "peak memory" is the most that any rank
    holds at once, in the bytes of the costs, which by default count microbatches of a stage.

    Raises:
        ArgumentError: There is no timeline.

    Examples:
        >>> from pipesched import Costs, make, simulate
        >>> costs = Costs(1.0, 2.0, transfer_s=0.5)
        >>> print(compare(*(simulate(make(n, 4, 8), costs) for n in ("1f1b", "eager-1f1b"))))
        schedule    ranks  makespan  to first   idle  idle in span  peak memory
        1f1b            4      41 s            41.5%         31.4%            4
        eager-1f1b      4      36 s    -12.2%  33.3%         20.0%            7
    """
    if not timelines:
        raise ArgumentError("a table compares at least one timeline; got none")
    for timeline in timelines:
        check_kind("timeline", timeline, Timeline)
    rows = [_HEADS, *(_row(timeline, timelines[0]) for timeline in timelines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        aligned = (f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        lines.append("  ".join([f"{name:<{widths[0]}}", *aligned]))
    return "\n".join(lines)


def _row(timeline: Timeline, first: Timeline) -> tuple[str, ...]:
    change = ""
    if timeline is not first and first.makespan_s:
        change = f"{timeline.makespan_s / first.makespan_s - 1.0:+.1%}"
    return (
        timeline.schedule.name,
        str(len(timeline.schedule.ranks)),
        f"{timeline.makespan_s:.4g} s",
        change,
        f"{timeline.bubble_ratio:.1%}",
        f"{timeline.span_bubble_ratio:.1%}",
        f"{max(timeline.peak_bytes):,.4g}",
    )
