"""Hosts whose devices are joined in pairs, such as the cube mesh of a p3.16xlarge."""

from dataclasses import replace
from itertools import combinations

import pytest
from costmodel import Cluster, Device, Host, Level, Link, QuantityError
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh

DEVICE = Device("toy", (("float32", 1e12),), 2**30, 1e11, 1e-6)
P3 = Cluster.preset("p3.16xlarge")
LINK = 130e9 / 6
"""What one of the six cables of a V100 carries."""


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    n = draw(st.integers(2, 6))
    rates = {pair: draw(st.floats(1e9, 1e11)) for pair in combinations(range(n), 2)}
    pairs = [[rates.get((min(a, b), max(a, b)), 0.0) for b in range(n)] for a in range(n)]
    return Host(DEVICE, n, Link(1e-6, draw(st.floats(1e9, 1e12))), tuple(map(tuple, pairs)))


@given(hosts(), st.data())
def test_a_group_has_the_least_of_what_its_devices_have(host: Host, data: st.DataObject) -> None:
    everyone = st.lists(st.integers(0, host.n_devices - 1), min_size=2, unique=True)
    group = data.draw(everyone)
    cluster = Cluster("one", (host,), ())
    found = cluster.links(Mesh((len(group),), ("x",), tuple(group))).over((0,))
    per_device = [sum(host.pairs[a][b] for b in group if b != a) for a in group]
    expected = min(min(per_device), host.link.bandwidth_bytes_per_s)
    assert found.bandwidth_bytes_per_s == pytest.approx(expected)
    assert found.latency_s == host.link.latency_s
    assert cluster == Cluster.from_json(cluster.to_json())


@given(hosts())
def test_more_devices_never_have_less_than_a_switch_would_give(host: Host) -> None:
    through_switch = replace(host, pairs=())
    whole = tuple(range(host.n_devices))
    assert through_switch.between(whole) == host.link
    assert host.between(whole).bandwidth_bytes_per_s <= host.link.bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("shape", "x", "y"),
    [
        ((8, 1), 130e9, None),
        ((2, 4), LINK, 4 * LINK),  # (2, 6) have one cable, and each device four in its quad
        ((4, 2), 2 * LINK + 9e9, LINK),  # 2 has a cable to 0 and 6, and PCIe to 4
    ],
)
def test_groups_of_a_cube_mesh(shape: tuple[int, int], x: float, y: float | None) -> None:
    links = P3.links(Mesh(shape, ("x", "y")))
    assert links.over((0,)).bandwidth_bytes_per_s == pytest.approx(x)
    if y is not None:
        assert links.over((1,)).bandwidth_bytes_per_s == pytest.approx(y)


def test_groups_over_several_hosts_have_pairs_inside_each() -> None:
    two = P3.resized(n_hosts=2)
    mesh = Mesh((4, 4), ("x", "y"))
    assert two.links(mesh).over((1,)).bandwidth_bytes_per_s == pytest.approx(4 * LINK)
    assert two.links(mesh).over((0,)).bandwidth_bytes_per_s <= 2.5e9


def test_resizing_keeps_the_cables_of_the_devices_that_stay() -> None:
    pair = P3.resized(devices_per_host=2)
    assert pair.hosts[0].pairs == ((0, round(LINK)), (round(LINK), 0))
    assert pair.links(Mesh((2,), ("x",)))[0].bandwidth_bytes_per_s == round(LINK)
    assert P3.resized(devices_per_host=16).hosts[0].pairs == ()


def test_clusters_that_differ_in_devices_only_have_equal_links() -> None:
    other = replace(P3, hosts=tuple(replace(host, device=DEVICE) for host in P3.hosts))
    mesh = Mesh((2, 4), ("x", "y"))
    assert P3.links(mesh) == other.links(mesh)


@pytest.mark.parametrize(
    "pairs",
    [
        ((0.0, 1e9),),
        ((0.0, 1e9), (1e9,)),
        ((0.0, 1e9), (2e9, 0.0)),
        ((0.0, 0.0), (0.0, 0.0)),
        ((0.0, -1e9), (-1e9, 0.0)),
        ((0.0, "fast"), ("fast", 0.0)),
    ],
)
def test_a_table_that_is_none_is_refused(pairs: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(QuantityError, match="pairs of a host"):
        Host(DEVICE, 2, Link(1e-6, 1e9), pairs)


def test_levels_above_do_not_change_what_is_inside() -> None:
    host = P3.hosts[0]
    level = Level("network", 2, Link(1e-5, 1e9))
    cluster = Cluster("two", (host, host), (level,))
    assert cluster.links(Mesh((2,), ("x",), (0, 3)))[0].bandwidth_bytes_per_s == round(2 * LINK)
