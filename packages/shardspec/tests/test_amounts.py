"""How amounts are written, in every package: digits, units, columns."""

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shardspec.amounts import bytes_of, bytes_text, columns, count_text, seconds_text, share_text
from shardspec.errors import AmountError

SCALES = {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
SIZES = {"B": 1, **{f"{'KMGTPEZYRQ'[k]}iB": 1024 ** (k + 1) for k in range(10)}}


@given(st.floats(1e-9, 1e12))
@example(9.9995e-4)
def test_seconds_keep_three_digits(value):
    text, unit = seconds_text(value).split()
    number = float(text.replace(",", ""))
    assert number * SCALES[unit] == pytest.approx(value, rel=0.0051)
    assert number < 1000 or unit == "s"
    assert "e" not in text
    assert seconds_text(-value) == f"-{seconds_text(value)}"


@given(st.integers(0, 2**100))
@example(1023)
@example(2**20 - 1)
def test_bytes_keep_three_digits(value):
    text, unit = bytes_text(value).split()
    number = float(text.replace(",", ""))
    assert number * SIZES[unit] == pytest.approx(value, rel=0.0051)
    assert number < 1024
    assert not re.search(r"\.\d*0$", text)


def test_amounts_that_are_none_or_without_end():
    assert (seconds_text(0.0), bytes_text(0)) == ("0 s", "0 B")
    assert seconds_text(math.inf) == "never"
    assert seconds_text(1e-12) == "1e-12 s"


@given(st.floats(0, 1))
def test_shares_have_a_digit_where_they_are_small(part):
    text, sign = share_text(part, 1).split()
    assert sign == "%"
    assert float(text) == pytest.approx(100 * part, abs=0.0501 if part < 0.0994 else 0.501)


def test_counts_are_of_one_or_of_several():
    assert [count_text(n, "branch") for n in (0, 1, 2000)] == [
        "0 branches",
        "1 branch",
        "2,000 branches",
    ]


@given(st.lists(st.lists(st.text("ab ", max_size=5), min_size=3, max_size=3), min_size=1))
def test_columns_begin_or_end_together(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for line, row in zip(columns(rows, right=(1,)), rows, strict=True):
        line = line.ljust(sum(widths) + 4)
        assert line[: widths[0]].rstrip() == row[0].rstrip()
        assert line[: widths[0] + 2 + widths[1]].endswith(row[1])


@given(st.integers(0, 2**60))
def test_bytes_are_read_as_they_are_written(value):
    text = bytes_text(value)
    assert bytes_of(text.replace(",", "")) == pytest.approx(value, rel=0.0051)
    assert bytes_of(str(value)) == bytes_of(f" {value} b ") == value


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("1.5GiB", 3 << 29), ("2gb", 2 * 10**9), ("0.1 KB", 100), ("999999999999999999", 10**18 - 1)],
)
def test_bytes_have_binary_units_and_decimal_ones(text, n_bytes):
    assert bytes_of(text) == n_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "1 GiBs", "1,024", "\u0661", "inf"])
def test_what_is_no_amount_of_bytes_is_refused(text):
    with pytest.raises(
        AmountError, match=r"a number, with or without one of B, KiB, .*as 1\.5GiB; got"
    ):
        bytes_of(text)
