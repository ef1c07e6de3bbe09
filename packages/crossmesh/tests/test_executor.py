from collections import Counter
from typing import get_args

import numpy as np
import pytest
from crossmesh import Execution, InternalError, Order, TaskStrategy, execute_local, plan
from crossmesh.base.geometry import tiles
from crossmesh.base.reduce import number_type
from crossmesh.run.carrier import OPEN_CHUNKS, Carrier
from crossmesh.run.channels import Channels, Message
from crossmesh.testing import batches
from crossmesh.testing_transport import Wires, ranks_shards, take_turns
from crossmesh.transfer.messages import Leg, program
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec, shard

MOVES = [strategy for strategy in get_args(TaskStrategy) if strategy != "signal"]


def tensors_of(made, seed):
    """The whole tensors, of small integers so that sums are exact; distinct if the dtype allows."""
    rng = np.random.default_rng(seed)
    return {t.name: rng.integers(1, 5, t.shape).astype(number_type(t.dtype)) for t in made.tensors}


def transfer(made, shards, rank_of, order=None, arrives=lambda: True, **options):
    """Execute a plan between ranks that take turns; returns all ranks' results, and the wires."""
    wires = Wires(rank_of, max(rank_of.values(), default=0) + 1, arrives)
    options = {"window": 2, "deadline_s": 1.0, "clock": lambda: 0.0} | options
    executions = [
        Execution(made, own, transport, **options)
        for own, transport in zip(
            ranks_shards(shards, rank_of, wires.n_ranks), wires.transports(), strict=True
        )
    ]
    errors = take_turns(executions, order)
    assert errors == [None] * len(executions)
    return executions, wires


def check(made, wholes, executions, rank_of):
    for t in made.tensors:
        expected = shard(t.dst, wholes[t.name])
        received = {d: a for e in executions for d, a in e.result[t.name].items()}
        assert sorted(received) == sorted(expected)
        for device, array in received.items():
            np.testing.assert_array_equal(array, expected[device], strict=True)
        for rank, execution in enumerate(executions):
            assert {rank_of[d] for d in execution.result[t.name]} <= {rank}


@given(batches(), st.sampled_from(MOVES), st.sampled_from(get_args(Order)), st.data())
def test_every_destination_shard_is_its_slice_and_every_byte_arrives_once(
    batch, strategy, order, data
):
    b = batch
    made = plan(
        b.src, b.dst, b.dtype, b.hosts, b.links,
        strategy=strategy, order=order, chunks=data.draw(st.integers(1, 5)), chunk_bytes=1,
        fuse_bytes=data.draw(st.sampled_from([0, 40, 2**20])),
    )  # fmt: skip
    n_ranks = data.draw(st.integers(1, 4))
    rank_of = {device: data.draw(st.integers(0, n_ranks - 1)) for device, _ in made.hosts}
    wholes, checksums = tensors_of(made, 0), data.draw(st.booleans())
    shards = {t.name: shard(t.src, wholes[t.name]) for t in made.tensors}
    draws = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    executions, wires = transfer(
        made,
        shards,
        rank_of,
        order=lambda: int(draws.integers(1000)),
        arrives=lambda: bool(draws.integers(2)),
        window=data.draw(st.integers(1, 3)),
        staging_bytes=data.draw(st.sampled_from([0, 30, 2**20])),
        checksums=checksums,
    )
    check(made, wholes, executions, rank_of)
    passing = Counter()
    for chunk in program(made):
        for leg in chunk.legs:
            passing[rank_of[leg.sender], rank_of[leg.receiver]] += chunk.n_bytes + 4 * checksums
    assert wires.sent_bytes == {(a, b): n for (a, b), n in passing.items() if a != b}


@given(batches(), st.sampled_from(MOVES), st.integers(0, 2**32 - 1))
def test_ranks_add_up_to_the_same_bits_as_one_process(batch, strategy, seed):
    b = batch
    made = plan(b.src, b.dst, b.dtype, b.hosts, b.links, strategy=strategy)
    rng = np.random.default_rng(seed)
    wholes = {t.name: rng.normal(8, 4, t.shape).astype(number_type(t.dtype)) for t in made.tensors}
    shards = {t.name: shard(t.src, wholes[t.name], seed=seed) for t in made.tensors}
    # The drawn values are whole numbers; add noise, so that sums have to be rounded.
    for of_tensor, t in zip(shards.values(), made.tensors, strict=True):
        for replicas in tiles(t.src):
            for term in replicas.terms:
                noise = rng.normal(1, 0.1, of_tensor[term[0]].shape)
                for device in term:
                    of_tensor[device] = np.asarray(
                        of_tensor[device] * noise, of_tensor[device].dtype
                    )
    rank_of = {device: i % 3 for i, (device, _) in enumerate(made.hosts)}
    executions, _ = transfer(made, shards, rank_of)
    alone = execute_local(made, shards)
    for name, of_tensor in alone.items():
        received = {d: a for e in executions for d, a in e.result[name].items()}
        for device, array in of_tensor.items():
            assert array.tobytes() == received[device].tobytes()


@given(batches(), st.sampled_from(MOVES), st.integers(1, 3), st.sampled_from([0, 30, 200]))
def test_open_tasks_and_chunks_and_staged_bytes_are_bounded(batch, strategy, window, staging_bytes):
    b = batch
    made = plan(b.src, b.dst, b.dtype, b.hosts, strategy=strategy, chunks=12, chunk_bytes=1)
    rank_of = {device: i % 2 for i, (device, _) in enumerate(made.hosts)}
    wires = Wires(rank_of, 2)
    shards = {
        t.name: shard(t.src, w)
        for t, w in zip(made.tensors, tensors_of(made, 0).values(), strict=True)
    }
    carriers = []
    for own, transport in zip(ranks_shards(shards, rank_of, 2), wires.transports(), strict=True):
        dst = {
            t.name: {
                d: np.zeros(t.dst.local_shape(d), number_type(t.dtype))
                for d in t.dst.mesh.device_ids
                if rank_of[d] == transport.rank
            }
            for t in made.tensors
        }
        channels = Channels(transport, checksums=False)
        carriers.append(Carrier(made, own, dst, transport, channels, window, staging_bytes))
    # A device can be an adder and a receiver of a chunk, with separate memory for each role.
    largest = max((2 * chunk.n_bytes * (len(chunk.legs) + 1) for chunk in program(made)), default=0)
    while not all(carrier.done for carrier in carriers):
        for carrier in carriers:
            carrier.advance()
            assert carrier.open_tasks <= window
            assert carrier.open_chunks <= max(window, OPEN_CHUNKS)
            assert carrier.staged_bytes <= max(staging_bytes, largest)
    assert [carrier.staged_bytes for carrier in carriers] == [0, 0]


def test_terms_that_are_given_as_raw_bytes_add_by_the_plans_type():
    mesh = Mesh((2,), ("x",), (0, 1))
    src = Layout((6,), mesh, Spec.parse("R+P0"))
    made = plan(src, Layout((6,), mesh, Spec.parse("S0")), "bfloat16")
    bfloat16 = number_type("bfloat16")
    terms = {device: (np.arange(6) / (2 + device)).astype(bfloat16) for device in (0, 1)}
    shards = {"tensor": {device: term.view("V2") for device, term in terms.items()}}
    executions, _ = transfer(made, shards, {0: 0, 1: 1})
    total = terms[0] + terms[1]
    for device, execution in enumerate(executions):
        received = execution.result["tensor"][device]
        assert received.dtype == "V2"
        np.testing.assert_array_equal(received.view(bfloat16), total[3 * device :][:3])


def test_the_content_of_a_message_without_bytes_is_an_internal_error():
    with pytest.raises(InternalError, match="before they are used; got a chunk from device 0"):
        _ = Message("a chunk", Leg(0, 1, False)).content
