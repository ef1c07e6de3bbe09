"""Run a schedule on paper: when does every action start and stop?

The model. A rank runs its actions in order, one at a time, each as soon as all that its edges
bring has arrived. Between every two ranks there is one link a direction (full duplex); it carries
one transfer at a time, in the order in which the results were made. Links do not slow each other
down, so hosts that share a network card are not modelled here: price that into `transfer_s`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from pipesched.action import Action
from pipesched.check import check
from pipesched.edge import Edge, Endpoint, chain, checked_edges
from pipesched.errors import ArgumentError
from pipesched.kind import Kind
from pipesched.schedule import Schedule
from pipesched.timeline import Event, Timeline, Transfer


def simulate(
    schedule: Schedule,
    forward_s: float | Sequence[float],
    backward_s: float | Sequence[float],
    transfer_s: float | Mapping[Edge, float] = 0.0,
    *,
    overlap: bool = True,
) -> Timeline:
    """The timeline of one step.

    Args:
        schedule: Any schedule that `check` accepts.
        forward_s: Seconds of one microbatch's forward, the same for all stages or one for each.
        backward_s: The same of the backward.
        transfer_s: Seconds to bring one microbatch over an edge. A number stands for the edges of
            `chain`; a mapping says which edges there are, and those alone make stages wait.
        overlap: Whether a rank computes while it sends. If not, a send blocks its rank until it
            has arrived. Receives never block longer than the wait for their data: with senders
            that wait for their receiver, 1F1B would deadlock.

    Raises:
        ScheduleError: `check` refuses the schedule.
        EdgeError: An edge to a stage that is not there.
        ArgumentError: A time that is negative or not finite, or not one time for each stage.
    """
    check(schedule)
    n_stages = schedule.n_stages
    seconds = {
        Kind.FORWARD: _per_stage("forward_s", forward_s, n_stages),
        Kind.BACKWARD: _per_stage("backward_s", backward_s, n_stages),
    }
    edge_s = _per_edge(transfer_s, n_stages)
    outgoing: dict[Endpoint, list[Edge]] = {}
    incoming: dict[Endpoint, list[Edge]] = {}
    for edge in edge_s:
        outgoing.setdefault(edge.src, []).append(edge)
        incoming.setdefault(edge.dst, []).append(edge)

    placement = schedule.placement
    events: list[list[Event]] = [[] for _ in schedule.ranks]
    transfers: list[Transfer] = []
    arrival_s: dict[tuple[Edge, int], float] = {}
    rank_free_s = [0.0] * len(schedule.ranks)
    link_free_s: dict[tuple[int, int], float] = {}

    def run(rank: int, action: Action, start_s: float) -> None:
        microbatch = _microbatch(action)
        stop_s = start_s + seconds[action.kind][action.stage]
        events[rank].append(Event(rank, action, start_s, stop_s))
        rank_free_s[rank] = stop_s
        for edge in outgoing.get((action.kind, action.stage), ()):
            link = (rank, placement.rank(edge.dst[1], microbatch))
            leave_s = max(stop_s, link_free_s.get(link, 0.0))
            arrive_s = leave_s + edge_s[edge]
            transfers.append(Transfer(edge, microbatch, leave_s, arrive_s))
            arrival_s[edge, microbatch] = link_free_s[link] = arrive_s
            if not overlap:
                rank_free_s[rank] = max(rank_free_s[rank], arrive_s)

    # `check` leaves no circle of waiting ranks, so every round runs something until all is run.
    n_left = sum(map(len, schedule.ranks))
    while n_left:
        for rank, actions in enumerate(schedule.ranks):
            for action in actions[len(events[rank]) :]:
                needed = [
                    (edge, _microbatch(action))
                    for edge in incoming.get((action.kind, action.stage), ())
                ]
                if not all(key in arrival_s for key in needed):
                    break
                run(rank, action, max([rank_free_s[rank], *(arrival_s[key] for key in needed)]))
                n_left -= 1

    return Timeline(
        schedule,
        tuple(event for rank_events in events for event in rank_events),
        tuple(
            sorted(
                transfers, key=lambda t: (t.start_s, placement.rank(t.edge.src[1], t.microbatch))
            )
        ),
    )


def _microbatch(action: Action) -> int:
    assert action.microbatch is not None, "`check` accepts forwards and backwards only"
    return action.microbatch


def _per_stage(name: str, times: float | Sequence[float], n_stages: int) -> tuple[float, ...]:
    values = tuple(times) if isinstance(times, Iterable) else (times,) * n_stages
    if len(values) != n_stages:
        raise ArgumentError(
            f"{name} is one number, or one for each stage; "
            f"got {len(values)} numbers for n_stages={n_stages}"
        )
    for value in values:
        _check_time(name, value)
    return values


def _per_edge(times: float | Mapping[Edge, float], n_stages: int) -> dict[Edge, float]:
    by_edge = times if isinstance(times, Mapping) else dict.fromkeys(chain(n_stages), times)
    checked_edges(by_edge, n_stages)
    for value in by_edge.values():
        _check_time("transfer_s", value)
    return dict(by_edge)


def _check_time(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ArgumentError(f"a time is finite and not negative; got {value} in {name}")
