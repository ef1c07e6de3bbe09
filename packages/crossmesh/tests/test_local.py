import sys

import numpy as np
import pytest
from crossmesh import LocalTransport, ShardError, execute_local, plan
from crossmesh.testing import check_delivery, shards_of, transfers
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec


def tensor(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Distinct elements, as far as the dtype has them, that nobody can write to."""
    whole = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
    whole.flags.writeable = False
    return whole


COPIES = transfers(partial=False)


@given(COPIES, st.sampled_from(["broadcast", "send_recv"]), st.sampled_from(["f4", "c16", "i1"]))
def test_every_destination_shard_is_its_slice_of_the_tensor(transfer, strategy, dtype):
    t = transfer
    made = plan(t.src, t.dst, dtype, t.hosts, t.links, strategy=strategy)
    whole = tensor(t.src.shape, dtype)
    check_delivery(made, whole, execute_local(made, shards_of(t.src, whole)))


@given(COPIES)
def test_there_and_back_gives_the_same_shards(transfer):
    t = transfer
    whole = tensor(t.src.shape, "M8[s]")
    there = plan(t.src, t.dst, whole.dtype, t.hosts)
    back = plan(t.dst, t.src, whole.dtype, t.hosts)
    check_delivery(back, whole, execute_local(back, execute_local(there, shards_of(t.src, whole))))


def layout(shape: tuple[int, ...], devices: range, spec: str) -> Layout:
    return Layout(shape, Mesh((len(devices),), ("x",), tuple(devices)), Spec.parse(spec))


ROWS = layout((4, 6), range(2), "S0R")
COLUMNS = layout((4, 6), range(2, 5), "RS0")
WHOLE = layout((4, 6), range(2, 5), "RR")


def test_devices_with_equal_shards_share_one_array():
    received = execute_local(plan(ROWS, WHOLE, "f4"), shards_of(ROWS, tensor((4, 6), "f4")))
    assert received[2] is received[3] is received[4]


def test_devices_with_different_shards_share_no_memory():
    received = execute_local(plan(ROWS, COLUMNS, "f4"), shards_of(ROWS, tensor((4, 6), "f4")))
    assert not np.shares_memory(received[2], received[3])


def test_transport_makes_new_arrays_each_time():
    transport = LocalTransport(plan(ROWS, COLUMNS, "f4"))
    first, second = (transport(shards_of(ROWS, tensor((4, 6), "f4"))) for _ in range(2))
    assert not np.shares_memory(first[2], second[2])


def test_moves_elements_that_numpy_has_no_buffer_format_for():
    dtype = np.dtype([("a", "u1"), ("b", ">f8")])
    whole = np.zeros((4, 6), dtype)
    whole["b"] = np.arange(24).reshape(4, 6)
    made = plan(ROWS, COLUMNS, "V9")
    check_delivery(made, whole, execute_local(made, shards_of(ROWS, whole)))


def test_holds_no_reference_to_its_shards():
    shards = {
        device: shard.copy() for device, shard in shards_of(ROWS, tensor((4, 6), "f4")).items()
    }
    before = [sys.getrefcount(shard) for shard in shards.values()]
    transport = LocalTransport(plan(ROWS, COLUMNS, "f4"))
    for _ in range(10):
        transport(shards)
    assert [sys.getrefcount(shard) for shard in shards.values()] == before


SHARD = np.zeros((2, 6), "f4")


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ({}, r"each device of the source mesh; got \[\] for \[0, 1\]"),
        ({0: SHARD}, r"got \[0\] for \[0, 1\]"),
        ({0: SHARD, 1: SHARD, 2: SHARD}, r"got \[0, 1, 2\] for \[0, 1\]"),
        (
            {0: SHARD, 1: SHARD.T},
            r"got \(6, 2\) for device 1, which holds \(2, 6\) of \(4, 6\) as S0R",
        ),
        ({0: SHARD, 1: SHARD.tolist()}, "got list for device 1"),
        ({0: SHARD, 1: SHARD.astype("i4")}, r"one dtype; got \['float32', 'int32'\]"),
        (
            dict.fromkeys(range(2), SHARD.astype("f8")),
            "of 4 bytes, as planned; got dtype float64 of 8",
        ),
    ],
)
def test_says_what_is_wrong_with_the_shards(shards, message):
    with pytest.raises(ShardError, match=message):
        execute_local(plan(ROWS, COLUMNS, "f4"), shards)


@pytest.mark.parametrize("dtype", [np.dtype(object), np.dtype([("a", object)])])
def test_refuses_references_to_python_objects(dtype):
    shards = dict.fromkeys(range(2), np.zeros((2, 6), dtype))
    with pytest.raises(ShardError, match="plain elements"):
        execute_local(plan(ROWS, COLUMNS, f"V{dtype.itemsize}"), shards)
