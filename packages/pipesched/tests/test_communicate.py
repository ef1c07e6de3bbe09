from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pipesched import (
    NAMES,
    Action,
    ArgumentError,
    Costs,
    Kind,
    Placement,
    Schedule,
    chain,
    check,
    make,
    simulate,
    with_communication,
    with_reductions,
    without_communication,
)
from pipesched.testing import LINEAR, made, schedules, steps

any_schedule = made() | schedules() | steps()
shared = settings(max_examples=max(1, settings().max_examples // 4))
times = st.integers(0, 4).map(float)


@shared
@given(any_schedule)
def test_transfers_never_get_stuck_under_any_semantics(schedule: Schedule) -> None:
    full = with_communication(schedule)
    check(full)
    check(full, semantics="rendezvous")
    check(full, semantics="stream")


@shared
@given(any_schedule, times, times, times)
def test_any_timeline_orders_the_transfers(
    schedule: Schedule, forward_s: float, backward_s: float, latency_s: float
) -> None:
    """Also one in which nothing takes time."""
    timeline = simulate(schedule, Costs(forward_s, backward_s, latency_s=latency_s))
    full = with_communication(schedule, timeline)
    check(full, semantics="rendezvous")
    check(full, semantics="stream")


@shared
@given(any_schedule)
def test_nothing_else_changes(schedule: Schedule) -> None:
    full = with_communication(schedule)
    assert without_communication(full) == schedule
    assert replace(full, ranks=schedule.ranks) == schedule


@shared
@given(any_schedule)
def test_a_send_follows_its_maker_at_once(schedule: Schedule) -> None:
    for actions in with_communication(schedule).ranks:
        made: tuple[Kind, int, int | None] | None = None
        for action in actions:
            if action.kind is Kind.SEND:
                assert action.edge is not None
                assert made is not None
                assert made[1:] == (action.stage, action.microbatch)
                assert (made[0] is Kind.FORWARD) == (action.edge.src[0] is Kind.FORWARD)
            elif action.kind is not Kind.RECEIVE:
                made = action.kind, action.stage, action.microbatch


@pytest.mark.parametrize("name", NAMES)
def test_every_generated_schedule_gets_transfers(name: str) -> None:
    full = with_communication(make(name, 4, 8))
    check(full, semantics="rendezvous")
    check(full, semantics="stream")


@shared
@given(any_schedule)
def test_copies_of_a_stage_reduce_without_waiting_in_a_circle(schedule: Schedule) -> None:
    assume(schedule.backward and not schedule.updates)
    reduced = with_reductions(schedule)
    check(reduced)
    kept = [tuple(a for a in row if a.kind is not Kind.REDUCE) for row in reduced.ranks]
    assert tuple(kept) == schedule.ranks
    assert sum(map(len, reduced.ranks)) > sum(map(len, schedule.ranks))
    check(with_communication(reduced), semantics="rendezvous")
    if len(schedule.placement.routes) == 1:
        check(with_reductions(with_communication(schedule)))


@shared
@given(schedules() | made(LINEAR))
def test_one_copy_reduces_right_after_its_last_gradient(schedule: Schedule) -> None:
    for row in with_reductions(schedule).ranks:
        for position, action in enumerate(row):
            if action.kind is Kind.REDUCE:
                before = next(a for a in reversed(row[:position]) if a.kind is not Kind.REDUCE)
                assert (before.kind, before.stage) == (Kind.BACKWARD, action.stage)


@shared
@given(any_schedule, times, times, times, times)
def test_a_simulation_is_the_same_with_and_without(
    schedule: Schedule, forward_s: float, backward_s: float, transfer_s: float, latency_s: float
) -> None:
    """With overlap. Without it, sends that are listed leave one after the other."""
    costs = Costs(forward_s, backward_s, transfer_s=transfer_s, latency_s=latency_s)
    plain = simulate(schedule, costs)
    full = simulate(with_communication(schedule, plain), costs)
    assert [e for e in full.events if e.action.edge is None] == list(plain.events)


def test_messages_cross_where_two_stages_swap_what_they_made() -> None:
    placement = Placement.bidirectional(2, 2)
    schedule = Schedule(
        "swap",
        2,
        2,
        (
            (Action(Kind.FORWARD, 0, 0), Action(Kind.FORWARD, 1, 1)),
            (Action(Kind.FORWARD, 0, 1), Action(Kind.FORWARD, 1, 0)),
        ),
        placement,
        chain(2, backward=False),
        backward=False,
    )
    assert str(with_communication(schedule)).splitlines()[1:] == [
        "rank 0: F0.0 SEND_F0->F1.0 RECV_F0->F1.1 F1.1",
        "rank 1: F0.1 RECV_F0->F1.0 SEND_F0->F1.1 F1.0",
    ]


def test_what_is_there_is_not_added_again() -> None:
    full = with_communication(make("1f1b", 2, 2))
    with pytest.raises(ArgumentError, match="to a schedule without any; got 1f1b with some"):
        with_communication(full)
    with pytest.raises(ArgumentError, match="are added before sends and receives; got chimera"):
        with_reductions(with_communication(make("chimera", 2, 2)))
    with pytest.raises(ArgumentError, match="got 1f1b with updates=True"):
        with_reductions(with_reductions(make("1f1b", 2, 2)))


def test_a_timeline_orders_its_own_schedule() -> None:
    timeline = simulate(make("gpipe", 2, 2), Costs(1.0, 2.0))
    with pytest.raises(ArgumentError, match="its own schedule; got one of gpipe for 1f1b"):
        with_communication(make("1f1b", 2, 2), timeline)
