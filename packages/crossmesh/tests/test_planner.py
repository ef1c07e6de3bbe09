import subprocess
import sys

import pytest
from crossmesh import PartialLayoutError, PlanError, TransferPlan, plan_transfer
from crossmesh.testing import Transfer, check_plan, transfers
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec

STRATEGIES = ("broadcast", "send_recv")


def layout(shape: tuple[int, ...], devices: range, spec: str, mesh_shape=None) -> Layout:
    mesh_shape = mesh_shape or (len(devices),)
    return Layout(
        shape, Mesh(mesh_shape, tuple("xyz"[: len(mesh_shape)]), tuple(devices)), Spec.parse(spec)
    )


def plan(transfer: Transfer, strategy: str = "broadcast") -> TransferPlan:
    t = transfer
    return plan_transfer(t.src, t.dst, t.itemsize, t.hosts, t.rates, strategy)


@given(transfers(), st.sampled_from(STRATEGIES))
def test_every_element_arrives_exactly_once(transfer, strategy):
    check_plan(plan(transfer, strategy))


@given(transfers())
def test_rates_that_are_all_equal_do_not_matter(transfer):
    t = transfer
    fast = dict.fromkeys(t.hosts.values(), 1e9)
    assert plan_transfer(t.src, t.dst, t.itemsize, t.hosts, fast) == plan_transfer(
        t.src, t.dst, t.itemsize, t.hosts
    )


@given(transfers(), st.sampled_from(STRATEGIES))
def test_sent_bytes_are_those_that_leave_each_host(transfer, strategy):
    made = plan(transfer, strategy)
    expected = dict.fromkeys(transfer.hosts.values(), 0)
    for task in made.tasks:
        host = transfer.hosts[task.sender]
        if any(transfer.hosts[device] != host for device in task.receivers):
            n_elements = 1
            for start, stop in task.slices:
                n_elements *= stop - start
            expected[host] += n_elements * transfer.itemsize
    assert dict(made.sent_bytes) == expected


@given(transfers())
def test_nothing_crosses_hosts_if_there_is_one(transfer):
    t = transfer
    made = plan_transfer(t.src, t.dst, t.itemsize, dict.fromkeys(t.hosts, 7))
    assert made.sent_bytes == ((7, 0),)


@given(transfers())
def test_same_layout_moves_nothing(transfer):
    t = transfer
    made = plan_transfer(t.src, t.src, t.itemsize, t.hosts)
    assert all(task.recipients == () for task in made.tasks)


@given(transfers())
def test_broadcast_never_sends_more_than_send_recv(transfer):
    broadcast, send_recv = (sum(b for _, b in plan(transfer, s).sent_bytes) for s in STRATEGIES)
    assert broadcast <= send_recv


def test_broadcast_sends_a_slice_once_and_send_recv_once_to_each():
    src, dst = layout((8,), range(2), "S0"), layout((8,), range(2, 6), "R")
    assert [task.receivers for task in plan_transfer(src, dst, 4).tasks] == [(2, 3, 4, 5)] * 2
    one_by_one = plan_transfer(src, dst, 4, strategy="send_recv")
    assert sorted(task.receivers for task in one_by_one.tasks) == sorted(
        [(device,) for device in range(2, 6)] * 2
    )


def test_replicas_share_the_sending():
    """Case 2 of the paper's Table 2: RRR -> S0RR between meshes of two hosts."""
    src = layout((8, 4, 4), range(8), "RRR", (2, 4))
    dst = layout((8, 4, 4), range(8, 16), "S0RR", (2, 4))
    made = plan_transfer(src, dst, 4, {device: device // 4 for device in range(16)})
    assert made.sent_bytes == ((0, 256), (1, 256), (2, 0), (3, 0))


def test_orders_tasks_so_that_both_sender_hosts_work_at_once():
    """Case 3 of Table 2: with slices in index order, one receiver host would serve both senders."""
    src = layout((4, 4, 4), range(4), "RS0R", (2, 2))
    dst = layout((4, 4, 4), range(4, 8), "S0RR", (2, 2))
    made = plan_transfer(src, dst, 4, {device: device // 2 for device in range(8)})
    for first, second in (made.routes[:2], made.routes[2:]):
        assert set(first.ports).isdisjoint(second.ports)


def test_receiver_with_a_replica_on_its_host_gets_it_there():
    src, dst = layout((8,), range(4), "R"), layout((8,), range(4, 6), "R")
    made = plan_transfer(src, dst, 4, {0: 0, 1: 1, 2: 2, 3: 3, 4: 2, 5: 9})
    assert [(task.sender, task.receivers) for task in made.tasks] == [(0, (5,)), (2, (4,))]


def test_device_names_its_own_host_by_default():
    assert plan_transfer(
        layout((4,), range(2), "S0"), layout((4,), range(1, 3), "S0"), 1
    ).hosts == (
        (0, 0),
        (1, 1),
        (2, 2),
    )


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_tensor_without_elements_needs_no_task(shape):
    assert (
        plan_transfer(layout(shape, range(2), "S0R"), layout(shape, range(2, 4), "RS0"), 4).tasks
        == ()
    )


def test_scalar_is_one_task():
    (task,) = plan_transfer(layout((), range(2), "()"), layout((), range(2, 4), "()"), 4).tasks
    assert (task.slices, task.receivers, task.n_bytes(4)) == ((), (2, 3), 4)


DIGEST = """
from crossmesh import plan_transfer
from shardspec import Layout, Mesh, Spec
src = Layout((7, 5, 6), Mesh((2, 3), ("x", "y"), tuple(range(6))), Spec.parse("S0RS1"))
dst = Layout((7, 5, 6), Mesh((3, 2), ("data", "model"), tuple(range(4, 10))), Spec.parse("S1S0R"))
hosts = {device: device // 3 for device in range(10)}
for strategy in ("broadcast", "send_recv"):
    print(plan_transfer(src, dst, 4, hosts, strategy=strategy).digest)
"""


def test_digest_is_the_same_in_processes_with_different_hash_seeds():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "12345")
    }
    (output,) = outputs
    assert len(set(output.split())) == 2


@given(transfers())
def test_digest_does_not_depend_on_axis_names(transfer):
    def renamed(layout: Layout) -> Layout:
        names = tuple(f"renamed_{name}" for name in layout.mesh.axis_names)
        return Layout(
            layout.shape, Mesh(layout.mesh.shape, names, layout.mesh.device_ids), layout.spec
        )

    t = transfer
    same = plan_transfer(renamed(t.src), renamed(t.dst), t.itemsize, t.hosts, t.rates)
    assert same.digest == plan(t).digest


def test_digest_depends_on_what_is_sent():
    src, dst = layout((8,), range(2), "S0"), layout((8,), range(2, 4), "R")
    hosts = {0: 0, 1: 0, 2: 1, 3: 1}
    plans = [
        plan_transfer(src, dst, 4),
        plan_transfer(src, dst, 8),
        plan_transfer(src, dst, 4, hosts),
        plan_transfer(src, dst, 4, strategy="send_recv"),
        plan_transfer(src, layout((8,), range(2, 4), "S0"), 4),
        plan_transfer(src, layout((8,), range(3, 5), "R"), 4),
    ]
    assert len({made.digest for made in plans}) == len(plans)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_refuses_partial_sums(side):
    whole, partial = layout((4,), range(2), "R"), layout((4,), range(2, 4), "R+P0")
    src, dst = (partial, whole) if side == "source" else (whole, partial)
    with pytest.raises(
        PartialLayoutError, match=rf"got the {side} spec R\+P0; reduce on that mesh"
    ):
        plan_transfer(src, dst, 4)


@pytest.mark.parametrize(("spec", "chunking"), [("S[2]0", "ceil"), ("S0", "padded")])
def test_rejects_strided_and_padded_layouts(spec, chunking):
    whole = layout((5,), range(2), "R")
    other = Layout((5,), Mesh((2,), ("x",), range(2, 4)), Spec.parse(spec), chunking)
    with pytest.raises(
        PlanError, match=r"the strided or padded destination \(5,\) as S.*; reshard"
    ):
        plan_transfer(whole, other, 4)


def test_uneven_shards_arrive_by_whichever_rule_they_are_cut():
    mesh = Mesh((4,), ("x",), range(4, 8))
    src = layout((7,), range(3), "S0")
    for chunking in ("ceil", "balanced", ((1, 4, 0, 2),)):
        dst = Layout((7,), mesh, Spec.parse("S0"), chunking)
        check_plan(plan_transfer(src, dst, 4))


ARGUMENTS = {
    "src": layout((4,), range(2), "S0"),
    "dst": layout((4,), range(2, 4), "R"),
    "itemsize": 4,
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dst": layout((5,), range(2, 4), "R")}, r"one tensor; got shapes \(4,\) and \(5,\)"),
        ({"itemsize": 0}, "at least one byte; got itemsize=0"),
        ({"itemsize": 2**62}, r"fewer than 2\*\*63 bytes; got shape=\(4,\)"),
        ({"strategy": "gossip"}, "'broadcast' or 'send_recv'; got 'gossip'"),
        ({"hosts": {0: 0, 2: 1}}, r"needs a host; hosts lacks \[1, 3\]"),
        ({"rates": {0: 1.0}}, r"needs a rate in bytes per second; rates lacks \[1, 2, 3\]"),
        ({"rates": dict.fromkeys(range(4), 0.0)}, "positive number .* got 0.0 for host 0"),
        ({"rates": dict.fromkeys(range(4), float("nan"))}, "positive number .* got nan for host 0"),
        ({"rates": dict.fromkeys(range(4), float("inf"))}, "positive number .* got inf for host 0"),
    ],
)
def test_says_what_is_wrong_with_the_arguments(changed, message):
    with pytest.raises(PlanError, match=message):
        plan_transfer(**{**ARGUMENTS, **changed})


@pytest.mark.parametrize("changed", [{"itemsize": 4.0}, {"hosts": dict.fromkeys(range(4), "a")}])
def test_refuses_other_types(changed):
    with pytest.raises(TypeError):
        plan_transfer(**{**ARGUMENTS, **changed})


def test_tensor_of_huge_empty_shape_is_an_error_and_not_an_overflow():
    shape = (2**40, 0, 2**40)
    with pytest.raises(PlanError, match=r"fewer than 2\*\*63 bytes"):
        plan_transfer(layout(shape, range(2), "S0RR"), layout(shape, range(2), "RRR"), 1)


def test_prints_one_line_a_task():
    made = plan_transfer(layout((4, 2), range(2), "S0R"), layout((4, 2), range(2, 4), "RR"), 4)
    assert (
        str(made)
        == "S0R -> RR of (4, 2), broadcast\n  0: [0:2, 0:2] 0 -> 2, 3\n  1: [2:4, 0:2] 1 -> 2, 3"
    )
