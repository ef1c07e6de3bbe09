"""The look of each kind of action in all drawings: a fill in a terminal, a colour in a picture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pipesched.base.kind import Kind
from pipesched.simulation.timeline import Timeline


class Look(NamedTuple):
    """The look of one kind of action."""

    name: str
    """The name in legends."""
    fill: str
    """The character that fills its cells."""
    colour: str
    """The colour as #rrggbb for the first stage of a rank; those of later stages are darker."""


LOOKS = {
    Kind.FORWARD: Look("forward", "░", "#9ecae1"),
    Kind.BACKWARD: Look("backward", "▓", "#fdae6b"),
    Kind.INPUT_GRADIENT: Look("input gradient", "▒", "#ffe08a"),
    Kind.WEIGHT_GRADIENT: Look("weight gradient", "█", "#a1d99b"),
    Kind.RECOMPUTE: Look("recompute", "~", "#d0d1e6"),
    Kind.REDUCE: Look("reduce", "=", "#bcbddc"),
    Kind.UPDATE: Look("update", "*", "#bdbdbd"),
    Kind.SEND: Look("send", ">", "#e0e0e0"),
}
"""The look of each kind, in the order of legends; a receive takes no time, so it has none."""


def kinds_seen(timelines: Iterable[Timeline]) -> list[Kind]:
    """The kinds of the actions that take time, in the order of legends."""
    seen = {
        event.action.kind
        for timeline in timelines
        for event in timeline.events
        if event.stop_s > event.start_s
    }
    return [kind for kind in LOOKS if kind in seen]


def title(timeline: Timeline) -> str:
    """A line with the name, sizes, makespan and bubble ratio of a timeline."""
    schedule = timeline.schedule
    return (
        f"{schedule.name}: {schedule.n_stages} stages, {schedule.n_microbatches} microbatches, "
        f"{timeline.makespan_s:.4g} s, {timeline.bubble_ratio:.1%} idle"
    )
