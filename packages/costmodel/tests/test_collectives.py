from fractions import Fraction

import pytest
from costmodel import (
    Link,
    QuantityError,
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    point_to_point_time,
    reduce_scatter_time,
)
from costmodel.testing import links
from hypothesis import given
from hypothesis import strategies as st

GROUP_TIMES = [all_gather_time, all_reduce_time, all_to_all_time, reduce_scatter_time]
group_times = pytest.mark.parametrize("time", GROUP_TIMES, ids=lambda time: time.__name__)
sizes = st.integers(0, 2**40)
groups = st.integers(1, 512)


def table_2(time, p, n, link):
    """The rows of AutoDDL's Table 2 in exact arithmetic, typed in from the paper."""
    alpha, beta = Fraction(link.latency_s), 1 / Fraction(link.bandwidth_bytes_per_s)
    if time is all_reduce_time:
        return (2 * p - 1) * alpha + 2 * Fraction(p - 1, p) * n * beta
    return (p - 1) * alpha + Fraction(p - 1, p) * n * beta


@group_times
@given(p=st.integers(2, 512), n=sizes, link=links())
def test_a_collective_costs_what_table_2_says(time, p, n, link):
    assert time(p, n, link) == pytest.approx(float(table_2(time, p, n, link)), rel=1e-12)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        (all_reduce_time, 7 * 0.5 + 2 * 3.0),
        (all_gather_time, 3 * 0.5 + 3.0),
        (reduce_scatter_time, 3 * 0.5 + 3.0),
        (all_to_all_time, 3 * 0.5 + 3.0),
    ],
)
def test_four_devices_at_half_a_second_and_one_byte_a_second(time, seconds):
    assert time(4, 4, Link(latency_s=0.5, bandwidth_bytes_per_s=1.0)) == seconds


@group_times
@given(n_bytes=sizes, link=links())
def test_a_group_of_one_is_free(time, n_bytes, link):
    assert time(1, n_bytes, link) == 0.0


@group_times
@given(n=groups, few=sizes, more=sizes, link=links())
def test_more_bytes_never_cost_less(time, n, few, more, link):
    assert time(n, few, link) <= time(n, few + more, link)


@group_times
@given(n=groups, n_bytes=sizes, link=links(), factor=st.floats(1, 1e3))
def test_more_bandwidth_never_costs_more(time, n, n_bytes, link, factor):
    faster = Link(link.latency_s, link.bandwidth_bytes_per_s * factor)
    assert time(n, n_bytes, faster) <= time(n, n_bytes, link)


@group_times
@given(n=groups, n_bytes=sizes, link=links(), extra=st.floats(0, 1))
def test_more_latency_never_costs_less(time, n, n_bytes, link, extra):
    slower = Link(link.latency_s + extra, link.bandwidth_bytes_per_s)
    assert time(n, n_bytes, slower) >= time(n, n_bytes, link)


@given(n_bytes=sizes, more=sizes, link=links())
def test_a_message_costs_one_latency_and_its_bytes(n_bytes, more, link):
    assert point_to_point_time(0, link) == link.latency_s
    assert point_to_point_time(n_bytes, link) <= point_to_point_time(n_bytes + more, link)
    assert point_to_point_time(n_bytes, link) == pytest.approx(
        link.latency_s + n_bytes / link.bandwidth_bytes_per_s
    )


@pytest.mark.parametrize(("n", "n_bytes"), [(0, 8), (2, -1)])
@group_times
def test_rejects_an_empty_group_and_negative_bytes(time, n, n_bytes):
    message = f"a collective needs n >= 1 devices and n_bytes >= 0; got n={n}, n_bytes={n_bytes}"
    with pytest.raises(QuantityError, match=message):
        time(n, n_bytes, Link(0.0, 1.0))


def test_rejects_a_message_of_negative_size():
    with pytest.raises(QuantityError, match="a message needs n_bytes >= 0; got n_bytes=-1"):
        point_to_point_time(-1, Link(0.0, 1.0))
