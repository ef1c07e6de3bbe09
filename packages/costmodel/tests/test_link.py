import pytest
from costmodel import GroupLinks, Link, MeshLinks, QuantityError
from costmodel.link import slowest
from costmodel.testing import links
from hypothesis import given
from hypothesis import strategies as st
from shardspec import SubAxis

A, B, C, D = (Link(latency_s=0.0, bandwidth_bytes_per_s=rate) for rate in (1.0, 2.0, 3.0, 4.0))
FLAT = {(): A, (0,): B, (1,): C, (0, 1): D}


def find(axes):
    link = FLAT[tuple(sorted(axes))]
    return GroupLinks(size=1, flat=link, spread=link)


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
        return GroupLinks(size=1, flat=A, spread=A)

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
    link = Link(link.latency_s, link.bandwidth_bytes_per_s, full)
    ways = 1 if full else 2
    assert link.both_ways_bytes_per_s * ways == link.bandwidth_bytes_per_s


@given(st.lists(links(), min_size=1), st.data())
def test_slowest_is_no_better_than_any_link_in_any_figure(several, data):
    several = [
        Link(link.latency_s, link.bandwidth_bytes_per_s, data.draw(st.booleans()))
        for link in several
    ]
    bound = slowest(several)
    assert bound.latency_s == max(link.latency_s for link in several)
    assert bound.both_ways_bytes_per_s == min(link.both_ways_bytes_per_s for link in several)
    assert all(bound.bandwidth_bytes_per_s <= link.bandwidth_bytes_per_s for link in several)


@given(st.lists(links(), min_size=1), st.booleans())
def test_slowest_of_links_of_one_kind_is_exact_one_way_too(several, full):
    several = [Link(link.latency_s, link.bandwidth_bytes_per_s, full) for link in several]
    bound = slowest(several)
    assert bound.full_duplex == full
    assert bound.bandwidth_bytes_per_s == min(link.bandwidth_bytes_per_s for link in several)


@pytest.mark.parametrize(
    ("latency_s", "bandwidth_bytes_per_s"),
    [(-1e-6, 1e9), (float("nan"), 1e9), (0.0, 0.0), (0.0, float("inf"))],
)
def test_rejects_a_link_on_which_time_has_no_meaning(latency_s, bandwidth_bytes_per_s):
    with pytest.raises(QuantityError, match="a link needs a finite latency_s >= 0 and a finite"):
        Link(latency_s, bandwidth_bytes_per_s)
