from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipesched import (
    NAMES,
    ArgumentError,
    Edge,
    Kind,
    Schedule,
    ScheduleError,
    chain,
    eager_1f1b,
    gpipe,
    make,
    one_f_one_b,
    simulate,
)
from pipesched.testing import check_timeline, edge_sets, schedules

# Small integers, so that all sums are exact.
times = st.integers(0, 20).map(float)
stages = st.integers(1, 6)
microbatches = st.integers(1, 10)


@st.composite
def settings(draw: st.DrawFn) -> tuple[Schedule, list[float], list[float], dict[Edge, float]]:
    """A schedule, its stages' times, and edges with theirs."""
    schedule = draw(schedules())
    per_stage = st.lists(times, min_size=schedule.n_stages, max_size=schedule.n_stages)
    edges = draw(edge_sets(schedule.n_stages))
    return schedule, draw(per_stage), draw(per_stage), {edge: draw(times) for edge in edges}


@given(settings())
def test_everything_starts_exactly_when_it_can(setting) -> None:
    schedule, forward_s, backward_s, edge_s = setting
    seconds = {(Kind.FORWARD, s): time for s, time in enumerate(forward_s)}
    seconds |= {(Kind.BACKWARD, s): time for s, time in enumerate(backward_s)}
    check_timeline(simulate(schedule, forward_s, backward_s, edge_s), seconds, edge_s)


@given(settings())
def test_overlap_never_costs_time(setting) -> None:
    assert simulate(*setting).makespan_s <= simulate(*setting, overlap=False).makespan_s


@given(settings(), st.data())
def test_a_slower_edge_never_saves_time(setting, data: st.DataObject) -> None:
    schedule, forward_s, backward_s, edge_s = setting
    slower = {edge: time + data.draw(times) for edge, time in edge_s.items()}
    for overlap in (True, False):
        before, after = (
            simulate(schedule, forward_s, backward_s, by_edge, overlap=overlap).makespan_s
            for by_edge in (edge_s, slower)
        )
        assert before <= after


@given(settings())
def test_bubble_is_what_is_not_busy(setting) -> None:
    timeline = simulate(*setting)
    for rank, bubble_s in enumerate(timeline.bubble_s):
        busy_s = sum(e.stop_s - e.start_s for e in timeline.events if e.rank == rank)
        assert bubble_s == timeline.makespan_s - busy_s
    if timeline.makespan_s:
        assert timeline.bubble_ratio == pytest.approx(
            sum(timeline.bubble_s) / len(timeline.bubble_s) / timeline.makespan_s
        )


@given(st.sampled_from(NAMES), stages, microbatches, times, times)
def test_without_transfers_all_take_the_closed_form(
    name: str, n_stages: int, n_microbatches: int, forward_s: float, backward_s: float
) -> None:
    timeline = simulate(make(name, n_stages, n_microbatches), forward_s, backward_s)
    slots = n_microbatches + n_stages - 1
    assert timeline.makespan_s == slots * (forward_s + backward_s)
    if timeline.makespan_s:
        assert timeline.bubble_ratio == pytest.approx((n_stages - 1) / slots)


@given(stages, microbatches, times, times, times, times, st.booleans())
def test_eager_is_never_slower_than_1f1b_on_equal_stages(
    n_stages: int,
    n_microbatches: int,
    forward_s: float,
    backward_s: float,
    up_s: float,
    down_s: float,
    overlap: bool,
) -> None:
    edge_s = {e: up_s if e.src[0] is Kind.FORWARD else down_s for e in chain(n_stages)}
    eager, plain = (
        simulate(
            generator(n_stages, n_microbatches), forward_s, backward_s, edge_s, overlap=overlap
        ).makespan_s
        for generator in (eager_1f1b, one_f_one_b)
    )
    assert eager <= plain


@given(stages, microbatches, times, times, st.data())
def test_eager_pays_only_for_the_first_way_up_and_the_last_way_down(
    n_stages: int, n_microbatches: int, forward_s: float, longer_s: float, data: st.DataObject
) -> None:
    transfer_s = float(data.draw(st.integers(0, int(forward_s))))
    backward_s = forward_s + longer_s
    timeline = simulate(eager_1f1b(n_stages, n_microbatches), forward_s, backward_s, transfer_s)
    compute_s = (n_microbatches + n_stages - 1) * (forward_s + backward_s)
    assert timeline.makespan_s == compute_s + 2 * (n_stages - 1) * transfer_s


def test_eager_hides_transfers_that_1f1b_waits_for() -> None:
    """The numbers of the README."""
    plain = simulate(one_f_one_b(4, 8), 1.0, 2.0, 0.5)
    eager = simulate(eager_1f1b(4, 8), 1.0, 2.0, 0.5)
    assert (plain.makespan_s, eager.makespan_s) == (41.0, 36.0)


def test_eager_can_be_slower_than_1f1b_on_unequal_stages() -> None:
    """A forward run early holds up a backward that the other ranks wait for."""
    plain, eager = (
        simulate(generator(3, 4), [8.0, 6.0, 4.0], [6.0, 11.0, 1.0])
        for generator in (one_f_one_b, eager_1f1b)
    )
    assert (plain.makespan_s, eager.makespan_s) == (84.0, 86.0)


def test_without_overlap_a_send_blocks_its_rank() -> None:
    timeline = simulate(gpipe(2, 2), 1.0, 1.0, 3.0, overlap=False)
    starts_s = [(str(e.action), e.start_s) for e in timeline.events if e.rank == 0]
    assert starts_s[:2] == [("F0.0", 0.0), ("F0.1", 4.0)]


def test_one_link_carries_one_transfer_at_a_time() -> None:
    timeline = simulate(gpipe(2, 2), 1.0, 1.0, 3.0)
    up = [(t.start_s, t.stop_s) for t in timeline.transfers if t.edge == Edge.parse("F0->F1")]
    assert up == [(1.0, 4.0), (4.0, 7.0)]


@given(schedules(), st.data())
def test_memory_is_the_sum_of_what_is_between_forward_and_backward(
    schedule: Schedule, data: st.DataObject
) -> None:
    sizes = [data.draw(st.integers(0, 100)) for _ in range(schedule.n_stages)]
    timeline = simulate(schedule, 1.0, 2.0)
    by_action = {event.action: event for event in timeline.events}
    for rank, curve in enumerate(timeline.memory(sizes)):
        for time_s, held in dict(curve).items():  # the last change of each time
            assert held == sum(
                sizes[event.action.stage]
                for action, event in by_action.items()
                if event.rank == rank and action.kind is Kind.FORWARD
                if event.start_s <= time_s < stop_of_backward(by_action, action)
            )


def stop_of_backward(by_action, forward) -> float:
    return next(
        event.stop_s
        for action, event in by_action.items()
        if action.kind is Kind.BACKWARD
        and (action.stage, action.microbatch) == (forward.stage, forward.microbatch)
    )


def test_peak_in_flight_of_an_idle_rank_is_zero() -> None:
    schedule = Schedule("idle", 1, 1, (*gpipe(1, 1).ranks, ()))
    assert simulate(schedule, 1.0, 1.0).peak_in_flight == (1, 0)


def test_nothing_takes_time_and_nothing_is_idle() -> None:
    assert simulate(gpipe(2, 2), 0.0, 0.0).bubble_ratio == 0.0


def test_a_wrong_schedule_is_refused() -> None:
    with pytest.raises(ScheduleError, match="completeness"):
        simulate(Schedule("wrong", 1, 1, ((),)), 1.0, 1.0)


def test_one_time_for_each_stage() -> None:
    with pytest.raises(
        ArgumentError, match="forward_s is one number, or one for each stage; got 2"
    ):
        simulate(gpipe(3, 1), [1.0, 2.0], 1.0)


def test_one_size_for_each_stage() -> None:
    with pytest.raises(ArgumentError, match="activation_bytes has one entry for each stage; got 1"):
        simulate(gpipe(2, 1), 1.0, 1.0).memory([5])


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((-1.0, 1.0), "forward_s"),
        ((1.0, float("inf")), "backward_s"),
        ((1.0, 1.0, float("nan")), "transfer_s"),
    ],
    ids=["forward_s", "backward_s", "transfer_s"],
)
def test_impossible_times_are_refused(arguments: tuple[float, ...], name: str) -> None:
    with pytest.raises(ArgumentError, match=f"finite and not negative; got .* in {name}"):
        simulate(gpipe(2, 1), *arguments)


def test_edges_of_the_mapping_alone_make_stages_wait() -> None:
    no_edges: Mapping[Edge, float] = {}
    timeline = simulate(gpipe(3, 2), 1.0, 1.0, no_edges)
    assert timeline.makespan_s == 4.0
    assert timeline.transfers == ()
