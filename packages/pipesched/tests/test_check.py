import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pipesched import (
    Action,
    ArgumentError,
    InternalError,
    Kind,
    Placement,
    Schedule,
    ScheduleError,
    chain,
    check,
    make,
)
from pipesched.judge.check import Semantics
from pipesched.judge.positions import Positions
from pipesched.testing import can_be_run, made, schedules, steps

valid = made() | schedules() | steps(communicates=None)
shared = settings(max_examples=max(1, settings().max_examples // 2))
semantics = st.sampled_from(["buffered", "rendezvous", "stream"])
Ranks = list[list[Action]]


def rows(schedule: Schedule) -> Ranks:
    return [list(actions) for actions in schedule.ranks]


def with_rows(schedule: Schedule, ranks: Ranks) -> Schedule:
    return replace(schedule, ranks=tuple(map(tuple, ranks)))


def pick(data: st.DataObject, schedule: Schedule) -> tuple[int, int]:
    """A rank and a position in it."""
    places = [(r, p) for r, actions in enumerate(schedule.ranks) for p in range(len(actions))]
    return data.draw(st.sampled_from(places))


def refusal(schedule: Schedule, **options) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        check(schedule, **options)
    error = caught.value
    if error.position is not None:
        assert schedule.ranks[error.rank][error.position] == error.action
    assert str(error).startswith(f"{error.rule}: ")
    assert str(error.action) in str(error)
    return error


@shared
@given(valid)
def test_accepts_whatever_can_be_run(schedule: Schedule) -> None:
    check(schedule)


@shared
@given(valid, st.data())
def test_a_dropped_action_is_missed(schedule: Schedule, data: st.DataObject) -> None:
    rank, position = pick(data, schedule)
    ranks = rows(schedule)
    dropped = ranks[rank].pop(position)
    rest = with_rows(schedule, ranks)
    assume(dropped.kind is not Kind.RECOMPUTE)
    assume(any(action.kind is dropped.kind for row in ranks for action in row))  # not: none at all
    assume(dropped.edge is None or rest.communicates)
    error = refusal(rest)
    assert (error.rule, error.position) == ("completeness", None)
    if dropped.kind in (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT):
        assert (error.action.stage, error.action.microbatch) == (dropped.stage, dropped.microbatch)
    else:
        assert (error.action, error.rank) == (dropped, rank)


@shared
@given(steps(communicates=True))
def test_what_is_all_or_nothing_may_be_dropped_as_a_whole(schedule: Schedule) -> None:
    kept = [
        [a for a in row if a.edge is None and a.microbatch is not None] for row in schedule.ranks
    ]
    check(with_rows(schedule, kept))


@shared
@given(valid, st.data())
def test_a_duplicated_action_is_found(schedule: Schedule, data: st.DataObject) -> None:
    rank, position = pick(data, schedule)
    action = schedule.ranks[rank][position]
    to_rank, to_position = pick(data, schedule)
    if action.microbatch is None:
        to_rank, to_position = rank, 0
    ranks = rows(schedule)
    ranks[to_rank].insert(to_position, action)
    error = refusal(with_rows(schedule, ranks))
    assert (error.rule, error.action) == ("completeness", action)


@shared
@given(valid, st.data(), st.sampled_from(["stage", "microbatch"]))
def test_an_action_of_no_stage_or_microbatch_is_found(
    schedule: Schedule, data: st.DataObject, field: str
) -> None:
    rank, position = pick(data, schedule)
    action = schedule.ranks[rank][position]
    assume(action.edge is None and action.microbatch is not None)
    limit = schedule.n_stages if field == "stage" else schedule.n_microbatches
    ranks = rows(schedule)
    ranks[rank][position] = replace(action, **{field: limit})
    error = refusal(with_rows(schedule, ranks))
    assert (error.rule, error.action) == ("completeness", ranks[rank][position])


@shared
@given(valid, st.data())
def test_an_action_moved_to_another_rank_is_found(schedule: Schedule, data: st.DataObject) -> None:
    assume(sum(map(bool, schedule.ranks)) > 1)
    rank, position = pick(data, schedule)
    to_rank, to_position = pick(data, schedule)
    assume(to_rank != rank)
    assume(schedule.ranks[rank][position].microbatch is not None)
    ranks = rows(schedule)
    moved = ranks[rank].pop(position)
    ranks[to_rank].insert(to_position, moved)
    error = refusal(with_rows(schedule, ranks))
    assert (error.rule, error.action, error.rank) == ("placement", moved, to_rank)


@shared
@given(valid, semantics, st.data())
def test_a_swap_is_refused_exactly_if_the_order_can_no_longer_be_run(
    schedule: Schedule, how: Semantics, data: st.DataObject
) -> None:
    rank, position = pick(data, schedule)
    ranks = rows(schedule)
    other = data.draw(st.integers(0, len(ranks[rank]) - 1))
    ranks[rank][position], ranks[rank][other] = ranks[rank][other], ranks[rank][position]
    swapped = with_rows(schedule, ranks)
    if not swapped.communicates:
        how = "buffered"
    if can_be_run(swapped, how):
        check(swapped, semantics=how)
    else:
        assert refusal(swapped, semantics=how).rule in ("dependency", "deadlock", "stream")


@shared
@given(steps(communicates=True, chained=True), semantics)
def test_transfers_are_judged_by_what_they_wait_for(schedule: Schedule, how: Semantics) -> None:
    assume(schedule.communicates)
    if can_be_run(schedule, how):
        check(schedule, semantics=how)
    else:
        assert refusal(schedule, semantics=how).rule == (
            "stream" if how == "stream" else "deadlock"
        )


@shared
@given(schedules() | steps(), st.data())
def test_memory_is_what_is_between_forward_and_backward(
    schedule: Schedule, data: st.DataObject
) -> None:
    """The peak, counted from scratch at each position, is the least bound that passes."""
    n_stages = schedule.n_stages
    sizes = st.lists(st.integers(0, 9), min_size=n_stages, max_size=n_stages)
    whole, kept, checkpoint = data.draw(sizes), data.draw(sizes), data.draw(sizes)

    def held(rank: int, position: int) -> int:
        if not schedule.backward:
            return whole[schedule.ranks[rank][position].stage]
        total = 0
        done = schedule.ranks[rank][: position + 1]
        recomputed = {a for a in schedule.ranks[rank] if a.kind is Kind.RECOMPUTE}
        for action in done:
            stage, m = action.stage, action.microbatch
            if action.kind is Kind.FORWARD:
                later = {a.kind for a in done if (a.stage, a.microbatch) == (stage, m)}
                if Kind.INPUT_GRADIENT in later:
                    total += 0 if Kind.WEIGHT_GRADIENT in later else kept[stage]
                elif Kind.BACKWARD not in later:
                    again = Action(Kind.RECOMPUTE, stage, m) in recomputed
                    short = again and Kind.RECOMPUTE not in later
                    total += checkpoint[stage] if short else whole[stage]
        return total

    peaks = [
        max((held(rank, p) for p in range(len(row))), default=0)
        for rank, row in enumerate(schedule.ranks)
    ]
    options = {
        "activation_bytes": whole,
        "weight_gradient_bytes": kept,
        "checkpoint_bytes": checkpoint,
    }
    check(schedule, memory_bytes=peaks, **options)
    tight = data.draw(st.integers(0, len(peaks) - 1))
    assume(peaks[tight] > 0)
    peaks[tight] -= 1
    error = refusal(schedule, memory_bytes=peaks, **options)
    assert (error.rule, error.rank) == ("memory", tight)
    assert error.position is not None
    assert held(tight, error.position) > peaks[tight]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (
            "rank 0: F0.0 B0.0 F0.1\nrank 1: F1.0 B1.0 F1.1 B1.1",
            "completeness: every microbatch goes through every stage; got no B0.1 on rank 0",
        ),
        (
            "rank 0: F0.0 B0.0 B0.1\nrank 1: F1.0 B1.0 F1.1 B1.1",
            "completeness: every microbatch goes through every stage; got no F0.1 on rank 0, "
            "which B0.1 at rank 0, position 2, needs",
        ),
        (
            "rank 0: F0.0 F0.1 F0.0 B0.0 B0.1\nrank 1: F1.0 F1.1 B1.0 B1.1",
            "completeness: an action is there once; got F0.0 at rank 0, position 0 and at rank 0, "
            "position 2",
        ),
        (
            "rank 0: F0.0 F0.2 B0.0 B0.1\nrank 1: F1.0 B1.0 F1.1 B1.1",
            "completeness: a schedule of 2 stages and 2 microbatches has no F0.2; got it at "
            "rank 0, position 1, and no F0.1, which B0.1 at rank 0, position 3, needs",
        ),
        (
            "rank 0: F0.0 F0.1 B0.0 I0.0 B0.1\nrank 1: F1.0 F1.1 B1.0 B1.1",
            "completeness: a backward is whole (B) or split in two (I and W); got B0.0 at rank 0, "
            "position 2 and I0.0 at rank 0, position 3",
        ),
        (
            "rank 0: F0.0 F0.1 B0.0 I0.1\nrank 1: F1.0 F1.1 B1.0 B1.1",
            "completeness: every microbatch goes through every stage; got no W0.1 on rank 0",
        ),
        (
            "rank 0: F0.0 F0.1 B0.0 B0.1 U0\nrank 1: F1.0 F1.1 B1.0 B1.1",
            "completeness: with reductions, every stage of every rank has one, and with updates, "
            "it has a reduction and an update, as only reduced gradients can be applied; got no "
            "G0 on rank 0",
        ),
        (
            "rank 0: F0.0 SEND_F0->F1.0 F0.1 B0.0 B0.1\nrank 1: F1.0 F1.1 B1.0 B1.1",
            "completeness: a schedule has a send and a receive for every result that changes "
            "ranks, or none at all; got no RECV_F0->F1.0 on rank 1",
        ),
        (
            "rank 0: F0.0 SEND_F0->B1.0 F0.1 B0.0 B0.1\nrank 1: F1.0 F1.1 B1.0 B1.1",
            "completeness: a schedule of 2 stages and 2 microbatches and these edges has no "
            "SEND_F0->B1.0; got it at rank 0, position 1",
        ),
        (
            "rank 0: F0.0 SEND_F0->F1.0 F0.1 F1.0 F1.1 B1.0 B0.0 B1.1 B0.1",
            "completeness: a result that stays on a rank is not sent; got SEND_F0->F1.0 at rank 0, "
            "position 1, where both stages are on rank 0",
        ),
        (
            "rank 0: F0.0 F0.1 B0.0\nrank 1: F1.0 B1.0 F1.1 B1.1 B0.1",
            "placement: an action is on the rank of its stage and microbatch; got B0.1 at rank 1, "
            "position 4, instead of rank 0",
        ),
        (
            "rank 0: F0.0 F0.1 B0.0 B0.1 G0\nrank 1: F1.0 F1.1 B1.0 B1.1 G0 G1",
            "placement: a rank reduces and updates its own stages; got G0 at rank 1, position 4, "
            "which has [1] of 2 stages",
        ),
        (
            "rank 0: F0.0 F0.1 B0.0 B0.1\nrank 1: F1.0 B1.0 B1.1 F1.1",
            "dependency: an action comes after those it needs; got B1.1 at rank 1, position 2, "
            "before F1.1 at position 3",
        ),
        (
            "rank 0: F0.0 F0.1 B0.0 W0.1 I0.1\nrank 1: F1.0 F1.1 B1.0 B1.1",
            "dependency: an action comes after those it needs; got W0.1 at rank 0, position 3, "
            "before I0.1 at position 4",
        ),
        (
            "rank 0: F0.0 B0.0 F0.1 B0.1\nrank 1: F1.0 F1.1 B1.0 B1.1",
            "deadlock: the ranks wait for each other; got rank 0 stuck at position 1, where B0.0 "
            "waits for B1.0; rank 1 stuck at position 1, where F1.1 waits for F0.1",
        ),
    ],
    ids=[
        *("missing", "no forward", "twice", "foreign", "whole and split", "half", "updates only"),
        *("one end", "no edge", "within a rank", "two ranks", "update elsewhere", "too early"),
        *("weight first", "circle"),
    ],
)
def test_messages_name_rule_rank_position_and_action(ranks: str, message: str) -> None:
    schedule = Schedule.parse(f"wrong stages=2 microbatches=2\n{ranks}")
    assert str(refusal(schedule)) == message


def test_an_inference_schedule_has_no_backward() -> None:
    schedule = Schedule.parse("odd stages=1 microbatches=1 backward=no\nrank 0: F0.0 B0.0")
    assert str(refusal(schedule)) == (
        "completeness: an inference schedule of 1 stages and 1 microbatches has no B0.0; "
        "got it at rank 0, position 1"
    )


SENDS_CROSS = """crossed stages=2 microbatches=2
rank 0: F0.0 SEND_F0->F1.0 F0.1 SEND_F0->F1.1 RECV_B1->B0.0 B0.0 RECV_B1->B0.1 B0.1
rank 1: RECV_F0->F1.0 F1.0 B1.0 SEND_B1->B0.0 RECV_F0->F1.1 F1.1 B1.1 SEND_B1->B0.1"""


def test_sends_that_cross_get_stuck_only_if_they_wait() -> None:
    """Rank 0 sends its second activation while rank 1 sends its first gradient."""
    schedule = Schedule.parse(SENDS_CROSS)
    check(schedule)
    check(schedule, semantics="stream")
    assert str(refusal(schedule, semantics="rendezvous")) == (
        "deadlock: the ranks wait for each other; got rank 0 stuck at position 3, where "
        "SEND_F0->F1.1 waits for RECV_F0->F1.1; rank 1 stuck at position 3, where SEND_B1->B0.0 "
        "waits for RECV_B1->B0.0"
    )


def test_messages_that_overtake_each_other_pass_only_if_they_have_names() -> None:
    schedule = Schedule.parse(
        SENDS_CROSS.replace("RECV_B1->B0.0 B0.0 RECV_B1->B0.1", "RECV_B1->B0.1 RECV_B1->B0.0 B0.0")
    )
    check(schedule)
    assert str(refusal(schedule, semantics="stream")) == (
        "stream: messages from one rank to another arrive in the order they are sent in; got "
        "RECV_B1->B0.1 at rank 0, position 4, where SEND_B1->B0.0 of rank 1 arrives"
    )


def test_copies_of_a_stage_reduce_together() -> None:
    ranks = "rank 0: F0.0 F1.1 B1.1 B0.0 {}\nrank 1: F0.1 F1.0 B1.0 B0.1 {}"
    header = "both stages=2 microbatches=2 placement=0,1|1,0:0x1,1x1"
    check(Schedule.parse(f"{header}\n{ranks.format('G0 G1', 'G0 G1')}"))
    crossed = Schedule.parse(f"{header}\n{ranks.format('G0 G1', 'G1 G0')}")
    assert str(refusal(crossed)) == (
        "deadlock: the ranks wait for each other; got rank 0 stuck at position 4, where G0 waits "
        "for G0; rank 1 stuck at position 4, where G1 waits for G1"
    )


def test_a_skip_connection_is_waited_for() -> None:
    """F2.0 runs before F0.0, which the chain forbids only through F1.0, but a skip at once."""
    ranks = ("F2.0 F0.0 B2.0 B0.0", "F1.0 B1.0")
    actions = tuple(tuple(map(Action.parse, row.split())) for row in ranks)
    placement = Placement(((0, 1, 0),))
    plain = Schedule("plain", 3, 1, actions, placement)
    assert refusal(plain).rule == "deadlock"
    assert refusal(replace(plain, edges=chain(3, skips=[(0, 2)]))).rule == "dependency"
    check(replace(plain, edges=[]))


def test_a_memory_message_names_bound_and_bytes() -> None:
    assert str(refusal(make("gpipe", 2, 3), activation_bytes=5, memory_bytes=[20, 12])) == (
        "memory: rank 1 may hold memory_bytes=12; got 15 from F1.2 at position 2 on"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"semantics": "lucky"}, "semantics is one of buffered, rendezvous, stream; got 'lucky'"),
        ({"semantics": "stream"}, "'stream' needs sends and receives; got gpipe without any"),
        ({"memory_bytes": [1]}, "memory_bytes is one number, or one for each of 2; got 1"),
        (
            {"memory_bytes": 9, "activation_bytes": []},
            "activation_bytes is one number, or one for each of 2; got 0",
        ),
        ({"memory_bytes": math.nan}, "memory_bytes is a number that is not negative; got memory_b"),
        ({"memory_bytes": [-1, 2]}, "memory_bytes is a number that is not negative"),
        ({"checkpoint_bytes": "9"}, "checkpoint_bytes is a number that is not negative"),
        ({"activation_bytes": None}, "activation_bytes is a number that is not negative"),
    ],
    ids=str,
)
def test_arguments_that_mean_nothing_are_refused(options, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        check(make("gpipe", 2, 1), **options)


def test_a_place_of_what_is_not_there_is_a_fault_of_the_checks() -> None:
    with pytest.raises(InternalError, match="no R of 0 and microbatch 1 in gpipe"):
        Positions(make("gpipe", 2, 2)).of(Kind.RECOMPUTE, 0, 1)
