from dataclasses import astuple, replace

import numpy as np
import pytest
from costmodel import GroupLinks, Link, MeshLinks, QuantityError
from costmodel.hardware.link import slowest_link
from costmodel.testing import links
from hypothesis import given
from hypothesis import strategies as st
from shardspec import SubAxis

A, B, C, D = (Link(latency_s=0.0, bandwidth_bytes_per_s=rate) for rate in (1.0, 2.0, 3.0, 4.0))
FLAT = {(): A, (0,): B, (1,): C, (0, 1): D}


def find(axes):
    link = FLAT[tuple(sorted(axes))]
    return GroupLinks(size=1, flat=link, single=link, spread=link)


def test_mesh_links_hold_one_link_for_each_axis():
    mesh_links = MeshLinks(2, find)
    assert len(mesh_links) == 2
    assert list(mesh_links) == [B, C]
    assert (mesh_links[1], mesh_links[-1], mesh_links[:1]) == (C, C, (B,))


def test_mesh_links_find_a_set_of_axes_in_any_order():
    mesh_links = MeshLinks(2, find)
    assert mesh_links.over((0, 1)) == mesh_links.over((1, 0)) == D
    assert mesh_links.group([0, 1]).flat == D
    assert mesh_links.over((1,)) == C


def test_mesh_links_find_each_set_once_and_only_when_asked():
    asked = []

    def counted(axes):
        asked.append(axes)
        return find(())

    mesh_links = MeshLinks(2, counted)
    assert asked == []
    for axes in ((0, 1), (1, 0), (SubAxis(0, 1, 2),), (SubAxis(0, 1, 2),)):
        mesh_links.group(axes)
    assert asked == [frozenset({0, 1}), frozenset({SubAxis(0, 1, 2)})]


def test_mesh_links_are_equal_by_what_finds_them_not_by_what_was_asked():
    asked, fresh = MeshLinks(2, find), MeshLinks(2, find)
    asked.over((0,))
    assert asked == fresh
    assert hash(asked) == hash(fresh)


def test_mesh_links_without_axes_are_an_empty_sequence():
    assert list(MeshLinks(0, find)) == []


@pytest.mark.parametrize("axis", [2, -3])
def test_mesh_links_have_no_link_for_an_axis_outside_the_mesh(axis):
    with pytest.raises(IndexError):
        MeshLinks(2, find)[axis]


@given(links(), st.booleans())
def test_a_half_duplex_link_has_half_its_bandwidth_each_way_and_a_full_one_all(link, full):
    link = replace(link, duplex=1 if full else 0.5)
    ways = 1 if full else 2
    assert link.both_ways_bytes_per_s * ways == link.bandwidth_bytes_per_s


@given(st.lists(links(half_duplex=True), min_size=1))
def test_the_slowest_of_several_links_is_the_worst_of_each_figure(several):
    way = slowest_link(several)
    assert way.latency_s == max(link.latency_s for link in several)
    assert way.bandwidth_bytes_per_s == min(link.bandwidth_bytes_per_s for link in several)
    assert way.both_ways_bytes_per_s == pytest.approx(
        min(link.both_ways_bytes_per_s for link in several), rel=1e-15
    )


@given(st.lists(links(half_duplex=True), min_size=1))
def test_a_way_over_parts_of_a_way_is_the_way(several):
    whole = slowest_link(several)
    for cut in range(1, len(several)):
        parts = slowest_link([slowest_link(several[:cut]), slowest_link(several[cut:])])
        assert (parts.latency_s, parts.bandwidth_bytes_per_s) == (
            whole.latency_s,
            whole.bandwidth_bytes_per_s,
        )
        assert parts.duplex == pytest.approx(whole.duplex, rel=1e-14)


@given(links(half_duplex=True), st.floats(1e-3, 1e3))
def test_several_links_side_by_side_have_the_rates_of_all_and_the_latency_of_one(link, factor):
    several = link.times(factor)
    assert several.latency_s == link.latency_s
    assert several.bandwidth_bytes_per_s == link.bandwidth_bytes_per_s * factor
    assert several.both_ways_bytes_per_s == pytest.approx(link.both_ways_bytes_per_s * factor)


@pytest.mark.parametrize("factor", [0, -1, "2", None, float("inf")])
def test_rejects_a_part_of_a_link_that_is_none(factor):
    with pytest.raises(
        QuantityError, match=r"the factor of Link\.times is a finite number > 0; got"
    ):
        A.times(factor)


@pytest.mark.parametrize("number", [np.int64, np.float32, np.float64, int])
def test_figures_of_numpy_become_pythons(number):
    link = Link(number(1), number(8), number(1))
    assert link == Link(1.0, 8.0)
    assert {type(value) for value in astuple(link)} == {float}


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ((-1e-6, 1e9), "latency_s of a link is a finite number >= 0; got -1e-06"),
        ((float("nan"), 1e9), "latency_s of a link is a finite number >= 0; got nan"),
        (("1", 1e9), "latency_s of a link is a finite number >= 0; got '1'"),
        ((None, 1e9), "latency_s of a link is a finite number >= 0; got None"),
        (([0.0, 1.0], 1e9), r"latency_s of a link is one number; got \[0.0, 1.0\]"),
        ((0.0, 0.0), "bandwidth_bytes_per_s of a link is a finite number > 0; got 0.0"),
        ((0.0, float("inf")), "bandwidth_bytes_per_s of a link is a finite number > 0; got inf"),
        ((0.0, 10**400), "bandwidth_bytes_per_s of a link .*; got a whole number of 1329 bits"),
        ((0.0, 1e9, 0.4), "0.5 for half, is a number >= 0.5 and <= 1; got 0.4"),
        ((0.0, 1e9, 2), "duplex of a link, 1 for full .*; got 2"),
        ((0.0, 1e9, False), "duplex of a link, 1 for full .*; got False"),
    ],
)
def test_rejects_a_link_on_which_time_has_no_meaning(figures, message):
    with pytest.raises(QuantityError, match=message):
        Link(*figures)
