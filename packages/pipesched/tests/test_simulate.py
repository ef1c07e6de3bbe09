from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipesched import (
    Costs,
    Edge,
    InternalError,
    Kind,
    Schedule,
    ScheduleError,
    Timeline,
    chain,
    eager_1f1b,
    gpipe,
    make,
    one_f_one_b,
    simulate,
)
from pipesched.testing import check_timeline, costs_of, steps

times = st.integers(0, 20)
stages = st.integers(1, 6)
microbatches = st.integers(1, 10)


@st.composite
def settings(draw: st.DrawFn, *, overlap: bool | None = None) -> tuple[Schedule, Costs]:
    """A schedule with edges, and costs of both."""
    schedule = draw(steps(communicates=None))
    return schedule, draw(costs_of(schedule, overlap=overlap))


@given(settings())
def test_everything_starts_exactly_when_it_can(setting: tuple[Schedule, Costs]) -> None:
    check_timeline(simulate(*setting))


@given(settings())
def test_overlap_never_costs_time(setting: tuple[Schedule, Costs]) -> None:
    schedule, costs = setting
    hidden, shown = (
        simulate(schedule, replace(costs, overlap=overlap)) for overlap in (True, False)
    )
    assert hidden.makespan_s <= shown.makespan_s


@given(settings(), st.data())
def test_a_slower_edge_never_saves_time(
    setting: tuple[Schedule, Costs], data: st.DataObject
) -> None:
    schedule, costs = setting
    more = {edge: (data.draw(times), data.draw(times)) for edge in schedule.edges}
    before = {edge: costs.link_s(edge) for edge in schedule.edges}
    slower = replace(
        costs,
        transfer_s={edge: before[edge][0] + more[edge][0] for edge in schedule.edges},
        latency_s={edge: before[edge][1] + more[edge][1] for edge in schedule.edges},
    )
    assert simulate(schedule, costs).makespan_s <= simulate(schedule, slower).makespan_s


@given(settings())
def test_bubble_is_what_is_not_busy(setting: tuple[Schedule, Costs]) -> None:
    timeline = simulate(*setting)
    for rank, bubble_s in enumerate(timeline.bubble_s):
        events = [e for e in timeline.events if e.rank == rank and e.action.edge is None]
        busy_s = sum(event.stop_s - event.start_s for event in events)
        assert bubble_s == timeline.makespan_s - busy_s
    if timeline.makespan_s:
        assert timeline.bubble_ratio == pytest.approx(
            sum(timeline.bubble_s) / len(timeline.bubble_s) / timeline.makespan_s
        )


@given(settings())
def test_bubble_of_the_spans_leaves_out_what_is_before_and_after(
    setting: tuple[Schedule, Costs],
) -> None:
    timeline = simulate(*setting)
    span_s = busy_s = 0.0
    computing = [event for event in timeline.events if event.action.edge is None]
    for rank in range(len(timeline.schedule.ranks)):
        events = [event for event in computing if event.rank == rank]
        if not events:  # a rank that the placement names for nothing
            continue
        span_s += events[-1].stop_s - events[0].start_s
        busy_s += sum(event.stop_s - event.start_s for event in events)
    assert timeline.span_bubble_ratio * span_s == pytest.approx(span_s - busy_s)


@given(stages, microbatches, times, times, times, times, st.booleans())
def test_eager_is_never_slower_than_1f1b_on_equal_stages(
    n_stages: int,
    n_microbatches: int,
    forward_s: int,
    backward_s: int,
    up_s: int,
    down_s: int,
    overlap: bool,
) -> None:
    edge_s = {e: up_s if e.src[0] is Kind.FORWARD else down_s for e in chain(n_stages)}
    costs = Costs(forward_s, backward_s, transfer_s=edge_s, overlap=overlap)
    eager, plain = (
        simulate(generator(n_stages, n_microbatches), costs).makespan_s
        for generator in (eager_1f1b, one_f_one_b)
    )
    assert eager <= plain


@given(stages, microbatches, times, times, st.data())
def test_eager_pays_only_for_the_first_way_up_and_the_last_way_down(
    n_stages: int, n_microbatches: int, forward_s: int, longer_s: int, data: st.DataObject
) -> None:
    transfer_s = data.draw(st.integers(0, forward_s))
    backward_s = forward_s + longer_s
    costs = Costs(forward_s, backward_s, transfer_s=transfer_s)
    compute_s = (n_microbatches + n_stages - 1) * (forward_s + backward_s)
    makespan_s = simulate(eager_1f1b(n_stages, n_microbatches), costs).makespan_s
    assert makespan_s == compute_s + 2 * (n_stages - 1) * transfer_s


def test_eager_hides_transfers_that_1f1b_waits_for() -> None:
    """The numbers of the README."""
    costs = Costs(1.0, 2.0, transfer_s=0.5)
    plain, eager = (simulate(make(name, 4, 8), costs) for name in ("1f1b", "eager-1f1b"))
    assert (plain.makespan_s, eager.makespan_s) == (41.0, 36.0)


def test_eager_can_be_slower_than_1f1b_on_unequal_stages() -> None:
    """A forward run early holds up a backward that the other ranks wait for."""
    costs = Costs([8.0, 6.0, 4.0], [6.0, 11.0, 1.0])
    plain, eager = (simulate(make(name, 3, 4), costs) for name in ("1f1b", "eager-1f1b"))
    assert (plain.makespan_s, eager.makespan_s) == (84.0, 86.0)


def starts_s(timeline: Timeline, rank: int) -> list[tuple[str, float]]:
    return [(str(e.action), e.start_s) for e in timeline.events if e.rank == rank]


def test_without_overlap_a_send_blocks_its_rank_until_it_has_arrived() -> None:
    costs = Costs(1.0, 1.0, transfer_s=2.0, latency_s=1.0, overlap=False)
    assert starts_s(simulate(gpipe(2, 2), costs), 0)[:2] == [("F0.0", 0.0), ("F0.1", 4.0)]


def test_one_link_carries_one_message_at_a_time_and_is_free_before_it_arrives() -> None:
    timeline = simulate(gpipe(2, 2), Costs(1.0, 1.0, transfer_s=3.0, latency_s=2.0))
    up = [t for t in timeline.transfers if t.edge == Edge.parse("F0->F1")]
    assert [(t.start_s, t.left_s, t.stop_s) for t in up] == [(1.0, 4.0, 6.0), (4.0, 7.0, 9.0)]


def test_stages_of_one_rank_pass_results_on_in_no_time() -> None:
    schedule = Schedule.parse("one stages=2 microbatches=1\nrank 0: F0.0 F1.0 B1.0 B0.0")
    timeline = simulate(schedule, Costs(1.0, 1.0, transfer_s=5.0))
    assert (timeline.makespan_s, timeline.transfers) == (4.0, ())


def test_an_idle_rank_holds_nothing() -> None:
    schedule = Schedule("idle", 1, 1, (*gpipe(1, 1).ranks, ()))
    timeline = simulate(schedule, Costs(1.0, 1.0))
    assert (timeline.peak_in_flight, timeline.bubble_s) == ((1, 0), (0.0, 2.0))


def test_nothing_takes_time_and_nothing_is_idle() -> None:
    timeline = simulate(gpipe(2, 2), Costs(0.0, 0.0))
    assert (timeline.bubble_ratio, timeline.span_bubble_ratio) == (0.0, 0.0)


def test_a_wrong_schedule_is_refused() -> None:
    with pytest.raises(ScheduleError, match="completeness"):
        simulate(Schedule("wrong", 1, 1, ((),)), Costs(1.0, 1.0))


def test_stages_without_edges_do_not_wait() -> None:
    timeline = simulate(replace(gpipe(3, 2), edges=()), Costs(1.0, 1.0))
    assert (timeline.makespan_s, timeline.transfers) == (4.0, ())


def test_ranks_that_wait_for_each_other_are_a_fault_of_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipesched.simulation.simulate.check", lambda schedule: None)
    stuck = Schedule.parse("stuck stages=2 microbatches=1\nrank 0: B0.0 F0.0\nrank 1: F1.0 B1.0")
    with pytest.raises(InternalError, match=r"to its end; got stuck, whose .* \[0, 0\] actions"):
        simulate(stuck, Costs(1.0, 1.0))
