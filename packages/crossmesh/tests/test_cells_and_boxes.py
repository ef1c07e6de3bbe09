import numpy as np
from crossmesh import _core
from crossmesh.base.geometry import tiles
from crossmesh.testing import transfers
from crossmesh.testing_geometry import cells, copy_box
from hypothesis import given
from hypothesis import strategies as st


@given(transfers())
def test_cells_are_what_intervals_have_in_common(transfer):
    src, dst = ([tile.runs for tile in tiles(side)] for side in (transfer.src, transfer.dst))
    assert _core.cells(src, dst, 10_000) == cells(src, dst, 10_000)


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
def test_a_box_is_copied_as_numpy_copies_it(copy, random):
    (dst, dst_start), (src, src_start), extent = copy
    raw = np.frombuffer(random.randbytes(src.size * src.itemsize), src.dtype)
    src[...] = raw.reshape(src.shape)
    expected = dst.copy()
    copy_box(expected, dst_start, src, src_start, extent)
    _core.copy_box(dst, dst_start, src, src_start, extent)
    assert dst.tobytes() == expected.tobytes()
