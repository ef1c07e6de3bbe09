import dataclasses
from collections import Counter

import numpy as np
import pytest
from costmodel import (
    Cluster,
    Device,
    HeterogeneousClusterError,
    Host,
    Level,
    Link,
    PlacementError,
    QuantityError,
)
from costmodel.errors import shown
from costmodel.testing import clusters, nested_clusters
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh

INTRA = Link(latency_s=1e-6, bandwidth_bytes_per_s=64e9)
CARD = Link(latency_s=1e-5, bandwidth_bytes_per_s=1e9)
DEVICE = Device("toy", (("float32", 1e12),), 2**30, 1e11, 1e-6)
OLD = dataclasses.replace(DEVICE, name="old")
TWO_BY_EIGHT = Cluster.uniform("2x8", 2, 8, DEVICE, INTRA, CARD)
MIXED = Cluster(
    "mixed",
    (Host(DEVICE, 2, INTRA), Host(OLD, 4, CARD), Host(DEVICE, 2, INTRA)),
    (Level("network", 3, CARD),),
)


@given(nested_clusters())
def test_devices_are_counted_off_host_by_host(cluster):
    hosts = [cluster.host(device_id) for device_id in range(cluster.n_devices)]
    assert hosts == sorted(hosts)
    assert Counter(hosts) == {i: host.n_devices for i, host in enumerate(cluster.hosts)}
    for device_id, host in enumerate(hosts):
        assert cluster.device_of(device_id) is cluster.hosts[host].device


@given(clusters())
def test_a_uniform_cluster_says_what_all_of_its_hosts_are(cluster):
    host = Host(cluster.device, cluster.devices_per_host, cluster.intra_host)
    assert cluster.hosts == (host,) * cluster.n_hosts
    assert cluster.levels == (Level("network", cluster.n_hosts, cluster.inter_host),)
    assert cluster.n_devices == cluster.n_hosts * cluster.devices_per_host
    again = Cluster.uniform(
        cluster.name,
        cluster.n_hosts,
        cluster.devices_per_host,
        cluster.device,
        cluster.intra_host,
        cluster.inter_host,
        cluster.source,
    )
    assert again == cluster
    assert hash(again) == hash(cluster)


def test_the_network_of_a_host_is_all_of_its_rails():
    cluster = dataclasses.replace(TWO_BY_EIGHT, levels=(Level("network", 2, CARD, rails=4),))
    assert cluster.inter_host == Link(1e-5, 4e9)


@pytest.mark.parametrize(
    ("name", "kinds", "instead"),
    [
        ("device", "'toy', 'old'", r"device_of\(device_id\)"),
        ("devices_per_host", "2, 4", r"hosts\[i\].n_devices"),
        ("intra_host", r"Link\(.*\), Link\(.*\)", r"hosts\[i\].link"),
    ],
)
def test_different_hosts_have_no_figure_for_all_and_say_what_to_ask(name, kinds, instead):
    message = rf"{name} needs equal hosts; cluster 'mixed' has 2 kinds: {kinds}; use {instead}"
    with pytest.raises(HeterogeneousClusterError, match=message):
        getattr(MIXED, name)


def test_hosts_that_differ_elsewhere_still_have_what_they_have_in_common():
    cluster = dataclasses.replace(
        MIXED, hosts=(Host(DEVICE, 2, INTRA), Host(DEVICE, 4, INTRA), Host(DEVICE, 2, INTRA))
    )
    assert (cluster.device, cluster.intra_host) == (DEVICE, INTRA)


def test_different_hosts_can_not_be_resized():
    with pytest.raises(HeterogeneousClusterError, match=r"use Cluster\(\.\.\.\) with other hosts"):
        MIXED.resized(n_hosts=4)


THREE_LEVELS = Cluster(
    "racks",
    (Host(DEVICE, 2, INTRA),) * 12,
    (Level("rack", 2, CARD), Level("row", 6, CARD, 2), Level("hall", 12, CARD, 3)),
)


@pytest.mark.parametrize(
    ("n_hosts", "spans"),
    [
        (1, [1]),
        (2, [2]),
        (3, [2, 3]),
        (6, [2, 6]),
        (7, [2, 6, 7]),
        (12, [2, 6, 12]),
        (25, [2, 6, 25]),
    ],
)
def test_resizing_keeps_the_levels_that_join_something(n_hosts, spans):
    resized = THREE_LEVELS.resized(n_hosts=n_hosts)
    assert resized.n_hosts == n_hosts
    assert [level.n_hosts for level in resized.levels] == spans
    for level, before in zip(resized.levels, THREE_LEVELS.levels, strict=False):
        assert (level.name, level.link, level.rails) == (before.name, before.link, before.rails)


@given(clusters(), st.integers(1, 6), st.integers(1, 6))
def test_resizing_changes_the_counts_and_nothing_else(cluster, n_hosts, devices_per_host):
    resized = cluster.resized(n_hosts=n_hosts, devices_per_host=devices_per_host)
    assert (resized.n_hosts, resized.devices_per_host) == (n_hosts, devices_per_host)
    same = resized.resized(n_hosts=cluster.n_hosts, devices_per_host=cluster.devices_per_host)
    assert same == cluster
    assert cluster.resized() == cluster


@pytest.mark.parametrize("n_hosts", [0, -1, 1.5, True, "2", None, 10**12, 10**400])
def test_rejects_hosts_that_can_not_be_counted(n_hosts):
    message = f"n_hosts of a cluster is a whole number >= 1 and <= 1048576; got {shown(n_hosts)}"
    with pytest.raises(QuantityError, match=message):
        Cluster.uniform("none", n_hosts, 8, DEVICE, INTRA, CARD)
    if n_hosts is not None:  # which leaves them as they are
        with pytest.raises(QuantityError, match=message):
            TWO_BY_EIGHT.resized(n_hosts=n_hosts)


@pytest.mark.parametrize("rails", [0, 0.5, True, "1"])
def test_rejects_a_level_without_rails(rails):
    message = f"rails of level 'leaf' is a whole number >= 1 .*; got {rails!r}"
    with pytest.raises(QuantityError, match=message):
        Level("leaf", 2, CARD, rails)
    with pytest.raises(QuantityError, match="n_hosts of level 'leaf' is a whole number >= 1 and"):
        Level("leaf", rails, CARD)


@pytest.mark.parametrize("n_devices", [0, 2.5, True, "8", None, 2**21])
def test_rejects_a_host_without_devices_to_count(n_devices):
    message = f"n_devices of a host is a whole number >= 1 and <= 1048576; got {n_devices!r}"
    with pytest.raises(QuantityError, match=message):
        Host(DEVICE, n_devices, INTRA)


def test_counts_of_numpy_and_lists_of_hosts_are_taken():
    host = Host(DEVICE, np.int64(8), INTRA)
    network = Level("network", np.int32(2), CARD, np.int8(1))
    cluster = Cluster("2x8", [host, host], [network])
    assert cluster == TWO_BY_EIGHT
    assert hash(cluster) == hash(TWO_BY_EIGHT)
    assert Cluster.from_json(cluster.to_json()) == cluster
    assert cluster.host(np.int64(8)) == 1


def test_rejects_a_cluster_without_hosts():
    with pytest.raises(QuantityError, match="a cluster has at least one host; got none in 'none'"):
        Cluster("none", (), ())


@pytest.mark.parametrize(
    "spans",
    [(), (2,), (8,), (2, 2), (4, 2), (4, 4), (3, 2, 4), (3, 4, 4)],
    ids=str,
)
def test_rejects_levels_that_do_not_join_the_hosts(spans):
    levels = tuple(Level(str(span), span, CARD) for span in spans)
    message = (
        "each level of a cluster joins more hosts .* level, which joins all hosts; got 4 hosts"
    )
    with pytest.raises(QuantityError, match=message):
        Cluster("four", (Host(DEVICE, 1, INTRA),) * 4, levels)


@pytest.mark.parametrize("spans", [(1,), ()], ids=str)
def test_a_single_host_needs_no_level_but_may_have_one(spans):
    levels = tuple(Level("network", span, CARD) for span in spans)
    cluster = Cluster("one", (Host(DEVICE, 4, INTRA),), levels)
    assert cluster.links(Mesh((4,), ("x",)))[0] == INTRA


def test_a_single_host_without_a_network_says_how_to_state_one():
    cluster = Cluster("one", (Host(DEVICE, 4, INTRA),), ())
    with pytest.raises(PlacementError, match="is a single host without a network; give it a level"):
        _ = cluster.inter_host


@pytest.mark.parametrize("device_id", [-1, 16, 1.5, True, "1", None, 10**400])
def test_rejects_a_device_outside_the_cluster(device_id):
    message = rf"of cluster '2x8' lies in 0..15 \(2 hosts\); got {shown(device_id)}"
    for ask in (TWO_BY_EIGHT.host, TWO_BY_EIGHT.device_of):
        with pytest.raises(PlacementError, match=message):
            ask(device_id)


def test_rejects_a_mesh_that_reaches_beyond_the_cluster():
    with pytest.raises(PlacementError, match="got 16"):
        TWO_BY_EIGHT.links(Mesh((17,), ("x",)))


def test_joined_clusters_have_all_hosts_in_the_slowest_network():
    fast, slow = (
        Cluster.uniform(n, 2, 4, DEVICE, INTRA, CARD.times(f)) for n, f in (("a", 2), ("b", 1))
    )
    both = Cluster.joined(fast, slow)
    assert (both.name, both.hosts) == ("a+b", fast.hosts + slow.hosts)
    assert both.levels == (Level("network", 4, CARD),)
    assert Cluster.joined(fast, slow, network=INTRA).inter_host == INTRA
    alone = Cluster("one", (Host(DEVICE, 4, INTRA),), ())
    assert Cluster.joined(alone, slow).inter_host == CARD
    assert Cluster.joined(alone) == alone
    with pytest.raises(PlacementError, match="joined by a network, and none of 'one', 'one' has"):
        Cluster.joined(alone, alone)
    with pytest.raises(QuantityError, match="at least one host"):
        Cluster.joined()
    for others in (("dgx-a100",), (alone, "dgx-a100"), ([alone, alone],)):
        with pytest.raises(QuantityError, match="each a Cluster of its own; got "):
            Cluster.joined(*others)  # type: ignore[arg-type]
