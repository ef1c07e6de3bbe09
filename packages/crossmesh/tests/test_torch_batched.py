from collections import defaultdict
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from crossmesh import PlanError, Strategy, plan
from crossmesh.errors import MismatchError, ShardError
from crossmesh.search import Order
from crossmesh.testing import batches as transfers_of_many
from crossmesh.torch_batched import batches, execute_batched
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec

MOVES = [strategy for strategy in get_args(Strategy) if strategy != "signal"]


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


@given(copies(), st.integers(1, 3), st.data())
def test_no_rank_waits_for_ever_when_a_batch_blocks_until_all_of_it_is_done(made, window, data):
    """As on NCCL: ranks go through their batches one by one; a message passes when both its ranks
    have begun the batch that it is in, and all earlier ones between the two have passed."""
    todo = {device: list(batches(made, device, window)) for device, _ in made.hosts}
    pairs = defaultdict(list)
    for device, of_device in todo.items():
        for batch in of_device:
            for message in batch:
                if message.leg.sender == device:
                    pairs[message.leg[:2]].append(key(message))
    left = {device: {key(m) for m in b[0]} if b else set() for device, b in todo.items()}
    while any(todo.values()):
        able = [
            queue
            for (sender, receiver), queue in sorted(pairs.items())
            if queue and queue[0] in left[sender] and queue[0] in left[receiver]
        ]
        assert able, f"waits for ever: {left}"
        message = data.draw(st.sampled_from(able)).pop(0)
        for device in message[2][:2]:
            left[device].remove(message)
            if not left[device]:
                todo[device].pop(0)
                left[device] = {key(m) for m in todo[device][0]} if todo[device] else set()


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


def test_refuses_what_are_no_copies(alone):
    partial = Layout((4, 2), Mesh((2,), ("x",), (0, 1)), Spec.parse("RR+P0"))
    for made in (plan(partial, ROWS, "float32"), plan(ROWS, ROWS, "float32", strategy="signal")):
        with pytest.raises(PlanError, match="batches move copies, and nothing else"):
            execute_batched(made, {}, {}, alone, window=1)


def test_refuses_a_window_without_tasks(alone):
    with pytest.raises(PlanError, match="at least one task is open at a time; got window=0"):
        execute_batched(plan(ROWS, ROWS, "float32"), {}, {}, alone, window=0)


def test_refuses_tensors_of_other_shapes(alone):
    made = plan(ROWS, ROWS, "float32")
    with pytest.raises(ShardError, match=r"got shape \(2, 4\) for \(4, 2\) of 'tensor' on rank 0"):
        execute_batched(made, {"tensor": torch.empty(2, 4)}, {}, alone, window=1)


def test_refuses_another_plan_than_other_ranks_have(alone, monkeypatch):
    made = plan(ROWS, ROWS, "float32")
    shards = {"tensor": torch.empty(4, 2)}
    monkeypatch.setattr(dist, "all_gather", lambda heard, own, group: heard[0].copy_(own + 1))
    with pytest.raises(MismatchError, match="same plan, with shards that fit it; this one has"):
        execute_batched(made, shards, shards, alone, window=1)
