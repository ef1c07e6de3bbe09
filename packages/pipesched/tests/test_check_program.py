from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pipesched import (
    EdgeError,
    Placement,
    Program,
    ProgramError,
    Schedule,
    check_program,
    gpipe,
    lower,
    parse_instruction,
)
from pipesched.testing import edge_sets, expected_gradients, interpret, made, schedules, steps

shared = settings(max_examples=max(1, settings().max_examples // 4))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    few = made(max_stages=4, max_microbatches=4)
    if draw(st.booleans()):
        return lower(draw(few | steps(max_stages=2)))
    schedule = draw(schedules(max_stages=3, max_microbatches=3))
    return lower(schedule, draw(edge_sets(schedule.n_stages)))


def pick(data: st.DataObject, program: Program) -> tuple[int, int]:
    places = [(r, p) for r, row in enumerate(program.ranks) for p in range(len(row))]
    return data.draw(st.sampled_from(places))


def refusal(program: Program) -> ProgramError:
    with pytest.raises(ProgramError) as caught:
        check_program(program)
    error = caught.value
    if error.position is not None:
        assert program.ranks[error.rank][error.position] == error.instruction
    assert str(error).startswith(f"{error.rule}: ")
    assert str(error.instruction) in str(error)
    return error


def with_rows(program: Program, rows) -> Program:
    return replace(program, ranks=tuple(map(tuple, rows)))


@shared
@given(programs(), st.data())
def test_a_dropped_instruction_is_missed(program: Program, data: st.DataObject) -> None:
    rank, position = pick(data, program)
    rows = [list(row) for row in program.ranks]
    rows[rank].pop(position)
    assert refusal(with_rows(program, rows)).rule == "completeness"


@shared
@given(programs(), st.data())
def test_a_duplicated_instruction_is_found(program: Program, data: st.DataObject) -> None:
    rank, position = pick(data, program)
    to_position = data.draw(st.integers(0, len(program.ranks[rank])))
    rows = [list(row) for row in program.ranks]
    rows[rank].insert(to_position, rows[rank][position])
    error = refusal(with_rows(program, rows))
    assert (error.rule, error.instruction) == ("completeness", rows[rank][to_position])


@shared
@given(programs(), st.data())
def test_an_instruction_moved_to_another_rank_is_found(
    program: Program, data: st.DataObject
) -> None:
    assume(len(program.ranks) > 1)
    rank, position = pick(data, program)
    others = [other for other in range(len(program.ranks)) if other != rank]
    to_rank = data.draw(st.sampled_from(others))
    to_position = data.draw(st.integers(0, len(program.ranks[to_rank])))
    rows = [list(row) for row in program.ranks]
    rows[to_rank].insert(to_position, rows[rank].pop(position))
    # A moved run may change which rank is the stage's, and with it the peers of its messages.
    assert refusal(with_rows(program, rows)).rule in ("placement", "completeness")


@shared
@given(programs(), st.data())
def test_a_moved_instruction_is_refused_exactly_if_the_program_no_longer_works(
    program: Program, data: st.DataObject
) -> None:
    rank, position = pick(data, program)
    to_position = data.draw(st.integers(0, len(program.ranks[rank]) - 1))
    rows = [list(row) for row in program.ranks]
    rows[rank].insert(to_position, rows[rank].pop(position))
    changed = with_rows(program, rows)
    try:
        applied = interpret(changed)
    except AssertionError:
        rules = ("result", "buffer", "update", "stream", "deadlock")
        assert refusal(changed).rule in rules
    else:
        check_program(changed)
        assert applied == expected_gradients(
            program.n_stages,
            program.n_microbatches,
            program.edges,
            backward=program.backward,
        )


def rewritten(old: str, new: str) -> Program:
    """GPipe on 2 stages and 2 microbatches, with its only run of lines `old` turned into `new`."""
    text = [[str(item) for item in row] for row in lower(gpipe(2, 2)).ranks]
    joined = "\n\n".join("\n".join(row) for row in text)
    assert joined.count(old) == 1
    rows = joined.replace(old, new).split("\n\n")
    return with_rows(
        lower(gpipe(2, 2)), [map(parse_instruction, row.strip().split("\n")) for row in rows]
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "\nREDUCE 0",
            "",
            "completeness: edges, sizes and runs need REDUCE 0 on rank 0; got none",
        ),
        (
            "REDUCE 0",
            "REDUCE 0\nREDUCE 0",
            "completeness: REDUCE 0 is there twice; got it at rank 0, position 15",
        ),
        (
            "SEND F0->F1.0 to 1",
            "SEND F0->F1.0 to 0",
            "completeness: edges, sizes and runs need no SEND F0->F1.0 to 0; got it at rank 0, "
            "position 1",
        ),
        (
            "APPLY 0\n\n",
            "\n\nAPPLY 0\n",
            "placement: APPLY 0 belongs to rank 0; got it at rank 1, position 0",
        ),
        (
            "RUN F0.0\nSEND F0->F1.0 to 1",
            "SEND F0->F1.0 to 1\nRUN F0.0",
            "result: SEND F0->F1.0 to 1 needs the result of F0.0, which lives until the next run; "
            "got it at rank 0, position 0, before any run",
        ),
        (
            "SEND F0->F1.0 to 1\nRUN F0.1",
            "RUN F0.1\nSEND F0->F1.0 to 1",
            "result: SEND F0->F1.0 to 1 needs the result of F0.0, which lives until the next run; "
            "got it at rank 0, position 2, after the run of F0.1",
        ),
        (
            "RECV F0->F1.0 from 0\nRUN F1.0",
            "RUN F1.0\nRECV F0->F1.0 from 0",
            "buffer: RUN F1.0 comes after RECV F0->F1.0 from 0; got them at positions 0 and 1 of "
            "rank 1",
        ),
        (
            "RUN F1.0\nFREE F0->F1.0",
            "FREE F0->F1.0\nRUN F1.0",
            "buffer: FREE F0->F1.0 comes after RUN F1.0; got them at positions 1 and 2 of rank 1",
        ),
        (
            "REDUCE 0\nAPPLY 0",
            "APPLY 0\nREDUCE 0",
            "update: APPLY 0 comes after REDUCE 0; got them at positions 14 and 15 of rank 0",
        ),
        (
            "RECV F0->F1.0 from 0\nRUN F1.0\nFREE F0->F1.0\nRECV F0->F1.1 from 0",
            "RECV F0->F1.1 from 0\nRECV F0->F1.0 from 0\nRUN F1.0\nFREE F0->F1.0",
            "stream: the messages of an edge are received in the order they are sent in; got "
            "RECV F0->F1.1 from 0 at rank 1, position 0, where microbatch 0 arrives (sent in the "
            "order [0, 1])",
        ),
        (
            "RUN F0.0\nSEND F0->F1.0 to 1\nRUN F0.1\nSEND F0->F1.1 to 1\nRECV B1->B0.0 from 1",
            "RECV B1->B0.0 from 1\nRUN F0.0\nSEND F0->F1.0 to 1\nRUN F0.1\nSEND F0->F1.1 to 1",
            "deadlock: the ranks wait for each other; got rank 0 stuck at position 0, at "
            "RECV B1->B0.0 from 1",
        ),
    ],
    ids=[
        "missing",
        "twice",
        "wrong peer",
        "other rank",
        "sent too early",
        "sent too late",
        "used too early",
        "freed too early",
        "applied too early",
        "out of order",
        "circle",
    ],
)
def test_messages_name_rule_rank_position_and_instruction(old: str, new: str, message: str) -> None:
    assert str(refusal(rewritten(old, new))) == message


def test_a_stage_that_never_runs_is_missed() -> None:
    program = replace(lower(gpipe(2, 1)), n_stages=3, placement=Placement(((0, 1, 1),)))
    assert str(refusal(program)) == (
        "completeness: edges, sizes and runs need RUN F2.0 on rank 1; got none"
    )


def test_edges_out_of_the_pipeline_are_refused() -> None:
    program = replace(lower(gpipe(2, 1)), n_stages=1, placement=Placement(((0,),)))
    with pytest.raises(EdgeError, match="an edge joins stages 0 to 0; got F0->F1"):
        check_program(program)


def test_copies_of_a_stage_reduce_together() -> None:
    schedule = Schedule.parse(
        "both stages=2 microbatches=2 placement=0,1|1,0:0x1,1x1\n"
        "rank 0: F0.0 F1.1 B1.1 B0.0 G0 G1\n"
        "rank 1: F0.1 F1.0 B1.0 B0.1 G0 G1"
    )
    program = lower(schedule)
    check_program(program)
    row = list(program.ranks[1])
    crossed = [*row[:-4], *row[-2:], *row[-4:-2]]
    assert str(refusal(with_rows(program, [program.ranks[0], crossed]))) == (
        "deadlock: the ranks wait for each other; got rank 0 stuck at position 14, at REDUCE 0"
    )
