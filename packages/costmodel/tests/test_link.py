import pytest
from costmodel import Link, MeshLinks, QuantityError
from costmodel.link import slowest
from costmodel.testing import links
from hypothesis import given
from hypothesis import strategies as st

A, B, C, D = (Link(latency_s=0.0, bandwidth_bytes_per_s=rate) for rate in (1.0, 2.0, 3.0, 4.0))


def test_mesh_links_hold_one_link_for_each_axis():
    mesh_links = MeshLinks((A, B, C, D))
    assert len(mesh_links) == 2
    assert list(mesh_links) == [B, C]
    assert (mesh_links[1], mesh_links[-1], mesh_links[:1]) == (C, C, (B,))


def test_mesh_links_find_a_set_of_axes_in_any_order():
    mesh_links = MeshLinks((A, B, C, D))
    assert mesh_links.over((0, 1)) == mesh_links.over((1, 0)) == D
    assert mesh_links.over((1,)) == C


def test_mesh_links_without_axes_are_an_empty_sequence():
    assert list(MeshLinks((A,))) == []


@pytest.mark.parametrize("axis", [2, -3])
def test_mesh_links_have_no_link_for_an_axis_outside_the_mesh(axis):
    with pytest.raises(IndexError):
        MeshLinks((A, B, C, D))[axis]


@given(st.lists(links(), min_size=1))
def test_slowest_is_no_better_than_any_link_in_either_figure(several):
    bound = slowest(several)
    assert bound.latency_s in {link.latency_s for link in several}
    assert bound.bandwidth_bytes_per_s in {link.bandwidth_bytes_per_s for link in several}
    for link in several:
        assert bound.latency_s >= link.latency_s
        assert bound.bandwidth_bytes_per_s <= link.bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("latency_s", "bandwidth_bytes_per_s"),
    [(-1e-6, 1e9), (float("nan"), 1e9), (0.0, 0.0), (0.0, float("inf"))],
)
def test_rejects_a_link_on_which_time_has_no_meaning(latency_s, bandwidth_bytes_per_s):
    with pytest.raises(QuantityError, match="a link needs a finite latency_s >= 0 and a finite"):
        Link(latency_s, bandwidth_bytes_per_s)
