import math
import re
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec
from shardspec.report.block_owners import Blocks
from shardspec.report.crop import Frame, drawn_pieces
from shardspec.report.phrases import amount_text, block_text, devices_text, holders_text, sizes_text
from shardspec.testing import EVERY_RULE, layouts

any_layouts = layouts(sub_axes=True, strided=True, mixed_kinds=True, chunking=EVERY_RULE)


def test_an_explicit_size_may_be_zero_although_sizes_divide_the_dim():
    layout = Layout((2,), Mesh((2,), ("x",)), Spec.parse("S0"), ((0, 2),))
    assert Blocks(layout).is_empty.tolist() == [True, False]


@given(any_layouts)
def test_a_block_has_the_intervals_of_its_devices(layout):
    blocks = Blocks(layout)
    for device in layout.mesh.device_ids:
        number = blocks.number_of[device]
        parts = blocks.parts(number)
        runs = tuple(tuple(c.runs(part)) for c, part in zip(blocks.cuts, parts, strict=True))
        assert runs == layout.runs(device)
        assert blocks.number(parts) == number
        assert blocks.is_empty[number] == (not all(runs))


@given(any_layouts)
def test_copies_are_replica_groups(layout):
    blocks = Blocks(layout)
    copies = blocks.devices(np.full(len(blocks.positions), True)).reshape(-1, blocks.n_copies)
    assert sorted(map(sorted, copies.tolist())) == sorted(map(sorted, layout.replica_groups()))


@given(any_layouts)
def test_blocks_in_mesh_order_start_with_the_first_devices(layout):
    blocks = Blocks(layout)
    firsts = [blocks.number_of[device] for device in layout.mesh.device_ids]
    assert blocks.in_mesh_order.tolist() == list(dict.fromkeys(firsts))


@given(any_layouts)
def test_room_is_that_of_all_devices(layout):
    blocks = Blocks(layout)
    shapes = [layout.local_shape(device) for device in layout.mesh.device_ids]
    assert blocks.held_elements == sum(map(math.prod, shapes))
    assert blocks.largest_shape == tuple(map(max, zip(*shapes, strict=True)))


@given(any_layouts, st.data())
def test_pieces_tile_the_dim_from_any_element_on(layout, data):
    for cuts in Blocks(layout).cuts:
        start = data.draw(st.integers(0, cuts.n))
        pieces = list(cuts.pieces(start))
        runs = [cuts.piece(i) for i in pieces]
        assert not runs or runs[0][0] <= start
        assert [stop for _, stop in runs[:-1]] == [begin for begin, _ in runs[1:]]
        assert [stop for _, stop in runs[-1:]] == [cuts.n] * (start < cuts.n)


@given(any_layouts)
def test_a_part_has_its_pieces(layout):
    for cuts in Blocks(layout).cuts:
        for part in range(cuts.n_parts):
            pieces = [cuts.piece(i) for i in cuts.pieces() if cuts.part(i) == part]
            held = list(chain.from_iterable(range(*piece) for piece in pieces))
            assert held == list(chain.from_iterable(range(*run) for run in cuts.runs(part)))


@given(any_layouts, st.integers(2, 4))
def test_what_is_drawn_of_many_pieces_starts_and_ends_with_them(layout, limit):
    for cuts in Blocks(layout).cuts:
        pieces, drawn = list(cuts.pieces()), drawn_pieces(cuts, limit)
        if len(pieces) <= limit:
            assert drawn == pieces
        else:
            assert drawn == [*pieces[: limit - 1], None, pieces[-1]]


class Asked:
    """Gives back what a text in Numpy's syntax asks for."""

    def __init__(self, kind):
        self.kind = kind

    def __getitem__(self, key):
        return self.kind(key if isinstance(key, tuple) else (key,))


@given(any_layouts)
def test_block_text_is_what_numpy_would_index(layout):
    for device in layout.mesh.device_ids:
        text, held = block_text(layout, device), layout.runs(device)
        if text == "nothing":
            assert not all(held)
            continue
        dims = () if text == "A" else eval(text, {"A": Asked(tuple), "r_": Asked(list)})
        for dim, runs in zip(dims, held, strict=True):
            slices = dim if isinstance(dim, list) else [dim]
            shown = [(s.start, s.stop) for s in slices if s is not Ellipsis]
            assert shown == list(runs[: len(shown)])
            assert len(shown) == len(runs) or slices[-1] is Ellipsis


def expanded(text):
    """The device ids that a text without `more` names."""
    found = []
    for part in re.findall(r"\d+,\d+,\.\.\.,\d+|\d+-\d+|\d+", text):
        numbers = list(map(int, re.findall(r"\d+", part)))
        if "..." in part:
            found += range(numbers[0], numbers[2] + 1, numbers[1] - numbers[0])
        else:
            found += range(numbers[0], numbers[-1] + 1)
    return found


@given(st.sets(st.integers(0, 60), min_size=1))
def test_devices_text_names_every_device(ids):
    assert expanded(devices_text(sorted(ids), width=1_000)) == sorted(ids)


@given(st.sets(st.integers(0, 10_000), min_size=1), st.integers(5, 40))
def test_devices_text_says_how_many_it_leaves_out(ids, width):
    text = devices_text(sorted(ids), width)
    shown, _, more = text.partition(" and ")
    left_out = int(more.split()[0].replace(",", "")) if more else 0
    assert expanded(shown) == sorted(ids)[: len(ids) - left_out]
    assert len(shown) <= max(width, len("10000,10000,...,10000"))


@pytest.mark.parametrize(
    ("shape", "kinds", "text"),
    [
        ((4,), [], "0-3"),
        ((2, 1), ["sum"], "0+1"),
        ((2, 2), ["sum"], "{0,1}+{2,3}"),
        ((2, 2, 1), ["sum", "sum"], "0+1+2+3"),
        ((2, 2, 1), ["sum", "max"], "max(0,1)+max(2,3)"),
        ((2, 2, 1), ["min", "avg"], "min(avg(0,1),avg(2,3))"),
        ((8, 1), ["product"], "product(0,1,...,7)"),
        ((64, 64), ["sum"], "{0-63}+{64-127}+...+{4032-4095}"),
        ((1, 2), ["avg"], "0,1"),
    ],
)
def test_holders_text_says_how_results_combine(shape, kinds, text):
    assert holders_text(np.arange(math.prod(shape)).reshape(shape), kinds) == text


@pytest.mark.parametrize(
    ("elements", "itemsize", "text"),
    [
        (0, None, "0 elements"),
        (1, None, "1 element"),
        (4096, 2, "8 KiB"),
        (1 << 20, 4, "4 MiB"),
        (10_000, 1, "9.77 KiB"),
        (1 << 80, 4, "4 YiB"),
        (1 << 90, 4, "4 RiB"),
    ],
)
def test_amounts_have_the_unit_that_fits(elements, itemsize, text):
    assert amount_text(elements, itemsize) == text


def test_sizes_are_counted_if_they_are_many():
    assert sizes_text([3, 2, 2]) == "3, 2, 2"
    assert sizes_text([3] * 5 + [2] * 4) == "5 of 3, 4 of 2"
    assert sizes_text(range(9)) == "1 of 0, 1 of 1, 1 of 2, 1 of 3, 1 of 4, 1 of 5, ..."


@given(layouts(max_rank=2, strided=True, chunking=EVERY_RULE).filter(lambda x: 0 not in x.shape))
def test_a_part_of_a_picture_is_as_large_as_of_the_tensor(layout):
    frame = Frame.of([Blocks(layout)] * 2)
    for device in layout.mesh.device_ids:
        runs = layout.runs(device)
        share = math.prod(sum(stop - start for start, stop in of_dim) for of_dim in runs)
        area = sum(width * height for _, _, width, height in frame.boxes(runs))
        assert area == pytest.approx(share / math.prod(layout.shape))


def test_panels_show_all_of_a_tensor_with_three_cut_dims_once():
    layout = Layout((4, 6, 2, 4), Mesh((2, 3, 2), ("x", "y", "z")), Spec.parse("S0S1RS2"))
    frame = Frame.of([Blocks(layout)])
    boxes = [box for device in range(12) for box in frame.boxes(layout.runs(device))]
    assert len(boxes) == len(set(boxes)) == 12
    tiles = {tuple(round(number, 3) for number in box) for box in boxes}
    edges = [round(box[0], 3) for box in frame.panel_boxes]
    assert {left for left, *_ in tiles if left in edges} == set(edges)


def test_a_picture_of_many_blocks_leaves_out_those_between():
    layout = Layout((64,), Mesh((64,), ("x",)), Spec.parse("S0"))
    (scale,) = Frame.of([Blocks(layout)]).scales
    assert scale.pieces == (*((i, i + 1) for i in range(7)), (63, 64))
    assert scale.left_out == (7, 63)
    assert [scale.at(i) for i in (0, 64)] == [0.0, 1.0]
    assert all(scale.at(i) < scale.at(i + 1) for i in range(64))
