import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipesched import Action, ArgumentError, Kind, ParseError


@given(st.builds(Action, st.sampled_from(Kind), st.integers(0, 999), st.integers(0, 999)))
def test_text_round_trip(action: Action) -> None:
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize("text", ["", "F", "F1", "f1.0", "W1.0", "F1.0 ", "F-1.0", "F1.٣"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ParseError, match=r"an action reads <F\|B><stage>\.<microbatch>, as F2\.0"):
        Action.parse(text)


@pytest.mark.parametrize("numbers", [(-1, 0), (0, -1)])
def test_negative_numbers_are_refused(numbers: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match=r"counted from 0; got stage=(-1|0) and microbatch="):
        Action(Kind.FORWARD, *numbers)
