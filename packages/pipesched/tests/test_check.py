from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pipesched import NAMES, Action, Schedule, ScheduleError, check, make
from pipesched.testing import path, schedules

generated = st.builds(make, st.sampled_from(NAMES), st.integers(1, 4), st.integers(1, 5))
valid = generated | schedules()
Ranks = list[list[Action]]


def rows(schedule: Schedule) -> Ranks:
    return [list(actions) for actions in schedule.ranks]


def with_rows(schedule: Schedule, ranks: Ranks) -> Schedule:
    return replace(schedule, ranks=tuple(map(tuple, ranks)))


def pick(data: st.DataObject, schedule: Schedule) -> tuple[int, int]:
    """A rank and a position in it."""
    rank = data.draw(st.integers(0, len(schedule.ranks) - 1))
    return rank, data.draw(st.integers(0, len(schedule.ranks[rank]) - 1))


def refusal(schedule: Schedule) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        check(schedule)
    error = caught.value
    if error.rank is not None and error.position is not None:
        assert schedule.ranks[error.rank][error.position] == error.action
    assert str(error).startswith(f"{error.rule}: ")
    assert str(error.action) in str(error)
    return error


@given(schedules())
def test_accepts_whatever_can_be_run(schedule: Schedule) -> None:
    check(schedule)


@given(valid, st.data())
def test_a_dropped_action_is_missed(schedule: Schedule, data: st.DataObject) -> None:
    rank, position = pick(data, schedule)
    ranks = rows(schedule)
    dropped = ranks[rank].pop(position)
    error = refusal(with_rows(schedule, ranks))
    assert (error.rule, error.action, error.rank) == ("completeness", dropped, None)


@given(valid, st.data())
def test_a_duplicated_action_is_found(schedule: Schedule, data: st.DataObject) -> None:
    rank, position = pick(data, schedule)
    to_rank, to_position = pick(data, schedule)
    ranks = rows(schedule)
    ranks[to_rank].insert(to_position, ranks[rank][position])
    error = refusal(with_rows(schedule, ranks))
    assert (error.rule, error.action) == ("completeness", schedule.ranks[rank][position])


@given(valid, st.data(), st.sampled_from(["stage", "microbatch"]))
def test_an_action_of_no_stage_or_microbatch_is_found(
    schedule: Schedule, data: st.DataObject, field: str
) -> None:
    rank, position = pick(data, schedule)
    limit = schedule.n_stages if field == "stage" else schedule.n_microbatches
    ranks = rows(schedule)
    ranks[rank][position] = replace(ranks[rank][position], **{field: limit})
    error = refusal(with_rows(schedule, ranks))
    assert (error.rule, error.action) == ("completeness", ranks[rank][position])


@given(valid, st.data())
def test_an_action_moved_to_another_rank_is_found(schedule: Schedule, data: st.DataObject) -> None:
    assume(len(schedule.ranks) > 1)
    rank, position = pick(data, schedule)
    to_rank, to_position = pick(data, schedule)
    assume(to_rank != rank)
    ranks = rows(schedule)
    moved = ranks[rank].pop(position)
    ranks[to_rank].insert(to_position, moved)
    error = refusal(with_rows(schedule, ranks))
    assert error.rule == "placement"
    assert error.action.stage == moved.stage


@given(valid, st.data())
def test_a_swap_is_refused_exactly_if_the_order_can_no_longer_be_run(
    schedule: Schedule, data: st.DataObject
) -> None:
    rank, position = pick(data, schedule)
    other = data.draw(st.integers(0, len(schedule.ranks[rank]) - 1))
    ranks = rows(schedule)
    ranks[rank][position], ranks[rank][other] = ranks[rank][other], ranks[rank][position]
    swapped = with_rows(schedule, ranks)
    if can_be_run(swapped):
        check(swapped)
    else:
        rule = "dependency" if some_rank_contradicts_the_path(swapped) else "deadlock"
        assert refusal(swapped).rule == rule


def can_be_run(schedule: Schedule) -> bool:
    graph: TopologicalSorter[Action] = TopologicalSorter()
    for actions in schedule.ranks:
        for earlier, later in pairwise(actions):
            graph.add(later, earlier)
    for microbatch in range(schedule.n_microbatches):
        for earlier_end, later_end in pairwise(path(schedule.n_stages)):
            graph.add(Action(*later_end, microbatch), Action(*earlier_end, microbatch))
    try:
        graph.prepare()
    except CycleError:
        return False
    return True


def some_rank_contradicts_the_path(schedule: Schedule) -> bool:
    step = {end: number for number, end in enumerate(path(schedule.n_stages))}
    return any(
        earlier.microbatch == later.microbatch
        and step[earlier.kind, earlier.stage] > step[later.kind, later.stage]
        for actions in schedule.ranks
        for index, earlier in enumerate(actions)
        for later in actions[index + 1 :]
    )


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (
            "rank 0: F0.0 B0.0 F0.1\nrank 1: F1.0 B1.0 F1.1 B1.1",
            "completeness: every stage runs forward and backward on every microbatch; got no B0.1",
        ),
        (
            "rank 0: F0.0 F0.1 F0.0 B0.0 B0.1\nrank 1: F1.0 B1.0 F1.1 B1.1",
            "completeness: an action runs once; got F0.0 at rank 0, position 0 and at rank 0, "
            "position 2",
        ),
        (
            "rank 0: F0.0 F0.2 B0.0 B0.1\nrank 1: F1.0 B1.0 F1.1 B1.1",
            "completeness: a schedule of 2 stages and 2 microbatches has no F0.2; got it at "
            "rank 0, position 1",
        ),
        (
            "rank 0: F0.0 F0.1 B0.0\nrank 1: F1.0 B1.0 F1.1 B1.1 B0.1",
            "placement: a stage is on one rank; got stage 0 on rank 0 (F0.0) and on rank 1 "
            "(B0.1, position 4)",
        ),
        (
            "rank 0: F0.0 F0.1 B0.0 B0.1\nrank 1: F1.0 B1.0 B1.1 F1.1",
            "dependency: an action comes after those it needs; got B1.1 at rank 1, position 2, "
            "before F1.1 at position 3",
        ),
        (
            "rank 0: F0.0 B0.0 F0.1 B0.1\nrank 1: F1.0 F1.1 B1.0 B1.1",
            "deadlock: the ranks wait for each other; got rank 0 stuck at position 1, where B0.0 "
            "waits for B1.0",
        ),
    ],
    ids=["missing", "twice", "foreign", "two ranks", "too early", "circle"],
)
def test_messages_name_rule_rank_position_and_action(ranks: str, message: str) -> None:
    schedule = Schedule.parse(f"wrong stages=2 microbatches=2\n{ranks}")
    assert str(refusal(schedule)) == message
