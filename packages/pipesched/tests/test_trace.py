import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipesched import (
    ArgumentError,
    Costs,
    Schedule,
    Timeline,
    compare,
    eager_1f1b,
    make,
    one_f_one_b,
    simulate,
    to_trace,
)
from pipesched.base.edge import ENDPOINTS
from pipesched.testing import steps

COSTS = Costs(
    1.0, 2.0, transfer_s=0.5, latency_s=0.25, reduce_s=1.0, message_bytes=2, parameter_bytes=5
)


def events(*timelines: Timeline) -> list[dict[str, Any]]:
    trace = json.loads(to_trace(*timelines))
    shown: list[dict[str, Any]] = trace["traceEvents"]
    return shown


def of(phase: str, shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in shown if event["ph"] == phase]


@given(steps())
def test_every_action_is_once_on_the_track_of_its_rank(schedule: Schedule) -> None:
    shown = events(simulate(schedule, COSTS))
    on_ranks = of("X", shown) + of("i", shown)
    for rank, actions in enumerate(schedule.ranks):
        names = sorted(e["name"] for e in on_ranks if e["tid"] == rank + 1)
        assert names == sorted(map(str, actions))


@given(steps(), st.floats(1e-7, 10.0))
def test_slices_of_one_track_do_not_overlap(schedule: Schedule, unit_s: float) -> None:
    costs = Costs(unit_s, unit_s / 3, transfer_s=unit_s / 7, reduce_s=unit_s)
    shown = events(simulate(schedule, costs))
    slices = sorted(of("X", shown), key=lambda e: (e["pid"], e["tid"], e["ts"]))
    for one, other in pairwise(slices):
        if (one["pid"], one["tid"]) == (other["pid"], other["tid"]):
            assert one["ts"] + one["dur"] <= other["ts"]


@given(steps())
def test_an_arrow_leads_from_the_maker_to_the_user_of_every_message(schedule: Schedule) -> None:
    timeline = simulate(schedule, COSTS)
    shown = events(timeline)
    slices = {
        (ENDPOINTS[e.action.kind], e.action.stage, e.action.microbatch): e
        for e in timeline.events
        if e.action.kind in ENDPOINTS
    }
    starts, ends = ({e["id"]: e for e in of(phase, shown)} for phase in "sf")
    assert starts.keys() == ends.keys()
    assert len(starts) == len(timeline.transfers)
    for start, end, transfer in zip(
        starts.values(), ends.values(), timeline.transfers, strict=True
    ):
        assert start["name"] == end["name"] == f"{transfer.edge}.{transfer.microbatch}"
        for shown_end, endpoint in (start, transfer.edge.src), (end, transfer.edge.dst):
            event = slices[*endpoint, transfer.microbatch]
            assert shown_end["tid"] == event.rank + 1
            assert event.start_s < shown_end["ts"] / 1e6 < event.stop_s


@given(steps())
def test_counters_are_the_memory(schedule: Schedule) -> None:
    timeline = simulate(schedule, COSTS)
    counters = of("C", events(timeline))
    for rank, peak_bytes in enumerate(timeline.peak_bytes):
        of_rank = [e["args"]["bytes"] for e in counters if e["name"] == f"memory of rank {rank}"]
        assert max(of_rank) == peak_bytes


def test_two_timelines_share_no_track_and_no_arrow() -> None:
    one = events(simulate(eager_1f1b(2, 3), COSTS))
    both = events(simulate(eager_1f1b(2, 3), COSTS), simulate(make("zb-h1", 2, 3), COSTS))
    assert both[: len(one)] == one
    processes = [e["args"]["name"] for e in both if e["name"] == "process_name"]
    assert processes == ["eager-1f1b", "zb-h1"]
    tracks = [e["args"]["name"] for e in both if e["name"] == "thread_name"]
    assert tracks == 2 * ["rank 0", "rank 1", "rank 0 to rank 1", "rank 1 to rank 0"]
    identities = [e["id"] for e in of("s", both)]
    assert len(set(identities)) == len(identities)


def test_the_table_says_what_the_timelines_come_to() -> None:
    one, other = (simulate(f(4, 8), Costs(1.0, 2.0)) for f in (one_f_one_b, eager_1f1b))
    _, first, second = compare(one, other).splitlines()
    assert first.split() == ["1f1b", "4", "33", "s", "27.3%", f"{one.span_bubble_ratio:.1%}", "4"]
    assert second.split()[4:6] == ["+0.0%", "27.3%"]


def test_a_table_of_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one timeline; got none"):
        compare()
