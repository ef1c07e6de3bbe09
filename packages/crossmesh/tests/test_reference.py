import numpy as np
from crossmesh import _core
from crossmesh.base.geometry import tiles
from crossmesh.reference import core
from crossmesh.testing import transfers
from hypothesis import given
from hypothesis import strategies as st


@given(transfers())
def test_core_and_reference_find_the_same_cells(transfer):
    src, dst = ([tile.runs for tile in tiles(side)] for side in (transfer.src, transfer.dst))
    assert _core.cells(src, dst, 10_000) == core.cells(src, dst, 10_000)


@st.composite
def copies(draw):
    """Two arrays with random strides, and a box that fits in both."""
    extent = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(["u1", ">i4", "f8", "c16", "S3", "M8[s]"]))
    sides = []
    for _ in range(2):
        start = [draw(st.integers(0, 2)) for _ in extent]
        shape = [
            at + size + draw(st.integers(0, 2)) for at, size in zip(start, extent, strict=True)
        ]
        steps = [draw(st.sampled_from([1, 1, 2, -1, -3])) for _ in extent]
        axes = draw(st.permutations(range(len(extent))))
        base = np.zeros([shape[axis] * abs(steps[axis]) for axis in axes], dtype)
        array = base.transpose(np.argsort(axes).astype(int))[
            (*(slice(None, None, step) for step in steps), ...)
        ]
        assert list(array.shape) == shape
        sides.append((array, start))
    return *sides, extent


@given(copies(), st.randoms(use_true_random=False))
def test_core_and_reference_copy_the_same_box(copy, random):
    (dst, dst_start), (src, src_start), extent = copy
    raw = np.frombuffer(random.randbytes(src.size * src.itemsize), src.dtype)
    src[...] = raw.reshape(src.shape)
    expected = dst.copy()
    core.copy_box(expected, dst_start, src, src_start, extent)
    _core.copy_box(dst, dst_start, src, src_start, extent)
    assert dst.tobytes() == expected.tobytes()
