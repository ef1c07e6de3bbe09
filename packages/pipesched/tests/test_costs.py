import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipesched import ArgumentError, Costs, Edge, Kind

UP, DOWN = Edge.parse("F0->F1"), Edge.parse("B1->B0")
PARTS = (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
times = st.integers(0, 100)


@given(times, times, st.sampled_from(["i", "w", "iw", "iwb"]))
def test_whatever_is_left_out_a_backward_is_its_two_parts(i: int, w: int, given: str) -> None:
    fields = {"i": "input_gradient_s", "w": "weight_gradient_s", "b": "backward_s"}
    values = {"i": i, "w": w, "b": i + w}
    costs = Costs(1, **{fields[x]: values[x] for x in ("b" + given if given != "iw" else given)})
    assert [costs.seconds(kind, 2) for kind in (Kind.BACKWARD, *PARTS)] == [
        (i + w, i + w),
        (i, i),
        (w, w),
    ]


def test_a_backward_alone_splits_in_halves() -> None:
    costs = Costs(1.0, [2.0, 3.0])
    assert [costs.seconds(kind, 2) for kind in PARTS] == [(1.0, 1.5), (1.0, 1.5)]


def test_recomputing_takes_a_forward_unless_it_is_given() -> None:
    assert Costs([1.0, 2.0]).seconds(Kind.RECOMPUTE, 2) == (1.0, 2.0)
    assert Costs([1.0, 2.0], recompute_s=0.5).seconds(Kind.RECOMPUTE, 2) == (0.5, 0.5)


def test_a_weight_gradient_needs_all_activations_unless_it_is_given() -> None:
    assert Costs(1.0, activation_bytes=[3, 4]).sizes("weight_gradient_bytes", 2) == (3, 4)
    assert Costs(1.0, weight_gradient_bytes=2).sizes("weight_gradient_bytes", 2) == (2, 2)


def test_a_message_takes_its_bytes_over_the_bandwidth_and_then_the_latency() -> None:
    costs = Costs(1.0, latency_s=0.5, message_bytes={UP: 6, DOWN: 8}, bytes_per_s=2.0)
    assert (costs.link_s(UP), costs.link_s(DOWN)) == ((3.0, 0.5), (4.0, 0.5))


def test_a_transfer_time_that_is_given_counts() -> None:
    assert Costs(1.0, transfer_s={UP: 7.0}, message_bytes=6).link_s(UP) == (7.0, 0.0)


def test_signal_is_one_byte_a_message() -> None:
    costs = Costs(1.0, latency_s=0.5, message_bytes={UP: 6}, bytes_per_s=2.0)
    assert costs.signal().link_s(UP) == (0.5, 0.5)
    assert Costs(1.0, transfer_s=3.0, latency_s=0.5).signal().link_s(UP) == (0.0, 0.5)


def test_lists_and_mappings_are_copied() -> None:
    forward_s, transfer_s = [1.0, 2.0], {UP: 1.0}
    costs = Costs(forward_s, transfer_s=transfer_s)
    forward_s[0] = transfer_s[UP] = 9.0
    assert (costs.forward_s, costs.transfer_s) == ((1.0, 2.0), {UP: 1.0})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"forward_s": -1.0}, "a time is finite and not negative; got -1.0 in forward_s"),
        ({"backward_s": [1.0, math.inf]}, "a time is .*; got inf in backward_s"),
        ({"transfer_s": {UP: math.nan}}, "a time is .*; got nan in transfer_s"),
        ({"activation_bytes": -1}, "a size is .*; got -1 in activation_bytes"),
        ({"bytes_per_s": 0.0}, "a bandwidth is above 0; got 0.0 in bytes_per_s"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_impossible_numbers_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Costs(**{"forward_s": 1.0, **fields})


def test_one_number_for_each_stage() -> None:
    costs = Costs([1.0, 2.0], activation_bytes=[5])
    with pytest.raises(ArgumentError, match=r"forward_s is one number.*got 2 numbers for n_stages"):
        costs.seconds(Kind.FORWARD, 3)
    with pytest.raises(ArgumentError, match="activation_bytes is one number, or one for each"):
        costs.sizes("activation_bytes", 2)


def test_one_number_for_each_edge() -> None:
    with pytest.raises(ArgumentError, match=r"transfer_s is one number.*got none for B1->B0"):
        Costs(1.0, transfer_s={UP: 1.0}).link_s(DOWN)


@pytest.mark.parametrize("part", ["input_gradient_s", "weight_gradient_s"])
def test_a_part_longer_than_the_whole_is_refused(part: str) -> None:
    costs = Costs(1.0, 2.0, **{part: [2.0, 3.0]})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=f"backward_s=2.0 and {part}=3.0 for stage 1"):
        costs.seconds(Kind.BACKWARD, 2)


def test_parts_that_do_not_add_up_to_the_whole_are_refused() -> None:
    costs = Costs(1.0, [3.0, 4.0], input_gradient_s=1.0, weight_gradient_s=2.0)
    message = "backward_s=4.0, input_gradient_s=1.0 and weight_gradient_s=2.0 for stage 1; leave"
    with pytest.raises(ArgumentError, match=message):
        costs.seconds(Kind.BACKWARD, 2)


@pytest.mark.parametrize("fields", [{}, {"input_gradient_s": 1.0}])
def test_a_backward_without_time_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match="a schedule with backwards needs backward_s, or"):
        Costs(1.0, **fields).seconds(Kind.BACKWARD, 1)  # type: ignore[arg-type]


def test_a_send_has_no_seconds_of_its_own() -> None:
    with pytest.raises(
        ArgumentError, match=r"takes the time of its edge's link_s; got <Kind\.SEND"
    ):
        Costs(1.0).seconds(Kind.SEND, 1)
