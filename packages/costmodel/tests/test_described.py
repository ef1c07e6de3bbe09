"""What processes find about their machines becomes a cluster with the hosts that are there."""

import pytest
from costmodel import Cluster
from costmodel.errors import CalibrationError
from costmodel.measured.described import ALIKE, DeviceFound, LinkFound, cluster_of, pairs_to_measure
from costmodel.measured.machine import Machine
from costmodel.measured.points import MatmulPoint, StreamPoint
from hypothesis import given
from hypothesis import strategies as st

SIZES = (4, 64, 256, 512)


def device(host: str, rate: float = 1e11, memory: int = 2**34) -> DeviceFound:
    """A process on a host, whose device computes at some rate."""
    points = tuple(
        MatmulPoint(n, n, n, dtype, (1e-6 + 2 * n**3 / rate,))
        for dtype in ("float32", "float64")
        for n in SIZES
    )
    return DeviceFound(Machine("cpu", 8, memory, host), points, StreamPoint(2**27, (2**27 / 1e10,)))


def link(first: int, second: int, latency_s: float = 1e-5, rate: float = 1e9) -> LinkFound:
    return LinkFound(first, second, latency_s, latency_s + 1e6 / rate, 1_000_000)


def described(devices: list[DeviceFound]) -> Cluster:
    hosts = [each.machine.host for each in devices]
    return cluster_of("ours", "", devices, [link(*pair) for pair in pairs_to_measure(hosts)])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
def test_hosts_have_their_processes_and_equal_ones_are_equal(sizes, data):
    rates = [data.draw(st.sampled_from((1e11, 4e11))) for _ in sizes]
    noise = st.floats(1.0, ALIKE**0.4)
    devices = [
        device(f"host{i}", rate * data.draw(noise), 2**34 * n)
        for i, (n, rate) in enumerate(zip(sizes, rates, strict=True))
        for _ in range(n)
    ]
    cluster = described(devices)
    assert [host.n_devices for host in cluster.hosts] == sizes
    assert Cluster.from_json(cluster.to_json()) == cluster
    for i, host in enumerate(cluster.hosts):
        for j, other in enumerate(cluster.hosts):
            assert (host.device == other.device) == (rates[i] == rates[j])
        assert host.device.memory_bytes == 2**34
        peak = host.device.peak("float32")
        assert 0.8 * rates[i] <= peak <= 1.3 * rates[i] * ALIKE
    assert len(cluster.levels) == (len(sizes) > 1)


def test_a_link_is_told_from_a_small_and_a_large_message():
    found = link(0, 1, latency_s=2e-5, rate=5e9).link
    assert found.latency_s == 2e-5
    assert found.bandwidth_bytes_per_s == pytest.approx(5e9)
    noisy = LinkFound(0, 1, 1e-3, 0.9e-3, 1_000_000).link  # on a busy machine
    assert noisy.bandwidth_bytes_per_s == pytest.approx(1_000_000 / 0.45e-3)


def test_the_slowest_link_counts():
    devices = [device("a"), device("a"), device("b"), device("b"), device("c")]
    links = [link(0, 1, rate=8e9), link(2, 3, rate=4e9), link(0, 2, rate=2e9), link(2, 4, rate=1e9)]
    cluster = cluster_of("ours", "", devices, links)
    assert cluster.hosts[0] == cluster.hosts[1]
    assert cluster.hosts[0].link.bandwidth_bytes_per_s == pytest.approx(4e9)
    assert cluster.inter_host.bandwidth_bytes_per_s == pytest.approx(1e9)
    assert len(set(cluster.hosts)) == 2, "host c has another number of devices"


def test_a_single_process_is_a_host_without_links():
    cluster = described([device("a")])
    assert (cluster.n_hosts, cluster.n_devices, cluster.levels) == (1, 1, ())


def test_processes_that_are_not_placed_host_by_host_are_refused():
    with pytest.raises(CalibrationError, match=r"place them by host"):
        described([device("a"), device("b"), device("a")])
