import dataclasses
import itertools
import json
from collections import Counter

import pytest
from costmodel import (
    Cluster,
    ClusterFormatError,
    Device,
    Link,
    PlacementError,
    QuantityError,
    UnknownNameError,
    presets,
)
from costmodel.testing import clusters, meshes_on
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh

CARD = 1e9
INTRA = Link(latency_s=1e-6, bandwidth_bytes_per_s=64e9)
DEVICE = Device("toy", (("float32", 1e12),), 2**30, 1e11, 1e-6)
TWO_BY_EIGHT = Cluster("2x8", 2, 8, DEVICE, INTRA, Link(1e-5, CARD))


def shared(groups):
    """One group's part of a card that `groups` groups share."""
    return Link(1e-5, CARD / groups)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 8), (shared(8), INTRA)),
        ((1, 16), (INTRA, shared(1))),
        ((4, 4), (shared(4), INTRA)),
        ((8, 2), (shared(2), INTRA)),
        ((16, 1), (shared(1), INTRA)),
    ],
    ids=str,
)
def test_views_of_two_hosts_with_eight_devices(shape, expected):
    links = TWO_BY_EIGHT.links(Mesh(shape, ("x", "y")))
    assert tuple(links) == expected
    assert links.over((0, 1)) == shared(1)


def test_groups_that_stay_on_one_host_of_two_are_not_charged_for_the_network():
    mesh = Mesh((2, 4), ("x", "y"), device_ids=tuple(range(8, 16)))
    links = TWO_BY_EIGHT.links(mesh)
    assert {*links, links.over((0, 1))} == {INTRA}


def test_one_group_that_leaves_decides_for_its_axis():
    mesh = Mesh((2, 2), ("x", "y"), device_ids=(0, 1, 7, 8))
    assert tuple(TWO_BY_EIGHT.links(mesh)) == (shared(1), shared(1))


@given(data=st.data())
def test_links_agree_with_counting_the_load_of_each_card(data):
    cluster = data.draw(clusters())
    mesh = data.draw(meshes_on(cluster))
    links = cluster.links(mesh)
    axes = range(mesh.ndim)
    for some in (s for n in range(1, mesh.ndim + 1) for s in itertools.combinations(axes, n)):
        link = links.over(some)
        hosts_of_group = {}
        for device_id in mesh.device_ids:
            where = mesh.coordinates(device_id)
            group = tuple(where[axis] for axis in axes if axis not in some)
            hosts_of_group.setdefault(group, set()).add(cluster.host(device_id))
        load = Counter(h for hosts in hosts_of_group.values() if len(hosts) > 1 for h in hosts)
        if not load:
            assert link == cluster.intra_host
            continue
        busiest = max(load.values()) * link.bandwidth_bytes_per_s
        assert busiest == pytest.approx(cluster.inter_host.bandwidth_bytes_per_s)
        assert link.latency_s == cluster.inter_host.latency_s


@given(data=st.data())
def test_transposing_a_mesh_permutes_its_links(data):
    cluster = data.draw(clusters())
    mesh = data.draw(meshes_on(cluster))
    order = data.draw(st.permutations(range(mesh.ndim)))
    transposed_ids = []
    for new in itertools.product(*(range(mesh.shape[axis]) for axis in order)):
        old = [0] * mesh.ndim
        for axis, coordinate in zip(order, new, strict=True):
            old[axis] = coordinate
        transposed_ids.append(mesh.device(tuple(old)))
    transposed = Mesh(
        tuple(mesh.shape[axis] for axis in order),
        tuple(mesh.axis_names[axis] for axis in order),
        tuple(transposed_ids),
    )
    links = cluster.links(mesh)
    assert tuple(cluster.links(transposed)) == tuple(links[axis] for axis in order)


@given(data=st.data())
def test_a_collective_over_all_devices_sees_the_same_link_whatever_the_shape(data):
    cluster = data.draw(clusters())
    mesh = data.draw(meshes_on(cluster))
    flat = Mesh((mesh.size,), ("all",), mesh.device_ids)
    assert cluster.links(mesh).over(range(mesh.ndim)) == cluster.links(flat)[0]


@given(clusters())
def test_devices_are_counted_off_host_by_host(cluster):
    hosts = [cluster.host(device_id) for device_id in range(cluster.n_devices)]
    assert hosts == sorted(hosts)
    assert Counter(hosts) == dict.fromkeys(range(cluster.n_hosts), cluster.devices_per_host)


@given(clusters())
def test_json_round_trip(cluster):
    assert Cluster.from_json(cluster.to_json()) == cluster


@pytest.mark.parametrize("name", presets())
def test_presets_have_their_name_their_source_and_a_json_round_trip(name):
    cluster = Cluster.preset(name)
    assert cluster.name == name
    assert cluster.source
    assert Cluster.from_json(cluster.to_json()) == cluster


def test_presets_are_sorted_and_include_the_machines_that_others_name():
    assert presets() == ("p3.16xlarge", "two-hosts", "virtual-cpu")


def test_two_hosts_is_the_emulated_target_and_says_so():
    cluster = Cluster.preset("two-hosts")
    assert "not a measured machine" in cluster.source
    assert (cluster.n_hosts, cluster.devices_per_host, cluster.n_devices) == (2, 4, 8)
    assert cluster.intra_host == Link(latency_s=5e-6, bandwidth_bytes_per_s=5e9)
    assert cluster.inter_host == Link(latency_s=50e-6, bandwidth_bytes_per_s=125e6)
    device = cluster.device
    assert (device.peak("float32"), device.launch_s) == (100e9, 1e-6)
    assert (device.memory_bytes, device.memory_bandwidth_bytes_per_s) == (2**30, 10e9)


def test_rejects_a_preset_that_is_not_there():
    message = "no preset is called 'p4d'; known: p3.16xlarge, two-hosts, virtual-cpu; describe"
    with pytest.raises(UnknownNameError, match=message):
        Cluster.preset("p4d")


@pytest.mark.parametrize(
    "change", [{"n_hosts": 0}, {"devices_per_host": 0}, {"n_hosts": 1.5}], ids=str
)
def test_rejects_a_cluster_without_hosts_or_devices_to_count(change):
    message = "a cluster needs whole numbers n_hosts >= 1 and devices_per_host >= 1; got n_hosts="
    with pytest.raises(QuantityError, match=message):
        dataclasses.replace(TWO_BY_EIGHT, **change)


@pytest.mark.parametrize("device_id", [-1, 16])
def test_rejects_a_device_outside_the_cluster(device_id):
    message = rf"of cluster '2x8' lies in 0..15 \(2 hosts x 8 devices\); got {device_id}"
    with pytest.raises(PlacementError, match=message):
        TWO_BY_EIGHT.host(device_id)


def test_rejects_a_mesh_that_reaches_beyond_the_cluster():
    with pytest.raises(PlacementError, match="got 16"):
        TWO_BY_EIGHT.links(Mesh((17,), ("x",)))


def without(field):
    fields = json.loads(TWO_BY_EIGHT.to_json())
    del fields[field]
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        (without("device"), "KeyError: 'device'"),
        (without("n_hosts"), "missing 1 required positional argument: 'n_hosts'"),
        (TWO_BY_EIGHT.to_json().replace("n_hosts", "nhosts"), "'nhosts'"),
        (TWO_BY_EIGHT.to_json().replace("1e-05", '"slow"'), "TypeError"),
    ],
    ids=["no JSON", "no object", "no device", "no n_hosts", "unknown field", "text for a number"],
)
def test_rejects_a_text_that_describes_no_cluster(text, reason):
    with pytest.raises(ClusterFormatError, match="a cluster is a JSON object with the") as caught:
        Cluster.from_json(text)
    assert reason in str(caught.value)


def test_a_figure_out_of_range_in_json_is_named_as_such():
    text = TWO_BY_EIGHT.to_json().replace('"n_hosts": 2', '"n_hosts": 0')
    with pytest.raises(QuantityError, match="got n_hosts=0"):
        Cluster.from_json(text)
