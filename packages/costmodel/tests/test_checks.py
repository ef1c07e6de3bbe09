import numpy as np
import pytest
from costmodel import QuantityError
from costmodel.base.checks import checked, count, number, positive
from costmodel.errors import shown
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

BAD = [-1.0, float("nan"), float("inf"), -float("inf")]
NO_NUMBERS = ["3", None, True, 1j, [1, "2"], [1, [2]], {}, 10**400]


@pytest.mark.parametrize("number", [3, 3.0, np.int64(3), np.float32(3), np.array(3)], ids=repr)
def test_numbers_become_floats(number):
    value = checked("n", number)
    assert type(value) is float
    assert value == 3.0


@given(hnp.arrays(np.int64, hnp.array_shapes(min_dims=1, min_side=0), elements=st.integers(0, 99)))
def test_arrays_keep_their_shape_and_become_float64(array):
    value = checked("n", array, whole=True)
    assert value.dtype == np.float64
    assert np.array_equal(value, array)


def test_products_of_large_integers_do_not_overflow():
    n = checked("n", np.array([2**62]))
    assert n * n == 2.0**124


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("wrap", [float, np.float64, lambda x: np.array([1.0, x, 2.0])])
def test_rejects_what_is_out_of_range_alone_and_among_others(bad, wrap):
    with pytest.raises(QuantityError, match=rf"n_bytes is a finite number >= 0; got {bad}"):
        checked("n_bytes", wrap(bad))


@pytest.mark.parametrize("fraction", [2.5, np.array([1.0, 2.5])])
def test_rejects_fractions_of_what_is_counted(fraction):
    with pytest.raises(QuantityError, match=r"rows is a finite whole number >= 1; got 2\.5"):
        checked("rows", fraction, least=1, whole=True)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=shown)
def test_rejects_what_is_no_number(value):
    with pytest.raises(QuantityError, match="n_bytes is a finite number >= 0; got"):
        checked("n_bytes", value)


@pytest.mark.parametrize("check", [number, positive, count])
def test_one_number_is_not_several(check):
    with pytest.raises(QuantityError, match=r"n is one number; got \[1, 2\]"):
        check("n", [1, 2])


def test_one_number_is_in_its_range():
    assert number("part", 1, most=1) == positive("part", 1, most=1) == count("n", 1, most=1) == 1
    with pytest.raises(QuantityError, match=r"part is a number >= 0\.5 and <= 1; got 2"):
        number("part", 2, least=0.5, most=1)
    with pytest.raises(QuantityError, match="part is a number > 0 and <= 1; got 0"):
        positive("part", 0, most=1)
    with pytest.raises(QuantityError, match="n is a whole number >= 0 and <= 9; got 10"):
        count("n", 10, most=9)


@given(st.integers(0, 2**53) | st.integers(0, 2**53).map(float))
def test_counts_are_exact_integers(n):
    assert count("n", n) == n
    assert type(count("n", n)) is int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10**5000, "a whole number of 16610 bits"),
        ("x" * 999, "'" + "x" * 199 + "..."),
        ([1], "[1]"),
    ],
    ids=["number", "text", "list"],
)
def test_messages_show_what_fits_on_a_line(value, text):
    assert shown(value) == text
