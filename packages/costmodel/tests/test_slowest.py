"""Unlike devices that run one program count as one that is no faster than any of them."""

import pytest
from costmodel import (
    Cluster,
    Device,
    Host,
    Level,
    Link,
    PlacementError,
    UnknownDtypeError,
    operator_time,
    slowest_device,
)
from costmodel.testing import devices, meshes_on, nested_clusters
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Mesh

A100, V100 = (Cluster.preset(name).device for name in ("dgx-a100", "p3.16xlarge"))


@given(
    st.lists(devices(), min_size=1, max_size=4),
    st.floats(0, 1e15),
    st.floats(0, 1e12),
    st.sampled_from(("float32", "bfloat16", "int8", "float64")),
)
def test_no_operator_takes_less_time_than_on_any_of_the_devices(several, flops, n_bytes, dtype):
    slowest = slowest_device(several)
    try:
        each = [operator_time(flops, n_bytes, device, dtype) for device in several]
    except UnknownDtypeError:
        with pytest.raises(UnknownDtypeError):
            operator_time(flops, n_bytes, slowest, dtype)
        return
    assert operator_time(flops, n_bytes, slowest, dtype) >= max(each) * (1 - 1e-9)
    assert slowest.memory_bytes == min(device.memory_bytes for device in several)


@given(devices(), st.integers(1, 4))
def test_equal_devices_count_as_what_they_are(device, n):
    assert slowest_device([device] * n) is device


@given(st.data())
def test_the_devices_of_a_mesh_count_and_no_others(data):
    cluster = data.draw(nested_clusters())
    mesh = data.draw(meshes_on(cluster))
    several = dict.fromkeys(cluster.device_of(device) for device in sorted(mesh.device_ids))
    slowest = cluster.slowest(mesh)
    assert slowest.memory_bytes == min(device.memory_bytes for device in several)
    assert slowest.launch_s == max(device.launch_s for device in several)
    if len(several) == 1:
        assert slowest in several


def test_an_a100_beside_a_v100():
    hosts = (Host(A100, 2, Link(1e-6, 3e11)), Host(V100, 2, Link(1e-6, 2e10)))
    cluster = Cluster("both", hosts, (Level("network", 2, Link(1e-5, 1e10)),))
    assert cluster.slowest(Mesh((2,), ("x",), (0, 1))) == A100
    assert cluster.slowest(Mesh((2,), ("x",), (2, 3))) == V100
    both = cluster.slowest(Mesh((4,), ("x",)))
    assert both.peak("float32") == min(A100.peak("float32"), V100.peak("float32"))
    with pytest.raises(UnknownDtypeError, match="slowest of"):
        both.peak("bfloat16")  # a V100 has no units for it
    with pytest.raises(PlacementError, match=r"0\.\.3"):
        cluster.slowest(Mesh((5,), ("x",)))


def test_the_units_of_products_are_those_of_the_slowest_device():
    both = slowest_device((A100, V100))
    assert isinstance(both, Device)
    assert both.products is not None
    assert both.products.part <= min(
        device.products.part for device in (A100, V100) if device.products is not None
    )
