import pytest
from hypothesis import given
from pipesched import Action, ArgumentError, Edge, EdgeError, Kind, ParseError
from pipesched.testing import actions

EDGE = Edge.parse("F0->F1")


@given(actions())
def test_text_round_trip(action: Action) -> None:
    assert Action.parse(str(action)) == action


@given(actions())
def test_repr_is_the_call_that_makes_it(action: Action) -> None:
    assert eval(repr(action)) == action


@given(actions(), actions())
def test_equal_actions_and_no_others_print_alike(one: Action, other: Action) -> None:
    assert (one == other) == (str(one) == str(other))
    assert one != other or hash(one) == hash(other)


@pytest.mark.parametrize(
    "text",
    ["", "F", "F1", "f1.0", "W1", "G1.0", "F1.0 ", "F-1.0", "F1.٣", "SEND1.0", "SEND_F0->F1"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ParseError, match=r"an action reads <F\|B\|I\|W\|R><stage>\.<microbatch>"):
        Action.parse(text)


def test_a_text_of_an_impossible_edge_is_refused() -> None:
    with pytest.raises(EdgeError, match="an edge points forwards"):
        Action.parse("SEND_F1->F0.0")


@pytest.mark.parametrize("numbers", [(-1, 0), (0, -1)])
def test_negative_numbers_are_refused(numbers: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match=r"counted from 0; got stage=(-1|0) and microbatch="):
        Action(Kind.FORWARD, *numbers)


@pytest.mark.parametrize(
    ("kind", "microbatch"), [(Kind.FORWARD, None), (Kind.REDUCE, 0), (Kind.UPDATE, 0)]
)
def test_a_microbatch_is_given_exactly_if_the_work_is_of_one(
    kind: Kind, microbatch: int | None
) -> None:
    message = f"for all microbatches .* got kind={kind} and microbatch={microbatch}"
    with pytest.raises(ArgumentError, match=message):
        Action(kind, 0, microbatch)


@pytest.mark.parametrize(
    ("kind", "stage", "edge"),
    [(Kind.SEND, 1, EDGE), (Kind.RECEIVE, 0, EDGE), (Kind.SEND, 0, None)],
    ids=["send at dst", "receive at src", "no edge"],
)
def test_a_transfer_stands_at_its_end_of_an_edge(kind: Kind, stage: int, edge: Edge | None) -> None:
    with pytest.raises(
        ArgumentError, match=r"stage of a send is its edge's src, .* with stage [01]"
    ):
        Action(kind, stage, 0, edge)


def test_work_has_no_edge() -> None:
    with pytest.raises(ArgumentError, match="only sends and receives have an edge; got F with F0"):
        Action(Kind.FORWARD, 0, 0, EDGE)


def test_what_only_some_actions_have_is_refused_of_others() -> None:
    sent = Action.send(EDGE, 3)
    assert (sent.moved_over, sent.one_microbatch) == (EDGE, 3)
    with pytest.raises(ArgumentError, match=r"have no microbatch; got U2$"):
        _ = Action.parse("U2").one_microbatch
    with pytest.raises(ArgumentError, match=r"only sends and receives have an edge; got F2\.0$"):
        _ = Action.parse("F2.0").moved_over
