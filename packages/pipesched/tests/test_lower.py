import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipesched import (
    NAMES,
    Accumulate,
    Action,
    ArgumentError,
    Costs,
    Edge,
    Free,
    Instruction,
    Kind,
    Placement,
    Program,
    Receive,
    Received,
    Reduce,
    Run,
    Saved,
    Schedule,
    ScheduleError,
    Send,
    check_program,
    gpipe,
    lower,
    make,
    one_f_one_b,
    simulate,
    with_communication,
    with_reductions,
)
from pipesched.testing import edge_sets, expected_gradients, interpret, made, schedules, steps


def can_be_lowered(schedule: Schedule) -> bool:
    """Copies of stages get reductions before sends and receives."""
    lacks_reductions = schedule.backward and not schedule.updates
    return not (lacks_reductions and schedule.communicates) or len(schedule.placement.routes) == 1


any_schedule = (made(max_stages=4, max_microbatches=6) | steps(communicates=None)).filter(
    can_be_lowered
)
shared = settings(max_examples=max(1, settings().max_examples // 4))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Of a schedule with its own edges, or of a chain's with any."""
    if draw(st.booleans()):
        return lower(draw(any_schedule))
    schedule = draw(schedules())
    return lower(schedule, draw(edge_sets(schedule.n_stages)))


def expected(program: Program) -> tuple[tuple[str, ...], ...]:
    return expected_gradients(
        program.n_stages, program.n_microbatches, program.edges, backward=program.backward
    )


@shared
@given(programs())
def test_applies_the_gradients_that_the_edges_define(program: Program) -> None:
    """Whatever the order, the placement, and the way in which backwards are split or recomputed."""
    assert interpret(program) == expected(program)


@shared
@given(programs())
def test_passes_the_program_checker(program: Program) -> None:
    check_program(program)


@pytest.mark.parametrize("name", NAMES)
def test_every_generated_schedule_lowers(name: str) -> None:
    plain = make(name, 4, 8)
    full = with_communication(with_reductions(plain) if plain.backward else plain)
    for schedule in (plain, full):
        program = lower(schedule)
        check_program(program)
        assert interpret(program) == expected(program)


@shared
@given(any_schedule)
def test_keeps_the_order_of_the_schedule(schedule: Schedule) -> None:
    for row, instructions in zip(schedule.ranks, lower(schedule).ranks, strict=True):
        runs = [item.action for item in instructions if isinstance(item, Run)]
        assert runs == [a for a in row if a.edge is None and a.microbatch is not None]


@shared
@given(any_schedule)
def test_reduces_and_applies_where_the_schedule_says_or_at_once(schedule: Schedule) -> None:
    for row, instructions in zip(schedule.ranks, lower(schedule).ranks, strict=True):
        listed = [a for a in row if a.edge is None]
        kinds = {a.kind for a in listed}
        kept = [
            Action(Kind.REDUCE, item.stage) if isinstance(item, Reduce) else item.action
            for item in instructions
            if isinstance(item, Run) or (isinstance(item, Reduce) and Kind.REDUCE in kinds)
        ]
        assert kept == [a for a in listed if a.kind is not Kind.UPDATE]
        for index, item in enumerate(instructions):
            if isinstance(item, Reduce) and Kind.REDUCE not in kinds:
                if len(schedule.placement.routes) == 1:
                    assert isinstance(instructions[index - 1], Accumulate)
                assert str(instructions[index + 1]) == f"APPLY {item.stage}"


@shared
@given(programs())
def test_sends_at_once(program: Program) -> None:
    for rank, instructions in enumerate(program.ranks):
        for index, item in enumerate(instructions):
            if isinstance(item, Send):
                before = instructions[index - 1]
                assert isinstance(before, Run | Send) or before.peer == rank


@given(schedules(in_order=True) | made(["1f1b", "zb-h1", "chimera", "inference"]))
def test_receives_from_other_ranks_as_late_as_possible(schedule: Schedule) -> None:
    for rank, instructions in enumerate(lower(schedule).ranks):
        for index, item in enumerate(instructions):
            if isinstance(item, Receive) and item.peer != rank:
                assert isinstance(instructions[index + 1], Run | Receive)


def test_receives_earlier_what_is_sent_earlier() -> None:
    """Rank 1 runs microbatch 1 first, and its message comes second."""
    schedule = Schedule.parse(
        "crossed stages=2 microbatches=2\nrank 0: F0.0 F0.1 B0.0 B0.1\nrank 1: F1.1 F1.0 B1.0 B1.1"
    )
    program = lower(schedule)
    check_program(program)
    assert interpret(program) == expected(program)
    assert [str(item) for item in program.ranks[1][:5]] == [
        "RECV F0->F1.0 from 0",
        "RECV F0->F1.1 from 0",
        "RUN F1.1",
        "FREE F0->F1.1",
        "RUN F1.0",
    ]


def while_running(instructions: tuple[Instruction, ...]) -> list[set[Saved | Received]]:
    """The buffers that are there during each run: also what it makes from its start on."""
    live: set[Saved | Received] = set()
    moments = []
    for item in instructions:
        match item:
            case Run(action) if action.kind in (Kind.FORWARD, Kind.RECOMPUTE):
                live.add(Saved(action.kind, action.stage, action.microbatch))
                moments.append(set(live))
            case Run(action):
                moments.append(set(live))
                if action.kind is Kind.INPUT_GRADIENT:
                    live.add(Saved(action.kind, action.stage, action.microbatch))
            case Receive(edge, microbatch, _):
                live.add(Received(edge, microbatch))
            case Free(buffer):
                live.remove(buffer)
    return moments


@shared
@given(any_schedule.filter(lambda schedule: schedule.backward), st.data())
def test_peak_of_live_buffers_is_the_simulators(schedule: Schedule, data: st.DataObject) -> None:
    n_stages = schedule.n_stages
    sizes = st.lists(st.integers(0, 9), min_size=n_stages, max_size=n_stages)
    whole, kept, checkpoint = data.draw(sizes), data.draw(sizes), data.draw(sizes)
    checkpoint = [min(pair) for pair in zip(whole, checkpoint, strict=True)]
    costs = Costs(
        1.0,
        2.0,
        activation_bytes=whole,
        weight_gradient_bytes=kept,
        checkpoint_bytes=checkpoint,
    )
    recomputed = {
        (a.stage, a.microbatch) for row in schedule.ranks for a in row if a.kind is Kind.RECOMPUTE
    }

    def n_bytes(buffer: Saved | Received) -> int:
        if isinstance(buffer, Received):
            return 0
        stage = buffer.stage
        match buffer.kind:
            case Kind.INPUT_GRADIENT:
                return kept[stage]
            case Kind.RECOMPUTE:
                return whole[stage] - checkpoint[stage]
        return (checkpoint if (stage, buffer.microbatch) in recomputed else whole)[stage]

    peaks = [
        max((sum(map(n_bytes, live)) for live in while_running(instructions)), default=0)
        for instructions in lower(schedule).ranks
    ]
    assert peaks == list(simulate(schedule, costs).peak_bytes)


@shared
@given(made(max_stages=4, max_microbatches=6) | steps(), st.booleans())
def test_no_more_messages_wait_than_the_simulator_says(
    schedule: Schedule, communicate: bool
) -> None:
    """A program receives late, so a message may still be under way where it could be there."""
    if communicate:
        needs_reductions = schedule.backward and not schedule.updates
        schedule = with_communication(with_reductions(schedule) if needs_reductions else schedule)
    timeline = simulate(schedule, Costs(1.0, 2.0, message_bytes=1))
    for instructions, curve in zip(lower(schedule).ranks, timeline.memory(), strict=True):
        peak = max(
            (
                sum(isinstance(buffer, Received) for buffer in live)
                for live in while_running(instructions)
            ),
            default=0,
        )
        assert peak <= max(held.message_bytes for held in curve)


def test_skip_and_residual_edges_reach_their_stages() -> None:
    edges = ["F0->F1", "F0->F2", "F1->F2", "F0->B1", "F1->B0", "B2->B1", "B1->B0"]
    program = lower(one_f_one_b(3, 2), map(Edge.parse, edges))
    first = [str(item) for item in program.ranks[0][:4]]
    assert first == ["RUN F0.0", "SEND F0->F1.0 to 1", "SEND F0->F2.0 to 2", "SEND F0->B1.0 to 1"]


def test_a_wrong_schedule_is_refused() -> None:
    with pytest.raises(ScheduleError, match="completeness"):
        lower(Schedule("wrong", 1, 1, ((),)))


def test_copies_reduce_before_they_communicate() -> None:
    schedule = with_communication(make("chimera", 2, 2))
    with pytest.raises(ArgumentError, match="are added before sends and receives; got chimera"):
        lower(schedule)


def test_what_stays_on_a_rank_is_received_when_it_is_made() -> None:
    row = tuple(map(Action.parse, ["F0.0", "F1.0", "I1.0", "B0.0", "W1.0"]))
    schedule = Schedule("one", 2, 1, (row,), Placement(((0, 0),)))
    assert [str(item) for item in lower(schedule).ranks[0]] == [
        *("RUN F0.0", "SEND F0->F1.0 to 0", "RECV F0->F1.0 from 0"),
        *("RUN F1.0", "FREE F0->F1.0"),
        *("RUN I1.0", "SEND B1->B0.0 to 0", "RECV B1->B0.0 from 0", "FREE F1.0"),
        *("RUN B0.0", "FREE B1->B0.0", "FREE F0.0", "ACCUMULATE 0.0", "REDUCE 0", "APPLY 0"),
        *("RUN W1.0", "FREE I1.0", "ACCUMULATE 1.0", "REDUCE 1", "APPLY 1"),
    ]


def test_no_edges_leave_the_stages_independent() -> None:
    program = lower(gpipe(2, 1), [])
    assert [str(item) for item in program.ranks[1]] == [
        "RUN F1.0",
        "RUN B1.0",
        "FREE F1.0",
        "ACCUMULATE 1.0",
        "REDUCE 1",
        "APPLY 1",
    ]
