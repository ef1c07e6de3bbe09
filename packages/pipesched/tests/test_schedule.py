import json

import pytest
from hypothesis import given
from pipesched import ArgumentError, ParseError, Schedule, gpipe
from pipesched.testing import schedules


@given(schedules())
def test_text_round_trip(schedule: Schedule) -> None:
    assert Schedule.parse(str(schedule)) == schedule


@given(schedules())
def test_json_round_trip(schedule: Schedule) -> None:
    assert Schedule.from_json(schedule.to_json()) == schedule


def test_an_idle_rank_survives_the_round_trip() -> None:
    schedule = Schedule("idle", 1, 1, (*gpipe(1, 1).ranks, ()))
    assert Schedule.parse(str(schedule)) == Schedule.from_json(schedule.to_json()) == schedule


@given(schedules())
def test_placement_is_where_a_stage_runs(schedule: Schedule) -> None:
    for rank, actions in enumerate(schedule.ranks):
        assert all(schedule.placement[action.stage] == rank for action in actions)


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0)])
def test_empty_pipelines_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match="at least one stage and one microbatch; got n_stages="):
        Schedule("empty", *sizes, ((),))


def test_no_rank_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"a schedule has at least one rank; got ranks=\(\)"):
        Schedule("empty", 1, 1, ())


@pytest.mark.parametrize("name", ["", "two words", "two\nlines"])
def test_names_that_cannot_be_read_back_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="a schedule's name is one word; got name="):
        Schedule(name, 1, 1, ((),))


@pytest.mark.parametrize("text", ["", "1f1b", "1f1b stages=x microbatches=1"])
def test_a_text_without_header_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="a schedule starts with <name> stages=<n> microbatches="):
        Schedule.parse(text)


@pytest.mark.parametrize("row", ["F0.0", "rank 1: F0.0", "rank 0:F0.0"])
def test_a_text_with_another_row_is_refused(row: str) -> None:
    with pytest.raises(ParseError, match="line 2 of a schedule starts with rank 0:; got "):
        Schedule.parse(f"1f1b stages=1 microbatches=1\n{row}")


@pytest.mark.parametrize(
    "change",
    [{"ranks": 1}, {"ranks": [[1]]}, {"n_stages": "1"}, {"n_stages": 1.5}, {"name": None}],
    ids=str,
)
def test_json_of_something_else_is_refused(change: dict[str, object]) -> None:
    data = json.loads(gpipe(1, 1).to_json()) | change
    with pytest.raises(ParseError, match="a schedule is a JSON object with name, n_stages"):
        Schedule.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["{", "[]", "{}", "1"])
def test_another_json_document_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="a schedule is a JSON object with name, n_stages"):
        Schedule.from_json(text)
