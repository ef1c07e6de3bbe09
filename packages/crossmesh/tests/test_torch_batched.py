import itertools
from collections import defaultdict
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from crossmesh import PlanError, TaskStrategy, plan
from crossmesh.engines.torch_batched import batches, execute_batched
from crossmesh.errors import MismatchError, ShardError, TransportError
from crossmesh.testing import batches as transfers_of_many
from crossmesh.torch import transfer_state_dict
from crossmesh.transfer.solver import Order
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec

MOVES = [strategy for strategy in get_args(TaskStrategy) if strategy != "signal"]


@st.composite
def copies(draw):
    """Plans without partial sources."""
    b = draw(transfers_of_many(partial=False))
    options = {"strategy": draw(st.sampled_from(MOVES)), "chunks": draw(st.integers(1, 5))}
    order = draw(st.sampled_from(get_args(Order)))
    return plan(b.src, b.dst, b.dtype, b.hosts, b.links, order=order, chunk_bytes=1, **options)


def key(message):
    return message.chunk.task.index, message.chunk.part, message.leg


@given(copies(), st.integers(1, 3))
def test_every_message_is_in_one_batch_of_both_its_ranks_and_batches_are_small(made, window):
    sent, received = [], []
    for device, _ in made.hosts:
        for batch in batches(made, device, window):
            assert batch
            assert len({message.chunk.task.index for message in batch}) <= window
            sent += [key(m) for m in batch if m.leg.sender == device]
            received += [key(m) for m in batch if m.leg.receiver == device]
    assert len(sent) == len(set(sent))
    assert sorted(sent) == sorted(received)


@given(copies())
def test_nothing_is_sent_in_the_batch_in_which_it_arrives_or_before(made):
    for device, _ in made.hosts:
        there = {task.index for task in made.tasks if task.sender == device}
        arrived = set()
        for batch in batches(made, device, window=2):
            for chunk, leg in batch:
                if leg.sender == device:
                    assert chunk.task.index in there or (chunk.task.index, chunk.part) in arrived
            arrived |= {(m.chunk.task.index, m.chunk.part) for m in batch if m.leg.sender != device}


@given(copies(), st.integers(1, 3))
def test_no_rank_waits_for_ever_though_any_message_of_a_batch_waits_for_any_other(made, window):
    """Ranks go through their batches one by one. Those that are begun pass that have all their
    messages in common with others that pass, as NCCL says of groups."""
    todo = {device: batches(made, device, window) for device, _ in made.hosts}
    while begun := {device: {key(m) for m in b[0]} for device, b in todo.items() if b}:
        passing = dict(begun)
        while stuck := [
            device
            for device, messages in passing.items()
            if any(m not in passing.get(end, ()) for m in messages for end in m[2][:2])
        ]:
            for device in stuck:
                del passing[device]
        assert passing, f"wait for ever: {begun}"
        for device in passing:
            todo[device].pop(0)


@given(copies(), st.integers(1, 3))
def test_messages_between_two_ranks_are_in_one_order_on_both(made, window):
    orders = defaultdict(list)
    for device, _ in made.hosts:
        for message in itertools.chain(*batches(made, device, window)):
            orders[message.leg[:2], device].append(key(message))
    for ((sender, receiver), _), order in orders.items():
        assert order == orders[(sender, receiver), sender] == orders[(sender, receiver), receiver]


@given(copies(), st.integers(1, 3))
def test_a_rank_has_few_tasks_between_their_first_message_and_their_last(made, window):
    for device, _ in made.hosts:
        spans = {}
        for number, batch in enumerate(batches(made, device, window)):
            for chunk, _ in batch:
                spans[chunk.task.index] = spans.get(chunk.task.index, (number, 0))[0], number
        for first, _ in spans.values():
            assert sum(a <= first <= b for a, b in spans.values()) <= window


def test_a_chain_passes_a_chunk_on_while_the_next_one_arrives():
    src = Layout((9,), Mesh((1,), ("x",), (0,)), Spec.parse("R"))
    dst = Layout((9,), Mesh((2,), ("x",), (1, 2)), Spec.parse("R"))
    made = plan(src, dst, "int8", chunks=3, chunk_bytes=1, order="load_balance")
    shown = [
        [f"{chunk.part[0]}:{leg.sender}->{leg.receiver}" for chunk, leg in batch]
        for batch in batches(made, 1, window=1)
    ]
    assert shown == [["0:0->1"], ["0:1->2", "3:0->1"], ["3:1->2", "6:0->1"], ["6:1->2"]]


@pytest.fixture
def alone():
    """A process group of one, which is device 0."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


ROWS = Layout((4, 2), Mesh((1,), ("x",), (0,)), Spec.parse("S0R"))


def test_what_a_rank_has_already_is_copied_without_a_message(alone):
    src = torch.arange(8.0).reshape(4, 2)
    dst = torch.empty(2, 4).T
    execute_batched(plan(ROWS, ROWS, "float32"), {"tensor": src}, {"tensor": dst}, alone, window=1)
    assert torch.equal(src, dst)


def test_refuses_a_stall_limit_of_a_process_group(alone):
    with pytest.raises(PlanError, match=r"no stall limit; got stall_s=2\.0 for a ProcessGroup"):
        transfer_state_dict({}, {}, alone, window=1, stall_s=2.0)


def test_refuses_what_are_no_copies(alone):
    partial = Layout((4, 2), Mesh((2,), ("x",), (0, 1)), Spec.parse("RR+P0"))
    for made in (plan(partial, ROWS, "float32"), plan(ROWS, ROWS, "float32", strategy="signal")):
        with pytest.raises(PlanError, match="batches move plain copies only"):
            execute_batched(made, {}, {}, alone, window=1)


def test_refuses_a_window_without_tasks(alone):
    with pytest.raises(PlanError, match="at least one task is open at a time; got window=0"):
        execute_batched(plan(ROWS, ROWS, "float32"), {}, {}, alone, window=0)


def test_refuses_tensors_of_other_shapes(alone):
    made = plan(ROWS, ROWS, "float32")
    message = r"got shape \(2, 4\) instead of \(4, 2\) for 'tensor' on rank 0"
    with pytest.raises(ShardError, match=message):
        execute_batched(made, {"tensor": torch.empty(2, 4)}, {}, alone, window=1)


FOUR = torch.ones(4, 2)


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        ([FOUR], {}, "shards are tensors by name; got list"),
        ({"tensor": FOUR.numpy()}, {}, r"a shard is a torch\.Tensor; got ndarray for 'tensor'"),
        (
            {"tensor": FOUR.to_sparse()},
            {},
            r"in memory, at strides; got a torch\.sparse_coo tensor",
        ),
        ({"tensor": FOUR.to("meta")}, {}, "got a torch.strided tensor on meta for 'tensor'; make"),
        ({"tensor": torch.ones(4, 2, dtype=torch.complex64).conj()}, {}, "resolve_conj"),
        (
            {"tensor": FOUR.int()},
            {},
            r"planned; got torch\.int32 instead of float32 for 'tensor' on rank 0",
        ),
        ({"tensor": FOUR}, {"tensor": FOUR}, "a destination shares no memory with a source"),
        (
            {"tensor": FOUR},
            {"tensor": torch.ones(2).expand(4, 2)},
            r"has its own memory; .* strides \(0, 1\)",
        ),
    ],
)
def test_refuses_tensors_that_it_cannot_move(alone, src, dst, message):
    with pytest.raises(ShardError, match=message):
        execute_batched(plan(ROWS, ROWS, "float32"), src, dst, alone, window=1)


def test_refuses_ranks_that_are_not_in_the_group(alone):
    away = Layout((4, 2), Mesh((1,), ("x",), (3,)), Spec.parse("S0R"))
    with pytest.raises(PlanError, match=r"of the group; it lacks ranks \[3\]; make a group"):
        execute_batched(plan(ROWS, away, "float32"), {"tensor": FOUR}, {}, alone, window=1)


def test_says_whom_it_waited_for_when_the_group_fails(alone, monkeypatch):
    def fail(*given, **options):
        raise RuntimeError("Timed out waiting 1ms")

    tensors = {"tensor": FOUR}, {"tensor": torch.empty(4, 2)}
    monkeypatch.setattr(dist, "all_gather", fail)
    waited = r"failed while rank 0 waited for some of the ranks \[\] to begin: Timed out waiting"
    with pytest.raises(TransportError, match=waited):
        execute_batched(plan(ROWS, ROWS, "float32"), *tensors, alone, window=1)
    with pytest.raises(PlanError, match=r"window is a whole number; got 1\.5"):
        execute_batched(plan(ROWS, ROWS, "float32"), *tensors, alone, window=1.5)


def test_refuses_another_plan_than_other_ranks_have(alone, monkeypatch):
    made = plan(ROWS, ROWS, "float32")
    tensors = {"tensor": FOUR}, {"tensor": torch.empty(4, 2)}
    monkeypatch.setattr(dist, "all_gather", lambda heard, own, group: heard[0].copy_(own + 1))
    with pytest.raises(MismatchError, match="with the same window; this one has digest"):
        execute_batched(made, *tensors, alone, window=1)
