import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipesched import (
    Costs,
    Edge,
    Free,
    Program,
    ProgramError,
    Receive,
    Received,
    Run,
    Saved,
    Schedule,
    ScheduleError,
    Send,
    chain,
    check_program,
    gpipe,
    lower,
    make,
    one_f_one_b,
    simulate,
)
from pipesched.testing import LINEAR, edge_sets, expected_gradients, interpret, schedules

in_order = st.builds(
    make, st.sampled_from(LINEAR), st.integers(1, 5), st.integers(1, 6)
) | schedules(in_order=True)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    schedule = draw(in_order)
    return lower(schedule, draw(edge_sets(schedule.n_stages)))


@given(programs())
def test_applies_the_gradients_that_the_edges_define(program: Program) -> None:
    expected = expected_gradients(program.n_stages, program.n_microbatches, program.edges)
    assert interpret(program) == expected


@given(programs())
def test_passes_the_program_checker(program: Program) -> None:
    check_program(program)


@pytest.mark.parametrize("name", LINEAR)
def test_every_generated_schedule_lowers_over_the_chain(name: str) -> None:
    for n_stages in range(1, 9):
        for n_microbatches in (1, 2, 5, 16):
            program = lower(make(name, n_stages, n_microbatches))
            check_program(program)
            expected = expected_gradients(n_stages, n_microbatches, chain(n_stages))
            assert interpret(program) == expected


@given(in_order)
def test_keeps_the_order_of_the_schedule(schedule: Schedule) -> None:
    runs = tuple(
        tuple(item.action for item in instructions if isinstance(item, Run))
        for instructions in lower(schedule).ranks
    )
    assert runs == schedule.ranks


@given(programs())
def test_sends_at_once_and_receives_as_late_as_possible(program: Program) -> None:
    for instructions in program.ranks:
        for index, item in enumerate(instructions):
            if isinstance(item, Send):
                assert isinstance(instructions[index - 1], Run | Send)
            if isinstance(item, Receive):
                assert isinstance(instructions[index + 1], Run | Receive)


@given(programs())
def test_frees_before_it_goes_on(program: Program) -> None:
    """No buffer outlives the run that uses it last: at most the next run's inputs are there."""
    for instructions in program.ranks:
        live: set[Received] = set()
        for item in instructions:
            if isinstance(item, Receive):
                live.add(Received(item.edge, item.microbatch))
            elif isinstance(item, Free) and isinstance(item.buffer, Received):
                live.remove(item.buffer)
            elif isinstance(item, Run):
                here = (item.action.kind, item.action.stage)
                assert all(buffer.edge.dst == here for buffer in live)


@given(in_order)
def test_holds_as_many_activations_as_the_simulator_says(schedule: Schedule) -> None:
    peaks = []
    for instructions in lower(schedule).ranks:
        live = peak = 0
        for item in instructions:
            if isinstance(item, Run) and item.action.kind == "F":
                live += 1
                peak = max(peak, live)
            elif isinstance(item, Free) and isinstance(item.buffer, Saved):
                live -= 1
        peaks.append(peak)
    assert tuple(peaks) == simulate(schedule, Costs(1.0, 1.0)).peak_in_flight


def test_skip_and_residual_edges_reach_their_stages() -> None:
    edges = ["F0->F1", "F0->F2", "F1->F2", "F0->B1", "F1->B0", "B2->B1", "B1->B0"]
    program = lower(one_f_one_b(3, 2), map(Edge.parse, edges))
    first = [str(item) for item in program.ranks[0][:4]]
    assert first == ["RUN F0.0", "SEND F0->F1.0 to 1", "SEND F0->F2.0 to 2", "SEND F0->B1.0 to 1"]


def test_a_wrong_schedule_is_refused() -> None:
    with pytest.raises(ScheduleError, match="completeness"):
        lower(Schedule("wrong", 1, 1, ((),)))


def test_an_edge_whose_ends_disagree_on_the_order_is_refused() -> None:
    schedule = Schedule.parse(
        "crossed stages=2 microbatches=2\nrank 0: F0.0 F0.1 B0.0 B0.1\nrank 1: F1.1 F1.0 B1.0 B1.1"
    )
    with pytest.raises(
        ProgramError,
        match=r"stream: an edge's two ends run the microbatches in the same order; got F0->F1 "
        r"sending \[0, 1\] and receiving \[1, 0\]",
    ) as caught:
        lower(schedule)
    assert caught.value.rank == 1
    assert str(caught.value.instruction) == "RECV F0->F1.1 from 0"


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
