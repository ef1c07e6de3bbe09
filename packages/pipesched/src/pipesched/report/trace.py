"""Writes timelines as a trace, for https://ui.perfetto.dev or chrome://tracing.

The trace is a JSON object in the trace event format [1]. Each timeline is a process. It has a track
(thread) for each rank, with a slice for each action; and a track for each link between two ranks,
with a slice for each message, as long as the message occupies the link. Arrows (flows) lead from
the action that produces a message to the one that uses it. A counter for each rank shows the bytes
that it holds.

Seconds of the timeline are seconds of the trace, rounded to whole microseconds, because Perfetto
drops slices of a track that overlap even by a fraction of a microsecond.

References:
    [1] "Trace Event Format", Google,
        https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from pipesched.base.checks import check_kind
from pipesched.base.edge import ENDPOINTS
from pipesched.base.event import Event
from pipesched.report.style import LOOKS
from pipesched.simulation.timeline import Timeline


def to_trace(*timelines: Timeline) -> str:
    """A trace of these timelines, one below the other, as JSON text.

    An action that takes no time is an instant: a receive, and a send if sends overlap.

    Examples:
        >>> from pipesched import Costs, make, simulate
        >>> trace = json.loads(to_trace(simulate(make("1f1b", 2, 2), Costs(1.0, 2.0))))
        >>> [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"][:3]
        ['F0.0', 'F0.1', 'B0.0']
    """
    for timeline in timelines:
        check_kind("timeline", timeline, Timeline)
    flows = count(1)
    events = [
        event
        for pid, timeline in enumerate(timelines, start=1)
        for event in _events(pid, timeline, flows)
    ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _events(pid: int, timeline: Timeline, flows: Iterator[int]) -> Iterator[dict[str, Any]]:
    yield _metadata("process_name", pid, 1, name=timeline.schedule.name)
    for rank, curve in enumerate(timeline.memory()):
        yield from _track(pid, rank + 1, f"rank {rank}")
        for held in curve:
            yield {
                "ph": "C",
                "name": f"memory of rank {rank}",
                "pid": pid,
                "ts": _us(held.time_s),
                "args": {"bytes": held.total_bytes},
            }
    for event in timeline.events:
        yield _of_action(pid, event)
    yield from _of_transfers(pid, timeline, flows)


def _of_action(pid: int, event: Event) -> dict[str, Any]:
    action = event.action
    look = LOOKS.get(action.kind)
    shown = {
        "name": str(action),
        "cat": look.name if look else "receive",
        "pid": pid,
        "tid": event.rank + 1,
        "args": {"stage": action.stage, "microbatch": action.microbatch},
    }
    return shown | _when(event.start_s, event.stop_s)


def _of_transfers(pid: int, timeline: Timeline, flows: Iterator[int]) -> Iterator[dict[str, Any]]:
    ends = {
        (ENDPOINTS[event.action.kind], event.action.stage, event.action.microbatch): event
        for event in timeline.events
        if event.action.kind in ENDPOINTS
    }
    tids: dict[tuple[int, int], int] = {}  # tracks of links, in the order of their first messages
    for transfer in timeline.transfers:
        edge, microbatch = transfer.edge, transfer.microbatch
        producer, user = ends[*edge.src, microbatch], ends[*edge.dst, microbatch]
        link = producer.rank, user.rank
        if link not in tids:
            tids[link] = len(timeline.schedule.ranks) + len(tids) + 1
            yield from _track(pid, tids[link], f"rank {link[0]} to rank {link[1]}")
        message = {"name": f"{edge}.{microbatch}", "cat": "transfer", "pid": pid}
        yield message | {"tid": tids[link]} | _when(transfer.start_s, transfer.left_s)
        flow = message | {"id": next(flows)}
        for phase, end in ({"ph": "s"}, producer), ({"ph": "f", "bp": "e"}, user):
            # In the middle of the action, as the end of a flow binds to the slice that contains it.
            middle_us = (_us(end.start_s) + _us(end.stop_s)) // 2
            yield flow | phase | {"tid": end.rank + 1, "ts": middle_us}


def _us(time_s: float) -> int:
    return round(time_s * 1e6)


def _when(start_s: float, stop_s: float) -> dict[str, Any]:
    start_us, stop_us = _us(start_s), _us(stop_s)
    if start_us == stop_us:
        return {"ph": "i", "s": "t", "ts": start_us}
    return {"ph": "X", "ts": start_us, "dur": stop_us - start_us}


def _track(pid: int, tid: int, name: str) -> Iterator[dict[str, Any]]:
    yield _metadata("thread_name", pid, tid, name=name)
    yield _metadata("thread_sort_index", pid, tid, sort_index=tid)


def _metadata(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}
