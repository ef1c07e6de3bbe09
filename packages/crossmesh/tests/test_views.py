import numpy as np
import pytest
import torch
from crossmesh import PlanError
from crossmesh.sync.buffers import common, copied_to
from crossmesh.sync.views import Published, View, cat, stack
from crossmesh.testing_sync import views
from hypothesis import given


@given(views())
def test_a_view_is_what_numpy_makes_by_the_same_calls(made):
    arrays, view, expected = made
    assert view.shape == expected.shape
    target = torch.zeros(view.shape, dtype=torch.int64)
    for read in view.reads:
        content = torch.from_numpy(arrays[read.source])[
            tuple(slice(start, stop) for start, stop in read.at)
        ]
        copied_to(target, read, content, read.at)
    np.testing.assert_array_equal(target.numpy(), expected)


@given(views())
def test_a_view_is_the_same_whatever_pieces_its_boxes_arrive_in(made):
    arrays, view, expected = made
    target = torch.zeros(view.shape, dtype=torch.int64)
    for read in view.reads:
        whole = torch.from_numpy(arrays[read.source])
        halves = [
            tuple((0, -(-n // 2)) for n in whole.shape),
            *(
                tuple(
                    (-(-n // 2), n) if d == dim else (0, n if d > dim else -(-n // 2))
                    for d, n in enumerate(whole.shape)
                )
                for dim in range(whole.ndim)
            ),
        ]
        for half in halves:
            if (box := common(half, read.at)) is not None:
                content = whole[tuple(slice(start, stop) for start, stop in box)]
                copied_to(target, read, content, box)
    np.testing.assert_array_equal(target.numpy(), expected)


@given(views())
def test_no_element_of_a_view_is_read_twice(made):
    _, view, expected = made
    counts = np.zeros(expected.shape, int)
    for read in view.reads:
        counts[tuple(slice(start, stop) for start, stop in read.to)] += 1
    assert (counts <= 1).all()
    np.testing.assert_array_equal(counts > 0, expected > 0)


W = View.whole("w", (4, 6))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: W.narrow(0, 3, 2), r"a range lies within its dim; got 3:5 of dim 0 of 4x6"),
        (lambda: W.narrow(2, 0, 1), r"a view of the shape 4x6 has 2 dims; got dim 2"),
        (lambda: W.narrow(0, 0.5, 1), r"a start is a whole number; got 0.5"),
        (lambda: W.part(0, 0, 3), r"parts are equal; got dim 0 of 4x6 for 3 parts; pad it first"),
        (lambda: W.part(0, 2, 2), r"2 parts have the numbers from 0 to 1; got 2"),
        (lambda: W.pad(0, 3), r"padding makes a dim longer; got 3 for dim 0 of 4x6"),
        (lambda: W.permute(0, 0), r"an order has every dim once; got \(0, 0\)"),
        (lambda: W[::2], r"a range of a view has the step 1; got the step 2"),
        (lambda: W[0].T, r"two dims or more is transposed; got 6"),
        (lambda: cat([]), r"one view or more is put together; got none"),
        (lambda: cat([W, W.T]), r"the same other dims; got 4x6, 6x4"),
        (lambda: stack([W, W.T]), r"the same other dims"),
        (lambda: W.T.quantize("int8"), r"quantized as a whole.*before anything else"),
        (lambda: W.quantize("int4"), r"quantized to one of \['int8', .*; got 'int4'"),
        (lambda: W.quantize("int8", (5, 6)), r"at most its lengths; got \(5, 6\) for 4x6"),
        (lambda: Published({"a.w": (2,)}, {"a.w": "int8"})["b.w"], r"got 'b.w'; published are a.w"),
    ],
)
def test_says_what_cannot_be_viewed(call, message):
    with pytest.raises(PlanError, match=message):
        call()


def test_prints_where_everything_comes_from():
    assert str(W[1]) == "6: w[1:2, 0:6] at [0:6]"
    assert str(W.narrow(0, 0, 0)) == "0x6: zeros"
    assert repr(Published({"w": (2, 3)}, {"w": "int8"})) == "<1 published tensors of 6 elements>"
