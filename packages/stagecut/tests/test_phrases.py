import pytest
from hypothesis import given
from hypothesis import strategies as st
from stagecut.slice import phrases


@given(st.floats(0, 1e12, allow_subnormal=False))
def test_seconds_keep_three_digits(value):
    text, unit = phrases.seconds(value).split()
    scale = {"s": 1, "ms": 1e-3, "us": 1e-6}[unit]
    assert float(text) * scale == pytest.approx(value, rel=0.0051)


@given(st.integers(0, 2**60))
def test_sizes_keep_three_digits(value):
    text, unit = phrases.gib(value).split()
    scale = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}[unit]
    assert float(text) * scale == pytest.approx(value, rel=0.0051)


@given(st.lists(st.lists(st.text("ab ", max_size=5), min_size=3, max_size=3), min_size=1))
def test_columns_of_a_table_begin_or_end_together(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for line, row in zip(phrases.table(rows, right=(1,)), rows, strict=True):
        line = line.ljust(sum(widths) + 4)
        assert line[: widths[0]].rstrip() == row[0].rstrip()
        assert line[: widths[0] + 2 + widths[1]].endswith(row[1])
