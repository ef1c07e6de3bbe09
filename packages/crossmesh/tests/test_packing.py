import numpy as np
import pytest
from crossmesh import shard_boxes
from crossmesh.base._native import core
from crossmesh.run.packing import BoxOffsets, Packed
from crossmesh.testing_geometry import pack, unpack
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from shardspec import Layout, shard
from shardspec.testing import EVERY_RULE, layouts

ITEMS = st.sampled_from([np.dtype(name) for name in ("u1", "<i2", "f4", ">f8", "c16", "V3", "V24")])


@st.composite
def strided(draw: st.DrawFn) -> np.ndarray:
    """Arrays with any strides, of distinct bytes as far as these suffice."""
    dtype = draw(ITEMS)
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -3])) for _ in shape]
    room = tuple(n * abs(step) for n, step in zip(shape, steps, strict=True))
    count = int(np.prod(room, dtype=int)) * dtype.itemsize
    whole = (np.arange(count) % 251).astype(np.uint8).view(dtype).reshape(room)
    array = whole[(*(slice(None, None, step) for step in steps), ...)]
    return array.transpose(draw(st.permutations(range(len(shape)))))


@st.composite
def parts(draw: st.DrawFn, n_bytes: int) -> tuple[int, int]:
    start = draw(st.integers(0, n_bytes))
    return start, draw(st.integers(start, n_bytes))


@given(strided(), st.data())
def test_pack_copies_the_same_bytes_as_numpy(array, data):
    start, stop = data.draw(parts(array.nbytes))
    found, expected = np.zeros((2, stop - start), np.uint8)
    core.pack(found, array, start)
    pack(expected, array, start)
    np.testing.assert_array_equal(found, expected)


@given(strided(), st.data())
def test_unpack_writes_the_same_bytes_as_numpy_and_none_between(array, data):
    start, stop = data.draw(parts(array.nbytes))
    packed = np.full(stop - start, 255, np.uint8)
    expected = array.copy()
    unpack(expected, start, packed)
    memory = array if array.base is None else array.base
    n_before = int(np.count_nonzero(np.frombuffer(memory.tobytes(), np.uint8) == 255))
    core.unpack(array, start, packed)
    assert array.tobytes() == expected.tobytes()
    n_after = int(np.count_nonzero(np.frombuffer(memory.tobytes(), np.uint8) == 255))
    assert (n_before, n_after) == (0, packed.size)


@pytest.mark.parametrize("n_bytes", [2**16, 3 * 2**20, 17 * 2**20])
@settings(max_examples=settings().max_examples // 20)
@given(st.integers(900, 70000), st.integers(0, 200), st.data())
def test_long_runs_are_packed_and_unpacked_as_by_numpy(n_bytes, run, gap, data):
    count = n_bytes // run + 2
    whole = (np.arange(count * (run + gap)) % 251).astype(np.uint8).reshape(count, run + gap)
    first = data.draw(st.integers(0, run))
    packed, expected = np.zeros((2, count * run - first), np.uint8)
    core.pack(packed, whole[:, :run], first)
    pack(expected, whole[:, :run], first)
    assert packed.tobytes() == expected.tobytes()
    found, unpacked = np.full((2, *whole.shape), 255, np.uint8)
    core.unpack(found[:, :run], first, packed)
    unpack(unpacked[:, :run], first, packed)
    assert found.tobytes() == unpacked.tobytes()


@given(layouts(max_rank=3, partial=False, strided=True, sub_axes=True, chunking=EVERY_RULE))
def test_places_find_every_box_of_every_shard(layout: Layout):
    whole = np.arange(np.prod(layout.shape, dtype=int)).reshape(layout.shape)
    for device, held in shard(layout, whole).items():
        places = BoxOffsets(layout, device)
        for box, start in shard_boxes(layout, device):
            assert places.start(box) == start
            inside = whole[(*(slice(*interval) for interval in box), ...)]
            np.testing.assert_array_equal(held[(*places.slices(box), ...)], inside)


@given(st.lists(strided(), min_size=1, max_size=4), st.data())
def test_packed_arrays_are_their_bytes_in_a_row(held, data):
    held = [array for array in held if array.size]
    if not held:
        return
    packed, row = Packed(held), b"".join(array.tobytes() for array in held)
    start, stop = data.draw(parts(len(row)).filter(lambda part: part[0] < part[1]))
    found = np.empty(stop - start, np.uint8)
    packed.read(start, found)
    assert found.tobytes() == row[start:stop]
    memory = packed.memory(start, stop)
    if memory is not None:
        assert memory.tobytes() == row[start:stop]
        assert any(np.shares_memory(memory, array) for array in held)
    new = Packed([np.zeros_like(array) for array in held])
    new.write(start, found)
    again = np.empty(len(row), np.uint8)
    new.read(0, again)
    assert again.tobytes() == bytes(start) + row[start:stop] + bytes(len(row) - stop)


def test_what_lies_together_is_not_copied():
    rows = np.arange(24, dtype="f4").reshape(4, 6)
    packed = Packed([rows[1:3], rows[:, 1:]])
    memory = packed.memory(4, 48)
    assert np.shares_memory(memory, rows)
    assert memory.tobytes() == rows[1:3].tobytes()[4:]
    assert packed.memory(4, 49) is None
    assert packed.memory(48, 60) is None


WORDS = np.zeros((2, 3), "f4")


@pytest.mark.parametrize(
    ("dst", "first", "message"),
    [
        (np.empty(5, "u1"), 20, "first=20 and 5 bytes of 24"),
        (np.empty(5, "u1"), -1, "first=-1"),
        (np.empty(5, "u2"), 0, "one dim, contiguous, of itemsize 1"),
        (np.empty((5, 2), "u1"), 0, "one dim"),
        (np.empty(10, "u1")[::2], 0, "contiguous"),
        (WORDS.reshape(-1).view("u1")[4:8], 0, "must not overlap"),
    ],
)
def test_says_what_cannot_be_packed(dst, first, message):
    with pytest.raises(ValueError, match=message):
        core.pack(dst, WORDS, first)
    with pytest.raises(ValueError, match=message):
        core.unpack(WORDS, first, dst)


def test_refuses_references_to_python_objects():
    with pytest.raises(ValueError, match="Python objects"):
        core.pack(np.empty(8, "u1"), np.array([None]), 0)
    with pytest.raises(ValueError, match="Python objects"):
        core.unpack(np.array([None]), 0, np.empty(8, "u1"))


def test_does_not_write_to_a_read_only_array():
    fixed = np.zeros(4, "u1")
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="not writeable"):
        core.unpack(fixed, 0, np.ones(4, "u1"))
    with pytest.raises(ValueError, match="not writeable"):
        core.pack(fixed, np.ones(4, "u1"), 0)
