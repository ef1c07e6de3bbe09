"""Hypothesis strategies for tests of packages that price things; needs the extra `testing`."""

from __future__ import annotations

from hypothesis import strategies as st
from shardspec import Mesh

from costmodel.cluster import Cluster
from costmodel.device import Device
from costmodel.link import Link

_DTYPES = ("float64", "float32", "float16", "bfloat16", "int32")


def links() -> st.SearchStrategy[Link]:
    """Links from no latency to a second, and from 1 kB/s to 1 TB/s."""
    return st.builds(Link, st.floats(0, 1), st.floats(1e3, 1e12))


@st.composite
def devices(draw: st.DrawFn) -> Device:
    """Devices that state a peak for float32 and perhaps for other dtypes."""
    others = st.lists(st.sampled_from(_DTYPES).filter(lambda name: name != "float32"), unique=True)
    names = ("float32", *draw(others))
    return Device(
        name=draw(st.text(max_size=8)),
        flops_per_s=tuple((name, draw(st.floats(1e6, 1e15))) for name in names),
        memory_bytes=draw(st.integers(1, 2**40)),
        memory_bandwidth_bytes_per_s=draw(st.floats(1e6, 1e13)),
        launch_s=draw(st.floats(0, 1e-3)),
    )


def clusters(*, max_hosts: int = 4, max_devices_per_host: int = 4) -> st.SearchStrategy[Cluster]:
    """Clusters of one host or more, whose network may also be faster than their hosts' links."""
    return st.builds(
        Cluster,
        name=st.text(max_size=8),
        n_hosts=st.integers(1, max_hosts),
        devices_per_host=st.integers(1, max_devices_per_host),
        device=devices(),
        intra_host=links(),
        inter_host=links(),
        source=st.text(max_size=8),
    )


@st.composite
def meshes_on(draw: st.DrawFn, cluster: Cluster, *, max_ndim: int = 3) -> Mesh:
    """Meshes of some of a cluster's devices, in any order and in any shape of up to `max_ndim`."""
    size = draw(st.integers(1, cluster.n_devices))
    device_ids = tuple(draw(st.permutations(range(cluster.n_devices))))[:size]
    shape: list[int] = []
    rest = size
    for _ in range(draw(st.integers(1, max_ndim)) - 1):
        length = draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
        shape.append(length)
        rest //= length
    shape.append(rest)
    return Mesh(tuple(shape), tuple("abcdefgh"[: len(shape)]), device_ids)
