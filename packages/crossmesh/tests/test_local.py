import sys
from typing import get_args

import numpy as np
import pytest
from crossmesh import LocalTransport, ShardError, TaskStrategy, execute_local, plan
from crossmesh.base.reduce import number_type
from crossmesh.testing import batches, check_delivery, shards_of, transfers
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec, shard


def tensor(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """A read-only whole tensor, of distinct elements if the dtype allows."""
    whole = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
    whole.flags.writeable = False
    return whole


COPIES = transfers(partial=False)
MOVES = [strategy for strategy in get_args(TaskStrategy) if strategy != "signal"]


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


def test_devices_with_equal_shards_get_one_array_if_they_may():
    made = plan(ROWS, WHOLE, "f4")
    shards = shards_of(ROWS, tensor((4, 6), "f4"))
    shared = execute_local(made, shards, share=True)
    assert shared[2] is shared[3] is shared[4]
    own = execute_local(made, shards)
    assert not any(np.shares_memory(own[a], own[b]) for a, b in [(2, 3), (2, 4), (3, 4)])


def test_devices_with_different_shards_share_no_memory():
    made = plan(ROWS, COLUMNS, "f4")
    received = execute_local(made, shards_of(ROWS, tensor((4, 6), "f4")), share=True)
    assert not np.shares_memory(received[2], received[3])


@given(batches(), st.sampled_from(MOVES), st.booleans())
def test_every_shard_of_many_tensors_is_its_slice_also_of_partial_sources(batch, strategy, share):
    b = batch
    made = plan(b.src, b.dst, b.dtype, b.hosts, b.links, strategy=strategy)
    wholes = {
        t.name: np.resize(np.arange(1, 5), t.shape).astype(number_type(t.dtype))
        for t in made.tensors
    }
    shards = {t.name: shard(t.src, wholes[t.name]) for t in made.tensors}
    received = execute_local(made, shards, share=share)
    for t in made.tensors:
        expected = shard(t.dst, wholes[t.name])
        assert list(received[t.name]) == list(t.dst.mesh.device_ids)
        for device, array in received[t.name].items():
            np.testing.assert_array_equal(array, expected[device], strict=True)
            assert array.ctypes.data % 64 == 0 or array.size == 0


def test_after_a_plan_of_signals_devices_have_only_what_they_held():
    both = layout((4, 6), range(1, 3), "RR")
    whole = tensor((4, 6), "f4")
    made = plan(ROWS, both, "f4", strategy="signal")
    received = execute_local(made, shards_of(ROWS, whole))
    np.testing.assert_array_equal(received[1][2:], whole[2:])
    assert received[2].shape == (4, 6)


def test_transport_makes_new_arrays_each_time():
    transport = LocalTransport(plan(ROWS, COLUMNS, "f4"))
    first, second = (transport(shards_of(ROWS, tensor((4, 6), "f4"))) for _ in range(2))
    assert not np.shares_memory(first[2], second[2])


def test_moves_elements_that_numpy_has_no_buffer_format_for():
    dtype = np.dtype([("a", "u1"), ("b", ">f8")])
    whole = np.zeros((4, 6), dtype)
    whole["b"] = np.arange(24).reshape(4, 6)
    made = plan(ROWS, COLUMNS, "V9")
    with pytest.raises(ShardError, match=r"plan for their dtype, or pass raw bytes: .*'V9'"):
        execute_local(made, shards_of(ROWS, whole))
    whole = whole.view("V9")
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
        ({}, r"each device of the mesh; got devices \[\] instead of \[0, 1\]"),
        ({0: SHARD}, r"got devices \[0\] instead of \[0, 1\]"),
        ({0: SHARD, 1: SHARD, 2: SHARD}, r"got devices \[0, 1, 2\] instead of \[0, 1\]"),
        (
            {0: SHARD, 1: SHARD.T},
            r"got \(6, 2\) for device 1, which holds \(2, 6\) of \(4, 6\) as S0R",
        ),
        ({0: SHARD, 1: SHARD.tolist()}, "got list for device 1"),
        ({0: SHARD, 1: SHARD.view("V4")}, r"one dtype; got \['float32', '\|V4'\]"),
        (
            {0: SHARD, 1: SHARD.astype("i4")},
            r"got int32 \(<i4\) instead of float32 .* on device 1",
        ),
        ({0: SHARD, 1: np.ma.MaskedArray(SHARD)}, "got MaskedArray for device 1"),
        ([SHARD, SHARD], "shards are a mapping; got list"),
        ({"tensor": [SHARD, SHARD]}, "are {device: array}; got list for 'tensor'"),
        (
            dict.fromkeys(range(2), SHARD.astype("f8")),
            r"got float64 \(<f8\) instead of float32 for 'tensor' on device 0; convert",
        ),
    ],
)
def test_says_what_is_wrong_with_the_shards(shards, message):
    with pytest.raises(ShardError, match=message):
        execute_local(plan(ROWS, COLUMNS, "f4"), shards)


@pytest.mark.parametrize("dtype", [np.dtype(object), np.dtype([("a", object)])])
def test_refuses_references_to_python_objects(dtype):
    shards = dict.fromkeys(range(2), np.zeros((2, 6), dtype))
    with pytest.raises(ShardError, match="shards have the dtype that is planned; got "):
        execute_local(plan(ROWS, COLUMNS, f"V{dtype.itemsize}"), shards)
