import math
from typing import get_args

import pytest
from crossmesh import (
    Links,
    Order,
    PartialLayoutError,
    Piece,
    PlanError,
    TaskStrategy,
    TransferPlan,
    plan,
    simulate,
)
from crossmesh.search.unit_tasks import drafts_of
from crossmesh.testing import Batch, TransferCase, batches, check_plan, transfers
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec

STRATEGIES = st.sampled_from(get_args(TaskStrategy))
ORDERS = st.sampled_from(get_args(Order))


def layout(shape: tuple[int, ...], devices: range, spec: str, mesh_shape=None) -> Layout:
    mesh_shape = mesh_shape or (len(devices),)
    return Layout(
        shape, Mesh(mesh_shape, tuple("xyz"[: len(mesh_shape)]), tuple(devices)), Spec.parse(spec)
    )


def made(transfer: TransferCase | Batch, **options) -> TransferPlan:
    t = transfer
    return plan(t.src, t.dst, t.dtype, t.hosts, t.links, **options)


def crossing(plan: TransferPlan) -> int:
    return sum(n_bytes for _, n_bytes in plan.sent_bytes)


@given(transfers(), STRATEGIES, ORDERS, st.booleans())
def test_every_element_arrives_exactly_once(transfer, strategy, order, split):
    check_plan(made(transfer, strategy=strategy, order=order, split=split))


@given(batches(), STRATEGIES, st.sampled_from([0, 50, 2**40]))
def test_every_element_of_a_batch_arrives_exactly_once(batch, strategy, fuse_bytes):
    check_plan(made(batch, strategy=strategy, fuse_bytes=fuse_bytes))


@given(batches(), st.sampled_from([0, 50]))
def test_fused_pieces_stay_below_the_limit(batch, fuse_bytes):
    for task in made(batch, fuse_bytes=fuse_bytes).tasks:
        assert len(task.pieces) == 1 or task.n_bytes <= fuse_bytes


@given(batches(), st.sampled_from(["send_recv", "local_allgather"]))
def test_without_a_limit_no_two_tasks_have_holders_and_receivers_in_common(batch, strategy):
    """The search may later cut a broadcast at a slow host, so that its parts equal other tasks."""
    plan = made(batch, strategy=strategy, fuse_bytes=2**40, split=False)
    dtypes = [plan.tensors[task.pieces[0].tensor].dtype for task in plan.tasks]
    alike = [
        (task.terms, task.receivers, task.part, task.reduction, dtype if task.reduction else "")
        for task, dtype in zip(plan.tasks, dtypes, strict=True)
    ]
    assert len(set(alike)) == len(alike)


@given(batches(), STRATEGIES)
def test_without_a_limit_no_two_drafts_have_holders_and_receivers_in_common(batch, strategy):
    plan = made(batch, strategy=strategy)
    _, drafts = drafts_of(plan.tensors, dict(plan.hosts), strategy, fuse_bytes=2**40)
    alike = [
        (
            draft.terms,
            draft.receivers,
            draft.reduction,
            plan.tensors[draft.pieces[0].tensor].dtype if draft.reduction else "",
        )
        for draft in drafts
    ]
    assert len(set(alike)) == len(alike)


def test_pieces_are_fused_that_some_receivers_need_with_others_and_some_alone():
    one = Mesh((1,), ("x",), (0,))
    last, every = Mesh((1,), ("x",), (3,)), Mesh((4,), ("x",), (0, 1, 2, 3))
    src = {name: Layout((2,), one, Spec.parse("R")) for name in ("alone", "shared")}
    dst = {
        "alone": Layout((2,), last, Spec.parse("R")),
        "shared": Layout((2,), every, Spec.parse("R")),
    }
    made = plan(src, dst, "float32", {0: 0, 1: 0, 2: 0, 3: 1})
    sent = sorted((task.receivers, task.n_bytes, len(task.pieces)) for task in made.tasks)
    assert sent == [((1, 2), 8, 1), ((3,), 16, 2)]


@given(batches())
def test_names_in_any_order_give_the_same_plan(batch):
    b = batch
    backwards = plan(
        dict(reversed(b.src.items())), dict(reversed(b.dst.items())), b.dtype, b.hosts, b.links
    )
    assert backwards == made(batch)
    assert backwards.digest == made(batch).digest


@given(transfers())
def test_rates_that_are_all_equal_do_not_matter(transfer):
    t = transfer
    fast = Links(1e9, device_bytes_per_s=1e12, latency_s=0.0)
    with_links, without = (plan(t.src, t.dst, t.dtype, t.hosts, links) for links in (fast, None))
    assert with_links.tasks == without.tasks


@given(transfers(), STRATEGIES)
def test_hosts_send_what_others_receive(transfer, strategy):
    plan = made(transfer, strategy=strategy)
    assert crossing(plan) == sum(n_bytes for _, n_bytes in plan.received_bytes)


@given(transfers(), STRATEGIES)
def test_nothing_crosses_hosts_if_there_is_one(transfer, strategy):
    t = transfer
    plan_ = plan(t.src, t.dst, t.dtype, dict.fromkeys(t.hosts, 7), strategy=strategy)
    assert plan_.sent_bytes == ((7, 0),)


@given(transfers(partial=False))
def test_same_layout_moves_nothing(transfer):
    t = transfer
    assert plan(t.src, t.src, t.dtype, t.hosts).tasks == ()


@given(transfers(partial=False))
def test_broadcast_never_sends_more_than_one_by_one(transfer):
    broadcast, send_recv = (made(transfer, strategy=s) for s in ("broadcast", "send_recv"))
    assert crossing(broadcast) <= crossing(send_recv)


def test_broadcast_sends_a_slice_once_and_send_recv_once_to_each():
    src, dst = layout((8,), range(2), "S0"), layout((8,), range(2, 6), "R")
    assert [task.receivers for task in plan(src, dst, "int32").tasks] == [(2, 3, 4, 5)] * 2
    one_by_one = plan(src, dst, "int32", strategy="send_recv")
    assert sorted(task.receivers for task in one_by_one.tasks) == sorted(
        [(device,) for device in range(2, 6)] * 2
    )


@pytest.mark.parametrize(
    ("strategy", "bytes_out"),
    [("send_recv", 6), ("local_allgather", 3), ("global_allgather", 1), ("broadcast", 1)],
)
def test_sender_sends_as_often_as_section_3_1_says(strategy, bytes_out):
    """From one host to three hosts with two devices each: A B t, A t, t and t."""
    src, dst = layout((60,), range(1), "R"), layout((60,), range(1, 7), "R")
    hosts = {0: 0} | {device: 1 + (device - 1) // 2 for device in range(1, 7)}
    made_plan = plan(src, dst, "int8", hosts, strategy=strategy, chunk_bytes=1)
    assert dict(made_plan.sent_bytes)[0] == bytes_out * 60


def test_signal_is_one_byte_for_each_task():
    src, dst = layout((60,), range(1), "R"), layout((60,), range(1, 7), "R")
    assert plan(src, dst, "int8", strategy="signal").sent_bytes == (
        *((host, 1) for host in range(6)),
        (6, 0),
    )


def test_replicas_share_the_sending():
    """Case 2 of the paper's Table 2: RRR -> S0RR between meshes of two hosts."""
    src = layout((8, 4, 4), range(8), "RRR", (2, 4))
    dst = layout((8, 4, 4), range(8, 16), "S0RR", (2, 4))
    made_plan = plan(src, dst, "int32", {device: device // 4 for device in range(16)})
    assert made_plan.sent_bytes == ((0, 256), (1, 256), (2, 0), (3, 0))
    assert made_plan.received_bytes == ((0, 0), (1, 0), (2, 256), (3, 256))


def test_hosts_share_a_slice_between_elements_if_that_is_faster():
    """Two hosts that hold 60 bytes send a third of it to each of three."""
    src, dst = layout((15,), range(2), "R"), layout((15,), range(2, 5), "S0")
    split, whole = (plan(src, dst, "float32", split=split) for split in (True, False))
    check_plan(split)
    assert sorted(n_bytes for _, n_bytes in whole.sent_bytes) == [0, 0, 0, 20, 40]
    assert sorted(n_bytes for _, n_bytes in split.sent_bytes) == [0, 0, 0, 28, 32]


def test_cuts_between_bytes_of_fused_tensors_move_to_the_borders_of_elements():
    src, dst = layout((5,), range(2), "R"), layout((5,), range(2, 5), "S0")
    names = ("a", "b", "c")
    dtypes = {"a": "int8", "b": "float64", "c": "int16"}
    split = plan(dict.fromkeys(names, src), dict.fromkeys(names, dst), dtypes)
    check_plan(split)
    assert any(task.part[0] > 0 for task in split.tasks)


def test_receiver_with_a_replica_on_its_host_gets_it_there():
    src, dst = layout((8,), range(4), "R"), layout((8,), range(4, 6), "R")
    tasks = plan(src, dst, "int8", {0: 0, 1: 1, 2: 2, 3: 3, 4: 2, 5: 9}).tasks
    assert (2, 4) in [task.path for task in tasks]


def test_partial_sums_are_added_along_hosts_and_end_where_they_are_needed():
    """A reduce-scatter over two hosts of two devices: each half crosses the network once."""
    src, dst = layout((8,), range(4), "R+P0"), layout((8,), range(4), "S0")
    made_plan = plan(src, dst, "float32", {0: 0, 1: 0, 2: 1, 3: 1})
    assert made_plan.sent_bytes == ((0, 16), (1, 16))
    assert all(task.sender in task.receivers for task in made_plan.tasks)


def test_sums_of_maxima_meet_in_one_device():
    src = layout((4,), range(4), "R+P0+Pmax1", (2, 2))
    (task,) = plan(src, layout((4,), range(4, 5), "R"), "float32").tasks
    assert task.reduction == (("sum", 2), ("max", 2))
    assert [hop[:2] for hop in task.hops] == [(0, 3), (1, 3), (2, 3), (3, 4)]


def test_pieces_of_a_strided_shard_share_a_task():
    src, dst = layout((8,), range(2), "S[2]0"), layout((8,), range(2, 3), "R")
    assert [task.pieces for task in plan(src, dst, "int8").tasks] == [
        (Piece(0, ((0, 2),)), Piece(0, ((4, 6),))),
        (Piece(0, ((2, 4),)), Piece(0, ((6, 8),))),
    ]


@pytest.mark.parametrize(
    ("options", "n_chunks"), [({}, 2), ({"chunks": 1}, 1), ({"chunk_bytes": 1}, 100)]
)
def test_bytes_are_cut_into_chunks_that_are_not_too_small(options, n_chunks):
    src, dst = layout((30000,), range(1), "R"), layout((30000,), range(1, 3), "R")
    made_plan = plan(src, dst, "int8", order="load_balance", **options)
    assert [task.n_chunks for task in made_plan.tasks] == [n_chunks]


@pytest.mark.parametrize("n_hosts", [4, 5, 129, 256])
def test_small_sums_take_as_many_steps_as_the_number_of_hosts_has_digits(n_hosts):
    """A sum is reduced and broadcast along trees of ceil(log2 n) steps; chains take 2 n - 2
    steps."""
    links = Links(1e9, device_bytes_per_s=math.inf, latency_s=1e-5)
    src, dst = layout((64,), range(n_hosts), "R+P0"), layout((64,), range(n_hosts), "R")
    made_plan = plan(src, dst, "float32", links=links)
    check_plan(made_plan)
    step_s = 256 / 1e9 + 1e-5
    assert simulate(made_plan).time_s <= 2 * math.ceil(math.log2(n_hosts)) * step_s * (1 + 1e-9)


@pytest.mark.parametrize("n_hosts", [3, 4, 5, 8])
def test_large_sums_to_all_hosts_take_as_long_as_no_plan_can_beat(n_hosts):
    """Parts begin at each host of a ring, so each link passes 2 (n - 1) / n of the tensor."""
    shape = (2**12 * n_hosts,)
    src, dst = layout(shape, range(n_hosts), "R+P0"), layout(shape, range(n_hosts), "R")
    made_plan = plan(src, dst, "float32", chunk_bytes=1)
    check_plan(made_plan)
    links = Links(4.0 * shape[0], device_bytes_per_s=math.inf, latency_s=0.0)
    timeline = simulate(made_plan, links)
    assert timeline.lower_bound_s == pytest.approx(2 * (n_hosts - 1) / n_hosts)
    assert timeline.gap <= 0.05


def test_chunks_that_no_host_passes_on_are_longer():
    src, dst = layout((400_000,), range(1), "R"), layout((400_000,), range(1, 3), "R")
    n_chunks = [
        [task.n_chunks for task in plan(src, dst, "int8", hosts).tasks]
        for hosts in ({0: 0, 1: 1, 2: 2}, {0: 0, 1: 1, 2: 1}, {0: 0, 1: 0, 2: 0})
    ]
    assert n_chunks == [[32], [2], [2]]


def test_device_is_its_own_host_by_default():
    made_plan = plan(layout((4,), range(2), "S0"), layout((4,), range(1, 3), "S0"), "int8")
    assert made_plan.hosts == ((0, 0), (1, 1), (2, 2))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_tensor_without_elements_needs_no_task(shape):
    made_plan = plan(layout(shape, range(2), "S0R"), layout(shape, range(2, 4), "RS0"), "int8")
    assert made_plan.tasks == made_plan.copies == ()


def test_no_tensors_need_no_task():
    assert plan({}, {}, {}).tasks == ()


def test_scalar_is_one_task():
    hosts = {0: 0, 1: 1, 2: 2, 3: 2}
    (task,) = plan(layout((), range(2), "()"), layout((), range(2, 4), "()"), "int32", hosts).tasks
    assert (task.pieces, task.receivers, task.n_bytes) == ((Piece(0, ()),), (2, 3), 4)


@given(transfers())
def test_digest_does_not_depend_on_axis_names(transfer):
    def renamed(layout: Layout) -> Layout:
        names = tuple(f"renamed_{name}" for name in layout.mesh.axis_names)
        mesh = Mesh(layout.mesh.shape, names, layout.mesh.device_ids)
        return Layout(layout.shape, mesh, layout.spec, layout.chunking)

    t = transfer
    same = plan(renamed(t.src), renamed(t.dst), t.dtype, t.hosts, t.links)
    assert same.digest == made(transfer).digest


def test_digest_is_computed_once():
    made_plan = plan(layout((8,), range(2), "S0"), layout((8,), range(2, 4), "R"), "int32")
    assert made_plan.digest is made_plan.digest


def test_digest_depends_on_what_is_sent():
    src, dst = layout((8,), range(2), "S0"), layout((8,), range(2, 4), "R")
    arguments = {"src": src, "dst": dst, "dtype": "int32", "order": "load_balance"}
    changes = [
        {},
        {"dtype": "float32"},
        {"strategy": "send_recv"},
        {"chunk_bytes": 3},
        {"order": "all_at_once"},
        {"hosts": {0: 0, 1: 0, 2: 1, 3: 1}},
        {"dst": layout((8,), range(2, 4), "S0")},
        {"src": {"w": src}, "dst": {"w": dst}},
    ]
    digests = {plan(**{**arguments, **change}).digest for change in changes}
    assert len(digests) == len(changes)


ARGUMENTS = {
    "src": layout((4, 4), range(2), "S0R"),
    "dst": layout((4, 4), range(2, 4), "RS0"),
    "dtype": "float32",
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dst": layout((4, 5), range(2, 4), "RS0")}, r"same shape; got \(4, 4\) and \(4, 5\)"),
        ({"dst": layout((4, 4), range(2), "RR+P0")}, r"destination spec RR\+P0 for 'tensor'"),
        (
            {"src": layout((4, 4), range(2), "RR+P0"), "dtype": "M8[s]"},
            r"got dtype <M8\[s\] and the source spec RR\+P0",
        ),
        ({"dst": {"a": ARGUMENTS["dst"]}}, r"same tensor names; got \['tensor'\], \['a'\] and"),
        (
            {"src": {"a": "S0R"}, "dst": {"a": ARGUMENTS["dst"]}},
            "shardspec.Layout; got str and Layout for 'a'",
        ),
        ({"dtype": {"b": "int8"}}, r"names; got \['tensor'\], \['tensor'\] and \['b'\]"),
        ({"dtype": "nonsense"}, "numpy, ml_dtypes or torch has; got 'nonsense'"),
        ({"dtype": None}, "numpy, ml_dtypes or torch has; got None"),
        ({"dtype": object}, "plain bytes, .* got dtype object"),
        ({"dtype": "V0"}, "at least one, .* got dtype"),
        ({"strategy": "teleport"}, "'broadcast' or .* got 'teleport'"),
        ({"order": "alphabetic"}, "'naive' or .* got 'alphabetic'"),
        ({"seed": -1}, "got seed=-1"),
        ({"src": None}, "src and dst are each a shardspec.Layout, .* got NoneType"),
        ({"dst": [ARGUMENTS["dst"]]}, "a mapping of names to layouts for several .* got list"),
        ({"hosts": [0, 1, 2, 3]}, "a mapping from devices to hosts; got list"),
        ({"links": 1e9}, "a crossmesh.Links or None; got float"),
        ({"chunks": 0}, "chunks are from 1, .* got chunks=0"),
        ({"chunks": 2**63}, r"chunks are .*, below 2\*\*63, .* got chunks=9223372036854775808"),
        ({"chunk_bytes": 2**58}, r"below 2\*\*58, .* chunk_bytes=288230376151711744"),
        ({"chunk_bytes": 0}, "chunk_bytes from 1, .* got chunks=100, chunk_bytes=0"),
        ({"fuse_bytes": -1}, "chunk_bytes=12288 and fuse_bytes=-1"),
        ({"hosts": {0: 0, 2: 1}}, r"needs a host; hosts lacks devices \[1, 3\]"),
        ({"hosts": dict.fromkeys(range(4), 2**63)}, "numbers of 64 bits; got host 922"),
        ({"src": {1: ARGUMENTS["src"]}, "dst": {1: ARGUMENTS["dst"]}}, r"are texts; got \[1\]"),
        ({"links": Links({0: 1.0}, 1.0, 0.0)}, r"has \[0\] but not \[1, 2, 3\]"),
    ],
)
def test_says_what_is_wrong_with_the_arguments(changed, message):
    with pytest.raises(PlanError, match=message):
        plan(**{**ARGUMENTS, **changed})


def test_partial_destinations_have_an_error_of_their_own():
    with pytest.raises(PartialLayoutError):
        plan(ARGUMENTS["src"], layout((4, 4), range(2), "RR+P0"), "float32")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hosts": dict.fromkeys(range(4), "a")}, "a host is a whole number; got 'a'"),
        ({"chunks": 2.5}, r"chunks is a whole number; got 2\.5"),
        ({"chunk_bytes": 1.5}, r"chunk_bytes is a whole number; got 1\.5"),
        ({"fuse_bytes": "1"}, "fuse_bytes is a whole number; got '1'"),
        ({"seed": 0.5}, r"seed is a whole number; got 0\.5"),
        ({"steps": None}, "steps is a whole number; got None"),
    ],
)
def test_refuses_numbers_that_are_no_integers(changed, message):
    with pytest.raises(PlanError, match=message):
        plan(**ARGUMENTS, **changed)


def test_tensor_of_huge_empty_shape_is_an_error_and_not_an_overflow():
    shape = (2**40, 0, 2**40)
    with pytest.raises(PlanError, match=r"fewer than 2\*\*63 bytes"):
        plan(layout(shape, range(2), "S0RR"), layout(shape, range(2), "RRR"), "int8")


def test_shards_of_more_pieces_than_a_plan_may_have_are_refused_at_once():
    strided = layout((2**40,), range(2), "S[1073741824]0")
    with pytest.raises(PlanError, match=r"got \(1099511627776,\) as S.* larger strides"):
        plan(strided, layout((2**40,), range(2), "R"), "int8")


def test_meshes_of_more_devices_than_a_plan_may_have_are_refused_at_once():
    mesh = Mesh((2**60,), ("x",))
    with pytest.raises(PlanError, match="at most 4194304 devices, pieces"):
        plan(Layout((1,), mesh, Spec.parse("S0")), layout((1,), range(1), "R"), "int8")


def test_more_pairs_of_shards_than_a_plan_may_have_are_refused_at_once():
    rows = layout((2**30, 2**30), range(2**12), "S0R")
    columns = layout((2**30, 2**30), range(2**12), "RS0")
    with pytest.raises(PlanError, match=r"got more for 4096 by 4096 shards; .* larger strides"):
        plan(rows, columns, "int8")


def test_a_plan_of_too_many_receivers_is_refused():
    src = Layout((4096,), Mesh((4096,), ("x",)), Spec.parse("S0"))
    dst = Layout((4096,), Mesh((2048,), ("x",), range(4096, 6144)), Spec.parse("R"))
    with pytest.raises(PlanError, match=r"got 8388608 receivers of 4096 tasks; .* fewer replicas"):
        plan(src, dst, "float32")


def test_prints_one_line_a_tensor_and_one_a_task():
    sharded, whole = layout((4, 2), range(2), "S0R"), layout((4, 2), range(2, 4), "RR")
    hosts = {0: 0, 1: 1, 2: 2, 3: 2}
    assert str(plan(sharded, whole, "int8", hosts)).splitlines() == [
        "0 tensor: int8[4, 2] S0R on (2,) -> RR on (2,)",
        "  0: 0[0:2, 0:2] bytes 0:4 0 -> 2, 3",
        "  1: 0[2:4, 0:2] bytes 0:4 1 -> 2, 3",
    ]
