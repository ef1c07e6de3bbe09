"""How actions look, in every drawing: a fill in a terminal, a colour in a picture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pipesched.base.kind import Kind
from pipesched.simulation.timeline import Timeline


class Look(NamedTuple):
    """Of one kind of action."""

    name: str
    """For legends."""
    fill: str
    """One character."""
    colour: str
    """As #rrggbb; of a rank's first stage, those of its later stages are darker."""


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
"""By kind, in the order of legends; a receive takes no time, so it has none."""


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
    """A line that says what is drawn, and what it comes to."""
    schedule = timeline.schedule
    return (
        f"{schedule.name}: {schedule.n_stages} stages, {schedule.n_microbatches} microbatches, "
        f"{timeline.makespan_s:.4g} s, {timeline.bubble_ratio:.1%} idle"
    )
