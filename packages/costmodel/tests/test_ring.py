from fractions import Fraction

import numpy as np
import pytest
from costmodel import (
    Link,
    QuantityError,
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    broadcast_time,
    permute_time,
    point_to_point_time,
    reduce_scatter_time,
)
from costmodel.testing import links
from hypothesis import given
from hypothesis import strategies as st

TABLE_2_TIMES = [all_gather_time, all_reduce_time, all_to_all_time, reduce_scatter_time]
table_2_times = pytest.mark.parametrize("time", TABLE_2_TIMES, ids=lambda time: time.__name__)
group_times = pytest.mark.parametrize(
    "time", [*TABLE_2_TIMES, broadcast_time, permute_time], ids=lambda time: time.__name__
)
sizes = st.integers(0, 2**40)
groups = st.integers(1, 512)


def table_2(time, p, n, link):
    """The rows of AutoDDL's Table 2 in exact arithmetic, typed in from the paper."""
    alpha, beta = Fraction(link.latency_s), 1 / Fraction(link.bandwidth_bytes_per_s)
    if time is all_reduce_time:
        return (2 * p - 1) * alpha + 2 * Fraction(p - 1, p) * n * beta
    return (p - 1) * alpha + Fraction(p - 1, p) * n * beta


@table_2_times
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
        (permute_time, 0.5 + 4.0),
        (broadcast_time, 102 * (0.5 + 4 / 100)),
    ],
)
def test_four_devices_at_half_a_second_and_one_byte_a_second(time, seconds):
    link = Link(latency_s=0.5, bandwidth_bytes_per_s=1.0)
    assert time(4, 4, link) == pytest.approx(seconds, rel=1e-12)


@group_times
@given(n_bytes=sizes, link=links())
def test_a_group_of_one_is_free(time, n_bytes, link):
    assert time(1, n_bytes, link) == 0.0


@group_times
@given(n=groups, few=sizes, more=sizes, link=links(half_duplex=True))
def test_more_bytes_never_cost_less(time, n, few, more, link):
    assert time(n, few, link) <= time(n, few + more, link)


@group_times
@given(n=groups, n_bytes=sizes, link=links(half_duplex=True), factor=st.floats(1, 1e3))
def test_more_bandwidth_never_costs_more(time, n, n_bytes, link, factor):
    faster = Link(link.latency_s, link.bandwidth_bytes_per_s * factor)
    assert time(n, n_bytes, faster) <= time(n, n_bytes, link) * (1 + 1e-12)


@group_times
@given(n=groups, n_bytes=sizes, link=links(), extra=st.floats(0, 1))
def test_more_latency_never_costs_less(time, n, n_bytes, link, extra):
    slower = Link(link.latency_s + extra, link.bandwidth_bytes_per_s)
    assert time(n, n_bytes, slower) >= time(n, n_bytes, link)


@group_times
@given(
    ns=st.lists(groups, min_size=3, max_size=3),
    n_bytes=st.lists(sizes, min_size=2, max_size=2),
    link=links(half_duplex=True),
)
def test_arrays_broadcast_and_have_the_times_of_their_elements(time, ns, n_bytes, link):
    seconds = time(np.array(ns)[:, None], np.array(n_bytes), link)
    assert seconds.shape == (3, 2)
    assert seconds.tolist() == [[time(n, size, link) for size in n_bytes] for n in ns]
    assert type(time(ns[0], n_bytes[0], link)) is float


@table_2_times
@given(n=groups, n_bytes=sizes, link=links())
def test_a_ring_has_half_of_a_half_duplex_link(time, n, n_bytes, link):
    half_duplex = Link(link.latency_s, link.bandwidth_bytes_per_s, duplex=0.5)
    half = Link(link.latency_s, link.bandwidth_bytes_per_s / 2)
    assert time(n, n_bytes, half_duplex) == time(n, n_bytes, half)


def test_one_message_has_all_of_a_half_duplex_link_and_two_that_cross_have_half():
    link = Link(0.0, 8.0, duplex=0.5)
    assert point_to_point_time(8, link) == broadcast_time(2, 8, link) == 1.0
    assert permute_time(2, 8, link) == 2.0


@given(n_bytes=sizes, more=sizes, link=links())
def test_a_message_costs_one_latency_and_its_bytes(n_bytes, more, link):
    assert point_to_point_time(0, link) == link.latency_s
    assert point_to_point_time(n_bytes, link) <= point_to_point_time(n_bytes + more, link)
    assert point_to_point_time(n_bytes, link) == pytest.approx(
        link.latency_s + n_bytes / link.bandwidth_bytes_per_s
    )


@given(n=st.integers(2, 64), n_bytes=sizes, link=links())
def test_a_broadcast_in_one_piece_is_one_message_after_the_other(n, n_bytes, link):
    assert broadcast_time(n, n_bytes, link, 1) == pytest.approx(
        (n - 1) * point_to_point_time(n_bytes, link)
    )


def test_many_chunks_bring_a_broadcast_near_one_message():
    # Cross-mesh resharding, section 3.1: t + A t/K, to one step, for 8 receivers and K = 100.
    t = point_to_point_time(1e9, Link(0.0, 1e9))
    assert broadcast_time(9, 1e9, Link(0.0, 1e9), 100) == pytest.approx(t + (8 - 1) * t / 100)


@pytest.mark.parametrize(
    ("n", "n_bytes", "message"),
    [
        (0, 8, r"n is a finite whole number >= 1; got 0"),
        (2.5, 8, r"n is a finite whole number >= 1; got 2.5"),
        (2, -1, r"n_bytes is a finite number >= 0; got -1"),
        (2, float("nan"), r"n_bytes is a finite number >= 0; got nan"),
        (2, np.array([1.0, -2.0]), r"n_bytes is a finite number >= 0; got -2.0"),
    ],
)
@group_times
def test_rejects_groups_and_bytes_out_of_range(time, n, n_bytes, message):
    with pytest.raises(QuantityError, match=message):
        time(n, n_bytes, Link(0.0, 1.0))


def test_rejects_a_message_of_negative_size():
    with pytest.raises(QuantityError, match="n_bytes is a finite number >= 0; got -1"):
        point_to_point_time(-1, Link(0.0, 1.0))


def test_rejects_a_broadcast_in_no_chunks():
    with pytest.raises(QuantityError, match="n_chunks is a finite whole number >= 1; got 0"):
        broadcast_time(2, 8, Link(0.0, 1.0), 0)
