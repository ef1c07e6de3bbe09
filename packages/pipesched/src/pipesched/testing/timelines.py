"""Judge a timeline. Shares no code with `pipesched.simulate`."""

from __future__ import annotations

from collections.abc import Mapping

from pipesched.action import Action
from pipesched.edge import Edge
from pipesched.kind import Kind
from pipesched.timeline import Timeline, Transfer


def check_timeline(
    timeline: Timeline,
    seconds: Mapping[tuple[Kind, int], float],
    edge_s: Mapping[Edge, float],
) -> None:
    """A timeline (with overlap) keeps the schedule's order and waits for exactly what it must.

    Every start equals the latest of what it waits for, so the timeline is both possible and the
    earliest. Exact: use times whose sums are exact in floating point.

    Args:
        timeline: What to judge.
        seconds: Of each stage's forward and backward.
        edge_s: Of each edge.

    Raises:
        AssertionError: Something happens too early, too late, not at all, or in another order.
    """
    schedule = timeline.schedule
    rank_of = {action.stage: rank for rank, row in enumerate(schedule.ranks) for action in row}
    stop_s = {event.action: event.stop_s for event in timeline.events}
    arrival_s = {(t.edge, t.microbatch): t.stop_s for t in timeline.transfers}
    wanted = {(edge, m) for edge in edge_s for m in range(schedule.n_microbatches)}
    assert arrival_s.keys() == wanted
    assert len(timeline.transfers) == len(wanted)
    for rank, actions in enumerate(schedule.ranks):
        events = [event for event in timeline.events if event.rank == rank]
        assert [event.action for event in events] == list(actions)
        free_s = 0.0
        for event in events:
            here = (event.action.kind, event.action.stage)
            assert event.action.microbatch is not None
            waits = [arrival_s[e, event.action.microbatch] for e in edge_s if e.dst == here]
            assert event.start_s == max([free_s, *waits]), event
            assert event.stop_s == event.start_s + seconds[here], event
            free_s = event.stop_s
    links: dict[tuple[int, int], list[Transfer]] = {}
    for transfer in timeline.transfers:
        link = rank_of[transfer.edge.src[1]], rank_of[transfer.edge.dst[1]]
        links.setdefault(link, []).append(transfer)
    for transfers in links.values():
        free_s = 0.0
        for transfer in sorted(transfers, key=lambda t: (t.start_s, t.stop_s)):
            made_s = stop_s[Action(*transfer.edge.src, transfer.microbatch)]
            assert transfer.start_s == max(free_s, made_s), transfer
            assert transfer.stop_s == transfer.start_s + edge_s[transfer.edge], transfer
            free_s = transfer.stop_s
