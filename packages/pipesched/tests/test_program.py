import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipesched import (
    Accumulate,
    Action,
    Apply,
    ArgumentError,
    Free,
    Instruction,
    Kind,
    ParseError,
    Placement,
    Program,
    Receive,
    Received,
    Reduce,
    Run,
    Saved,
    Send,
    eager_1f1b,
    lower,
    parse_instruction,
)
from pipesched.testing import edge_sets

numbers = st.integers(0, 99)
edges = edge_sets(12).filter(bool).map(lambda found: found[0])
instructions = st.one_of(
    st.builds(
        Run, st.builds(Action, st.sampled_from([Kind.FORWARD, Kind.BACKWARD]), numbers, numbers)
    ),
    st.builds(Send, edges, numbers, numbers),
    st.builds(Receive, edges, numbers, numbers),
    st.builds(
        Free,
        st.builds(Saved, st.sampled_from([Kind.FORWARD, Kind.RECOMPUTE]), numbers, numbers)
        | st.builds(Received, edges, numbers),
    ),
    st.builds(Accumulate, numbers, numbers),
    st.builds(Reduce, numbers),
    st.builds(Apply, numbers),
)

shared = settings(max_examples=max(1, settings().max_examples // 4))


@given(instructions)
def test_text_round_trip(instruction: Instruction) -> None:
    assert parse_instruction(str(instruction)) == instruction


@shared
@given(st.lists(st.lists(instructions), min_size=3), st.booleans())
def test_json_round_trip(ranks: list[list[Instruction]], backward: bool) -> None:
    placement = Placement.bidirectional(3, 2)
    program = Program("any", 3, 2, (), tuple(map(tuple, ranks)), placement, backward)
    assert Program.from_json(program.to_json()) == program


@pytest.mark.parametrize("text", ["", "RUN", "SEND F0->F1.0", "FREE B0.0", "WAIT 1", "APPLY 0 "])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ParseError, match=r"an (instruction|action) reads .* got '"):
        parse_instruction(text)


@pytest.mark.parametrize(
    "change",
    [
        {"edges": 3},
        {"n_stages": "2"},
        {"n_microbatches": 0.5},
        {"backward": "no"},
    ],
    ids=str,
)
def test_json_of_something_else_is_refused(change: dict[str, object]) -> None:
    data = json.loads(lower(eager_1f1b(2, 2)).to_json()) | change
    with pytest.raises(ParseError, match="a program is a JSON object with version, name"):
        Program.from_json(json.dumps(data))


@pytest.mark.parametrize("text", [9999 * "[", '{"version":' + 5000 * "1" + "}"])
def test_another_json_document_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="a program is a JSON object with version, name"):
        Program.from_json(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": [[1]]}, "an instruction reads .* got 1"),
        ({"placement": 0}, "a placement reads .* got 0"),
    ],
    ids=str,
)
def test_json_of_other_texts_is_refused(change: dict[str, object], message: str) -> None:
    data = json.loads(lower(eager_1f1b(2, 2)).to_json()) | change
    with pytest.raises(ParseError, match=message):
        Program.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (2, "a program was written by a newer pipesched .* reads version 1: update"),
        ("1", "a program's JSON has version 1; got version='1'"),
    ],
)
def test_json_of_another_version_is_refused(version: object, message: str) -> None:
    data = json.loads(lower(eager_1f1b(2, 2)).to_json()) | {"version": version}
    with pytest.raises(ParseError, match=message):
        Program.from_json(json.dumps(data))


def test_a_placement_of_something_else_is_refused() -> None:
    with pytest.raises(ArgumentError, match="got 0,1,2 for 3 stages, 1 microbatches and 1 ranks"):
        Program("wrong", 3, 1, (), ((),), Placement.linear(3))


def test_printed_program_is_the_golden_one(check_golden: Callable[[str, str], None]) -> None:
    check_golden("program_eager_1f1b_2x2.txt", str(lower(eager_1f1b(2, 2))))


def test_schedules_and_programs_are_written_as_they_always_were(
    check_golden: Callable[[str, str], None],
) -> None:
    check_golden("schedule_eager_1f1b_2x2.json", eager_1f1b(2, 2).to_json())
    check_golden("program_eager_1f1b_2x2.json", lower(eager_1f1b(2, 2)).to_json())
