"""Strategies for costs, and a check of timelines that shares no code with `pipesched.simulate`."""

from __future__ import annotations

from hypothesis import strategies as st

from pipesched.base.action import Action
from pipesched.base.event import Event, Transfer
from pipesched.base.kind import Kind
from pipesched.schedule.costs import Costs
from pipesched.schedule.schedule import Schedule
from pipesched.simulation.timeline import Timeline

SENDS_GRADIENT = (Kind.BACKWARD, Kind.INPUT_GRADIENT)


@st.composite
def costs_of(draw: st.DrawFn, schedule: Schedule, *, overlap: bool | None = None) -> Costs:
    """Costs for the schedule's stages and edges: small integers, so that all sums are exact.

    Args:
        draw: Passed by Hypothesis.
        schedule: The schedule whose stages and edges the costs are for.
        overlap: Whether computing and sending overlap; None for both possibilities.
    """
    numbers = st.integers(0, 20)
    per_stage = st.lists(numbers, min_size=schedule.n_stages, max_size=schedule.n_stages)
    per_edge = st.fixed_dictionaries(dict.fromkeys(schedule.edges, numbers))
    return Costs(
        draw(numbers | per_stage),
        input_gradient_s=draw(numbers | per_stage),
        weight_gradient_s=draw(numbers | per_stage),
        recompute_s=draw(st.none() | per_stage),
        reduce_s=draw(numbers),
        update_s=draw(numbers),
        transfer_s=draw(numbers | per_edge),
        latency_s=draw(numbers | per_edge),
        message_bytes=draw(numbers | per_edge),
        overlap=draw(st.booleans()) if overlap is None else overlap,
        activation_bytes=draw(numbers | per_stage),
        weight_gradient_bytes=draw(st.none() | per_stage),
        checkpoint_bytes=draw(numbers),
        parameter_bytes=draw(numbers | per_stage),
    )


def check_timeline(timeline: Timeline) -> None:
    """Check that a timeline keeps the order of its schedule and waits for exactly what it has to.

    Every start must equal the latest time of what it waits for, so the timeline is possible and
    nothing could start earlier. The comparison is exact, so use times whose sums are exact in
    floating point.

    Raises:
        AssertionError: An event is too early, too late, missing, or in another order.
    """
    schedule, costs = timeline.schedule, timeline.costs
    listed = [(rank, action) for rank, actions in enumerate(schedule.ranks) for action in actions]
    assert [(event.rank, event.action) for event in timeline.events] == listed
    ran = {event.action: event for event in timeline.events if event.action.microbatch is not None}
    rank_of = schedule.placement.rank
    moves = {
        (edge, m): (rank_of(edge.src[1], m), rank_of(edge.dst[1], m))
        for edge in schedule.edges
        for m in range(schedule.n_microbatches)
    }
    moved = {(t.edge, t.microbatch): t for t in timeline.transfers}
    assert len(moved) == len(timeline.transfers)
    assert moved.keys() == {message for message, (src, dst) in moves.items() if src != dst}

    def sender(transfer: Transfer) -> Event:
        if schedule.communicates:
            return ran[Action.send(transfer.edge, transfer.microbatch)]
        return _end(ran, transfer.edge.src, transfer.microbatch)

    links: dict[tuple[int, int], list[Transfer]] = {}
    for message, transfer in moved.items():
        links.setdefault(moves[message], []).append(transfer)
    for transfers in links.values():
        link_free_s = 0.0
        for transfer in sorted(transfers, key=lambda t: timeline.events.index(sender(t))):
            source = sender(transfer)
            produced_s = source.start_s if schedule.communicates else source.stop_s
            transfer_s, latency_s = costs.link_s(transfer.edge)
            assert transfer.start_s == max(link_free_s, produced_s), transfer
            assert transfer.left_s == transfer.start_s + transfer_s, transfer
            assert transfer.stop_s == transfer.left_s + latency_s, transfer
            link_free_s = transfer.left_s

    def free_s(before: Event | None, event: Event) -> float:
        """When the rank is done with the event before this one."""
        if before is None or before.rank != event.rank:
            return 0.0
        sent = [] if costs.overlap else [t.stop_s for t in moved.values() if sender(t) is before]
        return max([before.stop_s, *sent])

    pairs = list(zip([None, *timeline.events], timeline.events, strict=False))
    reach_s: dict[int, float] = {}  # by stage: when the last of its copies can reduce
    for before, event in pairs:
        if event.action.kind is Kind.REDUCE:
            stage = event.action.stage
            reach_s[stage] = max(reach_s.get(stage, 0.0), free_s(before, event))
    for before, event in pairs:
        action = event.action
        waits = [t.stop_s for t in timeline.transfers if _uses(action, t)]
        if action.kind is Kind.REDUCE:
            waits.append(reach_s[action.stage])
        assert event.start_s == max([free_s(before, event), *waits]), event
        if action.edge is None:
            seconds = costs.seconds(action.kind, schedule.n_stages)[action.stage]
            assert event.stop_s == event.start_s + seconds, event
        elif action.kind is Kind.SEND and not costs.overlap:
            assert event.stop_s == next(t.stop_s for t in moved.values() if sender(t) is event)
        else:
            assert event.stop_s == event.start_s, event


def _end(ran: dict[Action, Event], end: tuple[Kind, int], microbatch: int) -> Event:
    kind, stage = end
    whole = Action(kind, stage, microbatch)
    return ran[whole if whole in ran else Action(Kind.INPUT_GRADIENT, stage, microbatch)]


def _uses(action: Action, transfer: Transfer) -> bool:
    kind, stage = transfer.edge.dst
    takes = (Kind.FORWARD,) if kind is Kind.FORWARD else SENDS_GRADIENT
    return action.kind in takes and (action.stage, action.microbatch) == (
        stage,
        transfer.microbatch,
    )
