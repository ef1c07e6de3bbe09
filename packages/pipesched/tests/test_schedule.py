import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipesched import (
    Action,
    ArgumentError,
    EdgeError,
    Kind,
    ParseError,
    Placement,
    Schedule,
    chain,
    gpipe,
)
from pipesched.testing import actions, edge_sets, placements, schedules

shared = settings(max_examples=max(1, settings().max_examples // 4))


@st.composite
def lists(draw: st.DrawFn) -> Schedule:
    """Any lists of actions, right or wrong, with any placement and edges."""
    n_stages, n_microbatches = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    backward = draw(st.booleans())
    edges = draw(st.none() | edge_sets(n_stages))
    if edges is not None and not backward:
        edges = tuple(edge for edge in edges if edge.dst[0] is Kind.FORWARD)
    row = st.lists(actions(n_stages, n_microbatches), max_size=8).map(tuple)
    placement = draw(st.none() | placements(n_stages, n_microbatches))
    n_ranks = 1 if placement is None else placement.n_ranks
    ranks = tuple(draw(st.lists(row, min_size=n_ranks, max_size=n_ranks + 2)))
    return Schedule("any", n_stages, n_microbatches, ranks, placement, edges, backward)


@shared
@given(schedules() | lists())
def test_text_round_trip(schedule: Schedule) -> None:
    assert Schedule.parse(str(schedule)) == schedule


@shared
@given(schedules() | lists())
def test_json_round_trip(schedule: Schedule) -> None:
    assert Schedule.from_json(schedule.to_json()) == schedule


def test_an_idle_rank_survives_the_round_trip() -> None:
    schedule = Schedule("idle", 1, 1, (*gpipe(1, 1).ranks, ()))
    assert Schedule.parse(str(schedule)) == Schedule.from_json(schedule.to_json()) == schedule


@given(schedules())
def test_placement_is_where_a_stage_runs(schedule: Schedule) -> None:
    for rank, row in enumerate(schedule.ranks):
        assert all(schedule.placement.rank(action.stage, 0) == rank for action in row)


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0)])
def test_empty_pipelines_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match="at least one stage and one microbatch; got n_stages="):
        Schedule("empty", *sizes, ((),))


@pytest.mark.parametrize(
    "placement",
    [Placement.linear(2), Placement.looped(1, 3), Placement.bidirectional(1, 3)],
    ids=["ranks", "stages", "microbatches"],
)
def test_a_placement_of_something_else_is_refused(placement: Placement) -> None:
    n_stages = placement.n_stages + (placement.n_stages == 3)
    with pytest.raises(ArgumentError, match="a placement has the stages, microbatches and"):
        Schedule("wrong", n_stages, 2, ((),), placement)


def test_an_inference_pipeline_has_no_edges_of_backwards() -> None:
    assert Schedule("inference", 3, 1, ((),), backward=False).edges == chain(3, backward=False)
    with pytest.raises(EdgeError, match="backward=False has edges of forwards only; got edges=F0"):
        Schedule("inference", 2, 1, ((),), edges=chain(2), backward=False)


def test_a_header_says_what_is_not_usual() -> None:
    edges = chain(3, skips=[(0, 2)], backward=False)
    placement = Placement.bidirectional(3, 2)
    text = str(Schedule("odd", 3, 2, ((),) * 3, placement, edges, backward=False))
    assert text.splitlines()[0] == (
        "odd stages=3 microbatches=2 placement=0,1,2|2,1,0:0x1,1x1 "
        "edges=F0->F1,F0->F2,F1->F2 backward=no"
    )


def test_says_whether_it_communicates_and_updates() -> None:
    plain = gpipe(2, 1)
    assert (plain.communicates, plain.updates) == (False, False)
    more = (*plain.ranks[0], Action(Kind.UPDATE, 0)), (*plain.ranks[1],)
    assert Schedule("more", 2, 1, more).updates
    sent = (*plain.ranks[0], Action.send(plain.edges[0], 0)), (*plain.ranks[1],)
    assert Schedule("sent", 2, 1, sent).communicates


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
    [
        {"ranks": 1},
        {"n_stages": 1e400},
        {"n_stages": "1"},
        {"n_stages": 1.5},
        {"name": None},
        {"edges": 1},
        {"backward": "no"},
    ],
    ids=str,
)
def test_json_of_something_else_is_refused(change: dict[str, object]) -> None:
    data = json.loads(gpipe(1, 1).to_json()) | change
    with pytest.raises(ParseError, match="a schedule is a JSON object with version, name"):
        Schedule.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": [[1]]}, "an action reads .* got 1"),
        ({"ranks": [["F" + 10 * "1" + ".0"]]}, "an action reads .* got 'F1111111111.0'"),
        ({"placement": 0}, "a placement reads .* got 0"),
        ({"placement": "0,1|1,0:0x999999999"}, "a placement has at most 10,000,000 microbatches"),
        ({"edges": [1]}, "an edge reads .* got 1"),
    ],
    ids=str,
)
def test_json_of_other_texts_is_refused(change: dict[str, object], message: str) -> None:
    data = json.loads(gpipe(1, 1).to_json()) | change
    with pytest.raises(ParseError, match=message):
        Schedule.from_json(json.dumps(data))


@pytest.mark.parametrize("text", [9 * "1", None], ids=str)
def test_only_texts_are_parsed(text: object) -> None:
    with pytest.raises(ParseError, match="a schedule"):
        Schedule.parse(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", "1", 9999 * "[", '{"version":' + 5000 * "1" + "}", None, 1],
    ids=lambda text: f"{text!r:.12}",
)
def test_another_json_document_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="a schedule is a JSON object with version, name"):
        Schedule.from_json(text)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (2, "a schedule was written by a newer pipesched .* reads version 1: update"),
        ("1", "a schedule's JSON has version 1; got version='1'"),
    ],
)
def test_json_of_another_version_is_refused(version: object, message: str) -> None:
    data = json.loads(gpipe(1, 1).to_json()) | {"version": version}
    with pytest.raises(ParseError, match=message):
        Schedule.from_json(json.dumps(data))
