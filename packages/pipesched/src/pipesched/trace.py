"""A timeline as a trace, for https://ui.perfetto.dev or chrome://tracing.

The trace is a JSON object in the trace event format [1]. A timeline has two processes: in
one, a track (thread) for each rank has a slice for each action; in the other, a track for each
link between two ranks has a slice for each message, for as long as it occupies the link. Arrows
(flows) lead from the action that makes a message to the one that uses it. A counter for each rank
shows the bytes that it holds. Seconds of the timeline are seconds of the trace.

References:
    [1] "Trace Event Format", Google,
        https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from pipesched.edge import ENDPOINTS
from pipesched.event import Event
from pipesched.looks import LOOKS
from pipesched.timeline import Timeline

_US_PER_S = 1e6  # the format counts microseconds


def to_trace(*timelines: Timeline) -> str:
    """The JSON text of a trace of these timelines, one below the other.

    An action that takes no time (a receive; a send, where sends overlap) is an instant.

    Examples:
        >>> from pipesched import Costs, make, simulate
        >>> trace = json.loads(to_trace(simulate(make("1f1b", 2, 2), Costs(1.0, 2.0))))
        >>> [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"][:3]
        ['F0.0', 'F0.1', 'B0.0']
    """
    flows = count(1)
    events = [
        event
        for number, timeline in enumerate(timelines)
        for event in _events(2 * number + 1, timeline, flows)
    ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _events(pid: int, timeline: Timeline, flows: Iterator[int]) -> Iterator[dict[str, Any]]:
    """The ranks as process `pid`, the links as the next one; threads count from 1."""
    yield _metadata("process_name", pid, 1, name=timeline.schedule.name)
    for rank, curve in enumerate(timeline.memory()):
        yield from _track(pid, rank + 1, f"rank {rank}")
        for held in curve:
            yield {
                "ph": "C",
                "name": f"memory of rank {rank}",
                "pid": pid,
                "ts": held.time_s * _US_PER_S,
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
        "ts": event.start_s * _US_PER_S,
        "args": {"stage": action.stage, "microbatch": action.microbatch},
    }
    if event.stop_s > event.start_s:
        return shown | {"ph": "X", "dur": (event.stop_s - event.start_s) * _US_PER_S}
    return shown | {"ph": "i", "s": "t"}


def _of_transfers(pid: int, timeline: Timeline, flows: Iterator[int]) -> Iterator[dict[str, Any]]:
    ends = {
        (ENDPOINTS[event.action.kind], event.action.stage, event.action.microbatch): event
        for event in timeline.events
        if event.action.kind in ENDPOINTS
    }
    tids: dict[tuple[int, int], int] = {}  # of links, in the order of their first messages
    for transfer in timeline.transfers:
        edge, microbatch = transfer.edge, transfer.microbatch
        maker, user = ends[*edge.src, microbatch], ends[*edge.dst, microbatch]
        link = maker.rank, user.rank
        if not tids:
            yield _metadata("process_name", pid + 1, 1, name=f"links of {timeline.schedule.name}")
        if link not in tids:
            tids[link] = len(tids) + 1
            yield from _track(pid + 1, tids[link], f"rank {link[0]} to rank {link[1]}")
        message = {"name": f"{edge}.{microbatch}", "cat": "transfer"}
        if transfer.left_s > transfer.start_s:
            yield message | {
                "ph": "X",
                "pid": pid + 1,
                "tid": tids[link],
                "ts": transfer.start_s * _US_PER_S,
                "dur": (transfer.left_s - transfer.start_s) * _US_PER_S,
            }
        flow = message | {"id": next(flows), "pid": pid}
        for phase, end in ({"ph": "s"}, maker), ({"ph": "f", "bp": "e"}, user):
            middle_s = (end.start_s + end.stop_s) / 2  # binds the flow's end to the action's slice
            yield flow | phase | {"tid": end.rank + 1, "ts": middle_s * _US_PER_S}


def _track(pid: int, tid: int, name: str) -> Iterator[dict[str, Any]]:
    yield _metadata("thread_name", pid, tid, name=name)
    yield _metadata("thread_sort_index", pid, tid, sort_index=tid)


def _metadata(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}
