import math

import pytest
from crossmesh import PlanError, estimate_time_s, lower_bound_s, plan
from crossmesh.testing import transfers
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec


def estimate(made, rates, *, intra_host_bytes_per_s=math.inf, latency_s=0.0, n_chunks=100):
    return estimate_time_s(
        made,
        rates,
        intra_host_bytes_per_s=intra_host_bytes_per_s,
        latency_s=latency_s,
        n_chunks=n_chunks,
    )


@given(
    transfers(partial=False),
    st.sampled_from(["broadcast", "send_recv"]),
    st.sampled_from([0.0, 1e-5]),
)
def test_takes_at_least_the_lower_bound(transfer, strategy, latency_s):
    t = transfer
    made = plan(t.src, t.dst, t.dtype, t.hosts, t.links, strategy=strategy)
    rates = t.links.rates(t.hosts.values())
    bound_s = lower_bound_s(made, rates)
    assert estimate(made, rates, latency_s=latency_s) >= bound_s * (1 - 1e-12)


@given(transfers(partial=False))
def test_wider_elements_take_longer(transfer):
    t = transfer
    narrow, wide = (
        estimate(plan(t.src, t.dst, dtype, t.hosts, t.links), t.links.rates(t.hosts.values()))
        for dtype in ("V3", "V6")
    )
    assert wide == pytest.approx(2 * narrow)


def one_to_many(n_hosts: int, devices_per_host: int, strategy: str):
    """1000 bytes from device 0, and 1000 bytes a second for every host."""
    mesh = Mesh(
        (n_hosts, devices_per_host), ("x", "y"), tuple(range(1, 1 + n_hosts * devices_per_host))
    )
    src = Layout((1000,), Mesh((1,), ("x",), (0,)), Spec.parse("R"))
    hosts = {0: 99} | {device: (device - 1) // devices_per_host for device in mesh.device_ids}
    made = plan(src, Layout((1000,), mesh, Spec.parse("R")), "int8", hosts, strategy=strategy)
    return made, dict.fromkeys(hosts.values(), 1000.0)


@pytest.mark.parametrize(("n_hosts", "devices_per_host"), [(1, 1), (1, 4), (3, 1), (3, 2)])
def test_send_recv_takes_t_for_each_device(n_hosts, devices_per_host):
    """Section 3.1: T = A B t."""
    made, rates = one_to_many(n_hosts, devices_per_host, "send_recv")
    assert estimate(made, rates) == pytest.approx(n_hosts * devices_per_host)


@pytest.mark.parametrize(("n_hosts", "devices_per_host"), [(1, 1), (1, 4), (3, 1), (3, 2)])
def test_broadcast_takes_t_and_a_chunk_for_each_further_host(n_hosts, devices_per_host):
    """Section 3.1, with K + A - 1 in place of K + A."""
    made, rates = one_to_many(n_hosts, devices_per_host, "broadcast")
    assert estimate(made, rates) == pytest.approx(1 + (n_hosts - 1) / 100)
    assert estimate(made, rates, n_chunks=1) == pytest.approx(n_hosts)
    assert estimate(made, rates, latency_s=0.5) == pytest.approx(
        1 + (n_hosts - 1) / 100 + n_hosts / 2
    )
    assert lower_bound_s(made, rates) == 1.0


def test_inside_a_host_the_devices_are_the_limit():
    src = Layout((8,), Mesh((2,), ("x",), (0, 1)), Spec.parse("S0"))
    dst = Layout((8,), Mesh((1,), ("x",), (2,)), Spec.parse("R"))
    made = plan(src, dst, "int32", {0: 0, 1: 0, 2: 0})
    assert estimate(made, {0: 1.0}) == 0.0
    assert estimate(made, {0: 1.0}, intra_host_bytes_per_s=16.0) == 2.0
    assert lower_bound_s(made, {0: 1.0}) == 0.0


def test_what_stays_on_its_device_is_free():
    layout = Layout((8,), Mesh((2,), ("x",), (0, 1)), Spec.parse("S0"))
    made = plan(layout, layout, "int32")
    assert estimate(made, {0: 1.0, 1: 1.0}, intra_host_bytes_per_s=1.0) == 0.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rates": {99: 1.0}}, r"rates lacks \[0\]"),
        ({"intra_host_bytes_per_s": 0.0}, "got intra_host_bytes_per_s=0.0"),
        ({"intra_host_bytes_per_s": math.nan}, "got intra_host_bytes_per_s=nan"),
        ({"latency_s": -1.0}, "finite and not negative; got latency_s=-1.0"),
        ({"latency_s": math.inf}, "finite and not negative; got latency_s=inf"),
        ({"n_chunks": 0}, "at least one chunk; got n_chunks=0"),
    ],
)
def test_says_what_is_wrong_with_the_arguments(changed, message):
    made, rates = one_to_many(1, 1, "broadcast")
    with pytest.raises(PlanError, match=message):
        estimate(made, **{"rates": rates, **changed})
