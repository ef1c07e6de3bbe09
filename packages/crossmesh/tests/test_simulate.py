import math

import pytest
from crossmesh import Links, PlanError, TransferPlan, lower_bound_s, plan, simulate
from crossmesh.base.task import TaskStrategy
from crossmesh.report.cases import cases
from crossmesh.testing import transfers
from crossmesh.testing_network import check_timeline
from crossmesh.transfer.solver import Order
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec

STRATEGIES = ("broadcast", "send_recv", "local_allgather", "global_allgather", "signal")
ORDERS = ("naive", "load_balance", "dfs", "greedy", "ensemble", "all_at_once")


def network(**changed) -> Links:
    return Links(
        **{"host_bytes_per_s": 1000.0, "device_bytes_per_s": math.inf, "latency_s": 0.0} | changed
    )


def layout(shape, spec: str, mesh_shape, first: int) -> Layout:
    n = math.prod(mesh_shape)
    mesh = Mesh(mesh_shape, ("x", "y")[: len(mesh_shape)], tuple(range(first, first + n)))
    return Layout(shape, mesh, Spec.parse(spec))


@given(
    transfers(), st.sampled_from(STRATEGIES), st.sampled_from(ORDERS), st.sampled_from([1, 3, 100])
)
def test_timelines_can_be_kept_by_the_network_and_move_all_bytes(transfer, strategy, order, chunks):
    t = transfer
    made = plan(
        t.src, t.dst, t.dtype, t.hosts, t.links,
        strategy=strategy, order=order, chunks=chunks, chunk_bytes=1, steps=3000,
    )  # fmt: skip
    timeline = simulate(made)
    check_timeline(made, timeline, t.links)
    assert timeline.time_s >= timeline.lower_bound_s * (1 - 1e-9)


@given(transfers(partial=False))
def test_ports_are_busy_or_idle(transfer):
    t = transfer
    made = plan(t.src, t.dst, t.dtype, t.hosts, t.links, order="greedy", steps=3000)
    timeline = simulate(made)
    rates = t.links.rates(set(t.hosts.values()))
    for (host, sent), (_, received) in zip(made.sent_bytes, made.received_bytes, strict=True):
        for direction, n_bytes in (("out", sent), ("in", received)):
            busy_s = timeline.busy_s(host, direction)
            assert busy_s + timeline.idle_s(host, direction) == pytest.approx(timeline.time_s)
            # A port that serves a slower host is busy for longer. Large times have rounding errors.
            assert busy_s >= n_bytes / rates[host] * (1 - 1e-9) - timeline.time_s * 1e-12


@given(transfers())
def test_wider_elements_take_longer(transfer):
    t = transfer
    links = network()
    narrow, wide = (
        simulate(plan(t.src, t.dst, dtype, t.hosts, links, fuse_bytes=0)).time_s
        for dtype in ("int16", "int32")
    )
    assert wide >= narrow


# Section 3.1 --------------------------------------------------------------------------------------


def one_to_many(
    n_hosts: int, devices_per_host: int, strategy: TaskStrategy, chunks: int = 100
) -> TransferPlan:
    """A plan of 1000 bytes from device 0 to all devices of some hosts."""
    src = layout((1000,), "R", (1,), 0)
    dst = layout((1000,), "R", (n_hosts, devices_per_host), 1)
    hosts = {0: 99} | {device: (device - 1) // devices_per_host for device in dst.mesh.device_ids}
    return plan(
        src, dst, "int8", hosts,
        strategy=strategy, chunks=chunks, chunk_bytes=1, order="load_balance",
    )  # fmt: skip


MESHES = pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 4), (3, 1), (3, 2), (4, 2)])


@MESHES
def test_send_recv_takes_t_for_each_device(a, b):
    assert simulate(one_to_many(a, b, "send_recv"), network()).time_s == pytest.approx(a * b)


@MESHES
def test_local_allgather_takes_t_for_each_host(a, b):
    assert simulate(one_to_many(a, b, "local_allgather"), network()).time_s == pytest.approx(a)


@MESHES
def test_global_allgather_takes_t_and_almost_t_more_between_hosts(a, b):
    time_s = simulate(one_to_many(a, b, "global_allgather"), network()).time_s
    assert time_s == pytest.approx(1 if a == 1 else 1 + (a * b - 1) / (a * b))


@MESHES
def test_broadcast_takes_t_and_a_chunk_for_each_further_host(a, b):
    made = one_to_many(a, b, "broadcast")
    assert simulate(made, network()).time_s == pytest.approx(1 + (a - 1) / 100)
    assert simulate(made, network(latency_s=0.5)).time_s == pytest.approx(1 + (a - 1) / 100 + a / 2)
    assert simulate(one_to_many(a, b, "broadcast", chunks=1), network()).time_s == pytest.approx(a)
    assert lower_bound_s(made, network()) == pytest.approx(1)


@MESHES
def test_signal_takes_a_byte(a, b):
    timeline = simulate(one_to_many(a, b, "signal", chunks=1), network())
    assert timeline.time_s == pytest.approx(a / 1000)
    assert timeline.lower_bound_s == pytest.approx(1 / 1000)


def test_broadcasts_along_one_path_follow_each_other_closely():
    """Two broadcasts of half the size take as long as one: ports are free once bytes have
    passed."""
    src = layout((1000,), "R", (1,), 0)
    dst = layout((1000,), "R", (3,), 1)
    pair = {"a": src, "b": src}, {"a": dst, "b": dst}
    made = plan(
        *pair, "int8", links=network(), chunks=10, chunk_bytes=1, fuse_bytes=0, order="load_balance"
    )
    assert len(made.tasks) == 2
    assert simulate(made).time_s == pytest.approx(2 + 2 / 10)


def test_terms_of_a_sum_pass_along_a_chain():
    src = layout((1000,), "R+P0", (3,), 0)
    dst = layout((1000,), "R", (2,), 3)
    made = plan(src, dst, "int8", links=network(), chunks=10, chunk_bytes=1, order="load_balance")
    assert simulate(made).time_s == pytest.approx(1 + 3 / 10)
    assert lower_bound_s(made) == pytest.approx(1)


def test_inside_a_host_the_devices_are_the_limit():
    src, dst = layout((1000,), "S0", (2,), 0), layout((1000,), "R", (1,), 2)
    made = plan(src, dst, "int8", {0: 0, 1: 0, 2: 0})
    assert simulate(made, network()).time_s == 0.0
    timeline = simulate(made, network(device_bytes_per_s=500.0, latency_s=9.0))
    assert (timeline.time_s, timeline.lower_bound_s, timeline.gap) == (2.0, 0.0, 0.0)
    assert timeline.hops == ()


def test_what_a_device_has_takes_no_time():
    same = layout((8,), "S0", (2,), 0)
    assert simulate(plan(same, same, "int8"), network(device_bytes_per_s=1.0)).time_s == 0.0


def test_all_at_once_shares_ports_fairly():
    """1 -> 3 and 2 -> 3 share a port; after them, 1 -> 4, which is half done, has port 1 alone."""
    src, dst = layout((1000,), "S0", (2,), 1), layout((1000,), "R", (1,), 3)
    more = {"a": src, "b": layout((500,), "R", (1,), 1)}
    to = {"a": dst, "b": layout((500,), "R", (1,), 4)}
    made = plan(more, to, "int8", links=network(), order="all_at_once", split=False)
    assert simulate(made).time_s == pytest.approx(1.0)
    ends = {
        task.receivers: end for task, (_, end) in zip(made.tasks, simulate(made).spans, strict=True)
    }
    assert ends[4,] == pytest.approx(1.0)


def test_slowest_host_on_the_path_sets_the_pace():
    made = one_to_many(3, 1, "broadcast", chunks=10)
    links = network(host_bytes_per_s={99: 1000.0, 0: 1000.0, 1: 250.0, 2: 1000.0})
    assert simulate(made, links).time_s == pytest.approx(4 * 1.2)


def test_fast_host_serves_several_slow_ones_at_a_time():
    src, dst = layout((1000,), "R", (2,), 0), layout((1000,), "R", (1,), 2)
    links = network(host_bytes_per_s={0: 1.0, 1: 1.0, 2: 100.0})
    timeline = simulate(plan(src, dst, "int8", links=links))
    assert timeline.lower_bound_s == 500.0
    assert timeline.time_s == pytest.approx(500.0, rel=0.02)  # the second one starts 5 s later


def test_needs_links():
    with pytest.raises(PlanError, match="a plan without links; pass links here, or to plan"):
        simulate(one_to_many(1, 1, "broadcast"))
    with pytest.raises(PlanError, match=r"but not \[0\]"):
        simulate(one_to_many(1, 1, "broadcast"), network(host_bytes_per_s={99: 1.0}))


# Table 2 ------------------------------------------------------------------------------------------

OPTIMUM = (0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 0.5)
"""The optimum of each case, in units of the time that the tensor takes over one host's link."""


def table_2(number: int, order: Order = "ensemble", *, split: bool = True) -> TransferPlan:
    """The plan of a case, with times in these units and chunks that take practically no time."""
    case = cases()[number - 1]
    links = network(host_bytes_per_s=4.0 * math.prod(case.src.shape))
    return plan(
        case.src, case.dst, "float32", case.hosts, links,
        order=order, split=split, chunks=2**30, chunk_bytes=1, fuse_bytes=0,
    )  # fmt: skip


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("case", range(1, 10))
def test_ensemble_is_optimal_in_table_2(case, split):
    timeline = simulate(table_2(case, split=split))
    optimum = OPTIMUM[case - 1]
    assert timeline.lower_bound_s == pytest.approx(optimum)
    assert timeline.time_s == pytest.approx(optimum, rel=1e-6)


def test_case_4_has_64_unit_tasks():
    assert len(table_2(4).tasks) == 64


@pytest.mark.parametrize("case", [2, 3, 4, 9])
def test_the_naive_order_takes_longer_in_table_2(case):
    """Figure 8: the naive order leaves hosts idle; in case 2 one host sends everything."""
    naive_s = simulate(table_2(case, "naive")).time_s
    assert naive_s > 1.2 * simulate(table_2(case)).time_s
