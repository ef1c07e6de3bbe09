from typing import get_args

import numpy as np
import pytest
from crossmesh import Strategy, plan
from crossmesh.executor import Execution, execute
from crossmesh.search import Order
from crossmesh.terms import number_type
from crossmesh.testing import batches
from crossmesh.testing_transport import Wires, ranks_shards, take_turns
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec, shard

pytest.importorskip("ml_dtypes")

MOVES = [strategy for strategy in get_args(Strategy) if strategy != "signal"]


def tensors_of(made, seed):
    """The whole tensors: distinct small integers, as far as the types have them, so that sums are
    exact."""
    rng = np.random.default_rng(seed)
    return {t.name: rng.integers(1, 5, t.shape).astype(number_type(t.dtype)) for t in made.tensors}


def transfer(made, wholes, rank_of, seed=0, order=None, arrives=lambda: True, **options):
    """Execute a plan between ranks that take turns; what each returned, and the wires."""
    wires = Wires(rank_of, max(rank_of.values(), default=0) + 1, arrives)
    shards = {t.name: shard(t.src, wholes[t.name], seed=seed) for t in made.tensors}
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
    wholes = tensors_of(made, 0)
    draws = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    executions, wires = transfer(
        made,
        wholes,
        rank_of,
        order=lambda: int(draws.integers(1000)),
        arrives=lambda: bool(draws.integers(2)),
        window=data.draw(st.integers(1, 3)),
        staging_bytes=data.draw(st.sampled_from([0, 30, 2**20])),
        checksums=data.draw(st.booleans()),
    )
    check(made, wholes, executions, rank_of)
