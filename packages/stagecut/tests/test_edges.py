import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stagecut import Boundary, InvalidInputError
from stagecut.base.edges import ReceivedBytes
from stagecut.testing import clustering_problems


def bytes_received(values, first, last):
    """Eq. 6's C(first, last) as Alpa says it."""
    return sum(
        value.n_bytes
        for value in values
        if value.producer < first and any(first <= c <= last for c in value.consumers)
    )


@settings(max_examples=max(100, settings().max_examples // 5))
@given(clustering_problems(max_operators=20), st.integers(0, 40))
def test_a_run_ends_at_the_first_operator_that_brings_it_over_the_limit(problem, limit):
    n = len(problem.flops)
    expected = [
        next((k for k in range(i, n) if bytes_received(problem.values, i, k) > limit), n)
        for i in range(n)
    ]
    found = ReceivedBytes(problem.values, n).first_too_much(np.arange(n), limit)
    assert found.tolist() == expected


@settings(max_examples=max(100, settings().max_examples // 5))
@given(clustering_problems(max_operators=20))
def test_crossing_is_what_a_run_to_the_end_receives(problem):
    n = len(problem.flops)
    crossing = ReceivedBytes(problem.values, n).crossing
    assert crossing.tolist() == [bytes_received(problem.values, i, n - 1) for i in range(n)] + [0]


@pytest.mark.parametrize(
    "value",
    [
        Boundary(-1, 1, (0,)),
        Boundary(2, 1, ()),
        Boundary(1, 1, (1,)),
        Boundary(1, 1, (0,)),
        Boundary(0, 1, (2,)),
        Boundary(0, -1, (1,)),
    ],
    ids=str,
)
def test_rejects_values_between_operators_that_cannot_be(value):
    with pytest.raises(InvalidInputError, match=r"read it after one made it; got values\[0\]="):
        ReceivedBytes((value,), 2)


def test_rejects_more_bytes_than_can_be_counted():
    values = (Boundary(0, 2**61, (1,)), Boundary(0, 2**61, (1,)))
    with pytest.raises(InvalidInputError, match=r"less than 2\*\*62; got 46116860184273"):
        ReceivedBytes(values, 2)


def test_bytes_are_whole():
    with pytest.raises(InvalidInputError, match=r"n_bytes=1\.5"):
        ReceivedBytes((Boundary(0, 1.5, (1,)),), 2)
