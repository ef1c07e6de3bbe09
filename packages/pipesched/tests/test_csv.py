import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipesched import (
    Action,
    ArgumentError,
    Kind,
    ParseError,
    Schedule,
    chain,
    from_torch_csv,
    make,
    to_torch_csv,
    with_communication,
    with_reductions,
)
from pipesched.testing import made, schedules

chained = schedules() | made().filter(lambda made_one: len(made_one.placement.routes) == 1)


@given(chained, st.booleans(), st.booleans())
def test_round_trip(schedule: Schedule, reduced: bool, communicates: bool) -> None:
    if reduced and schedule.backward:
        schedule = with_reductions(schedule)
    if communicates:
        schedule = with_communication(schedule)
    assert from_torch_csv(to_torch_csv(schedule), schedule.name) == schedule


def test_what_torch_adds_is_left_out_or_taken_apart() -> None:
    text = "0UNSHARD,0F0,,0F1,(0F2;0B0)OVERLAP_F_B, 0I1,0W1,0B2,0RESHARD,0REDUCE_GRAD\r\n"
    schedule = from_torch_csv(text, "mixed")
    assert str(schedule) == (
        "mixed stages=1 microbatches=3\nrank 0: F0.0 F0.1 F0.2 B0.0 I0.1 W0.1 B0.2 G0"
    )


def test_each_end_of_a_transfer_stands_with_its_stage() -> None:
    schedule = from_torch_csv("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")
    assert schedule == with_communication(Schedule("torch", 2, 1, make("1f1b", 2, 1).ranks))


def test_sizes_that_the_text_does_not_show_can_be_given() -> None:
    schedule = from_torch_csv("0F0\n", n_stages=2, n_microbatches=3)
    assert (schedule.n_stages, schedule.n_microbatches) == (2, 3)


@pytest.mark.parametrize(
    "cell", ["F0", "0X0", "0F", "0REDUCE_GRAD1", "(0F0;0B0)", "(0F0,0B0)OVERLAP_F_B", "0SEND_W0"]
)
def test_other_cells_are_refused(cell: str) -> None:
    with pytest.raises(ParseError, match=r"a cell reads <stage><F\|I\|W\|B\|SEND_F"):
        from_torch_csv(f"0F0,{cell}\n")


@pytest.mark.parametrize("cell", ["0RECV_F0", "0SEND_B0"])
def test_a_transfer_out_of_the_pipeline_is_refused(cell: str) -> None:
    with pytest.raises(ParseError, match="stage 0 receives no activation and sends no gradient"):
        from_torch_csv(f"0F0,{cell}\n")


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(ParseError, match="has a row of actions for each rank; got ''"):
        from_torch_csv("")


def odd(**changes) -> Schedule:
    row = tuple(map(Action.parse, ["F0.0", "B0.0", "F0.1", "R0.1", "B0.1"]))
    return Schedule("odd", **({"n_stages": 1, "n_microbatches": 2, "ranks": (row,)} | changes))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (odd(), "torch recomputes within a backward .* got R0.1 at rank 0, position 3"),
        (odd(ranks=((Action(Kind.UPDATE, 0),),)), "got U0 at rank 0, position 0"),
        (make("chimera", 2, 2), "torch's runtime has each stage on one rank; got chimera with 2"),
        (
            odd(n_stages=3, ranks=((),), edges=chain(3, skips=[(0, 2)])),
            "torch's runtime sends activations to the next .* got odd with edges=F0->F1,F0->F2",
        ),
    ],
    ids=["recompute", "update", "routes", "skip"],
)
def test_what_torch_has_no_word_for_is_refused(schedule: Schedule, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        to_torch_csv(schedule)
