"""Hypothesis strategies for tests of packages that use prices; needs the extra `testing`."""

from __future__ import annotations

from hypothesis import strategies as st
from shardspec import Mesh

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Curve, Device
from costmodel.hardware.link import Link
from costmodel.hardware.products import ProductUnits
from costmodel.hardware.topology import Host, Level

_DTYPES = ("float64", "float32", "float16", "bfloat16", "int32")


def links(*, half_duplex: bool = False) -> st.SearchStrategy[Link]:
    """Links with latencies from 0 to 1 s, and bandwidths from 1 kB/s to 1 TB/s.

    All are full-duplex; with `half_duplex`, some are half-duplex and some in between.
    """
    duplex = st.sampled_from((0.5, 1.0)) | st.floats(0.5, 1) if half_duplex else st.just(1.0)
    return st.builds(Link, st.floats(0, 1), st.floats(1e3, 1e12), duplex)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Efficiency curves of one to five points, along which time does not fall."""
    size, part = draw(st.floats(1, 1e9)), draw(st.floats(1e-3, 1))
    points = [(size, part)]
    for factor in draw(st.lists(st.floats(1.1, 1e3), max_size=4)):
        size *= factor
        part = min(1.0, part * draw(st.floats(0.5, 0.99 * factor)))
        points.append((size, part))
    return tuple(points)


@st.composite
def devices(draw: st.DrawFn) -> Device:
    """Devices with a peak for float32 and maybe for other dtypes, some of these with a curve."""
    others = st.lists(st.sampled_from(_DTYPES).filter(lambda name: name != "float32"), unique=True)
    names = ("float32", *draw(others))
    return Device(
        name=draw(st.text(max_size=8)),
        flops_per_s=tuple((name, draw(st.floats(1e6, 1e15))) for name in names),
        memory_bytes=draw(st.integers(1, 2**40)),
        memory_bandwidth_bytes_per_s=draw(st.floats(1e6, 1e13)),
        launch_s=draw(st.floats(0, 1e-3)),
        efficiency=tuple((name, draw(curves())) for name in names if draw(st.booleans())),
        memory_part=draw(st.floats(0.1, 1)),
        products=draw(st.none() | product_units()),
    )


def product_units() -> st.SearchStrategy[ProductUnits]:
    """What multiplies matrices, with up to 1,000 units and tiles of up to 256 rows."""
    units, tiles = st.integers(1, 1000), st.integers(1, 256)
    return st.builds(ProductUnits, units, st.floats(0.01, 1), st.floats(0, 1e-4), tiles)


def clusters(*, max_hosts: int = 4, max_devices_per_host: int = 4) -> st.SearchStrategy[Cluster]:
    """Clusters of one or more equal hosts; the network may be faster than links inside a host."""
    return st.builds(
        Cluster.uniform,
        name=st.text(max_size=8),
        n_hosts=st.integers(1, max_hosts),
        devices_per_host=st.integers(1, max_devices_per_host),
        device=devices(),
        intra_host=links(),
        inter_host=links(),
        source=st.text(max_size=8),
    )


@st.composite
def nested_clusters(
    draw: st.DrawFn,
    *,
    max_hosts: int = 8,
    max_devices_per_host: int = 4,
    max_levels: int = 3,
    max_rails: int = 3,
    half_duplex: bool = False,
) -> Cluster:
    """Clusters of different hosts under up to `max_levels` levels, each with its number of rails.

    There are few distinct hosts and links, so that some are equal. The last unit of a level may
    have fewer hosts than the others.
    """
    some_links = st.sampled_from(
        draw(st.lists(links(half_duplex=half_duplex), min_size=1, max_size=4))
    )
    some_devices = st.sampled_from(draw(st.lists(devices(), min_size=1, max_size=2)))
    kinds = draw(
        st.lists(
            st.builds(Host, some_devices, st.integers(1, max_devices_per_host), some_links),
            min_size=1,
            max_size=3,
        )
    )
    hosts = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=max_hosts))
    spans: list[int] = []
    for _ in range(draw(st.integers(0, max_levels - 1))):
        span = (spans[-1] if spans else 1) * draw(st.integers(2, 3))
        if span < len(hosts):
            spans.append(span)
    rails = st.integers(1, max_rails)
    return Cluster(
        name=draw(st.text(max_size=8)),
        hosts=tuple(hosts),
        levels=tuple(
            Level(f"level {index}", span, draw(some_links), draw(rails))
            for index, span in enumerate([*spans, len(hosts)])
        ),
        source=draw(st.text(max_size=8)),
    )


@st.composite
def meshes_on(draw: st.DrawFn, cluster: Cluster, *, max_ndim: int = 3) -> Mesh:
    """Meshes of some of a cluster's devices, in any order and shape, of up to `max_ndim` axes."""
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
