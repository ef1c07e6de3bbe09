"""Streams carry exactly what is needed, once; quantizing parts is quantizing the whole."""

import itertools

import numpy as np
import pytest
import torch
from crossmesh import ChecksumError, PlanError
from crossmesh.sync.buffers import cell_of, check, pack
from crossmesh.sync.cells import Sent, plan_of, streams_of
from crossmesh.sync.convert import Scales, quantized, scales_of, sent_as
from crossmesh.sync.views import LARGEST, PLAIN, Encoding, View
from hypothesis import given
from hypothesis import strategies as st

SHAPE = (5, 4)


@st.composite
def tilings(draw):
    """Boxes that cover SHAPE without overlap."""
    rows = draw(st.lists(st.integers(1, 4), max_size=2, unique=True).map(sorted))
    columns = draw(st.lists(st.integers(1, 3), max_size=2, unique=True).map(sorted))
    starts = [[0, *rows, SHAPE[0]], [0, *columns, SHAPE[1]]]
    spans = [list(itertools.pairwise(of_dim)) for of_dim in starts]
    return [(row, column) for row in spans[0] for column in spans[1]]


@st.composite
def boxes(draw):
    sides = []
    for n in SHAPE:
        start = draw(st.integers(0, n))
        sides.append((start, draw(st.integers(start, n))))
    return tuple(sides)


@st.composite
def holdings(draw):
    """The boxes of each of some publishers; together they have everything."""
    tiles = draw(tilings())
    n = draw(st.integers(1, 4))
    held = {rank: [] for rank in range(n)}
    for tile in tiles:
        for rank in draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True)):
            held[rank].append(tile)
    return held


@given(
    holdings(),
    st.dictionaries(st.integers(10, 13), st.lists(boxes(), max_size=3), max_size=4),
    st.sampled_from(["int8", "float32", "complex128"]),
)
def test_streams_bring_every_rank_what_it_needs_and_nothing_else(held, needed, dtype):
    sent = Sent("w", PLAIN, dtype)
    streams = streams_of({sent: held}, {sent: needed})
    assert len({(s.holders, s.receivers) for s in streams}) == len(streams)
    got = {rank: np.zeros(SHAPE, int) for rank in needed}
    whole = torch.arange(20).reshape(SHAPE).to(getattr(torch, dtype))
    parts = {"w": [(((0, 5), (0, 4)), whole)]}
    for stream in streams:
        content = pack(stream, parts, {}, 3)
        check(stream, content, 3)
        assert content.size <= stream.n_bytes
        for cell in stream.cells:
            place = tuple(slice(start, stop) for start, stop in cell.box)
            values = cell_of(torch.from_numpy(content), cell)
            assert torch.equal(values, whole[place])
            for rank in stream.holders:
                assert any(
                    all(a <= c and d <= b for (a, b), (c, d) in zip(box, cell.box, strict=True))
                    for box in held[rank]
                )
            for rank in stream.receivers:
                got[rank][place] += 1
    for rank, of_rank in needed.items():
        wanted = np.zeros(SHAPE, int)
        for box in of_rank:
            wanted[tuple(slice(start, stop) for start, stop in box)] = 1
        np.testing.assert_array_equal(got[rank], wanted)


def test_replicas_of_an_engine_share_one_stream_whatever_their_parts():
    sent = Sent("w", PLAIN, "int8")
    whole, top, low = ((0, 4), (0, 4)), ((0, 2), (0, 4)), ((2, 4), (0, 4))
    held = {0: [whole]}
    streams = streams_of({sent: held}, {sent: {1: [whole], 2: [top], 3: [low], 4: [whole]}})
    assert [s.receivers for s in streams] == [(1, 2, 4), (1, 3, 4)]
    plan = plan_of(streams, [0, 1, 2, 3, 1])
    assert dict(plan.sent_bytes)[0] == sum(s.n_bytes for s in streams)


def test_needs_that_nobody_holds_are_refused():
    sent = Sent("w", PLAIN, "int8")
    with pytest.raises(PlanError, match=r"got nobody for w\[2:4, 0:4\]; publish all of it"):
        streams_of({sent: {0: [((0, 2), (0, 4))]}}, {sent: {1: [((0, 4), (0, 4))]}})


@pytest.mark.parametrize("place", [0, -1, -5, -12])
def test_a_changed_byte_is_noticed(place):
    sent = Sent("w", PLAIN, "float32")
    (stream,) = streams_of({sent: {0: [((0, 5),)]}}, {sent: {1: [((0, 5),)]}})
    content = pack(stream, {"w": [(((0, 5),), torch.ones(5))]}, {}, 7)
    with pytest.raises(ChecksumError, match=r"got other bytes of version 8 from .*\[0\]"):
        check(stream, content, 8)
    content[place] ^= 1
    with pytest.raises(ChecksumError, match="version 7"):
        check(stream, content, 7)


@given(
    tilings(),
    st.tuples(st.integers(1, 5), st.integers(1, 4)),
    st.sampled_from([*LARGEST]),
    st.integers(0, 2**32),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_parts_are_quantized_as_the_whole_is(tiles, block, dtype, seed, held_as):
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(SHAPE, generator=generator).mul(100).to(held_as)
    whole[0, 0] = 0
    values, scales = View.whole("w", SHAPE).quantize(dtype, block)
    encoding = values.reads[0].encoding
    all_scales = Scales([("w", encoding)], {"w": SHAPE})
    parts = [(box, whole[tuple(slice(*side) for side in box)]) for box in tiles]
    known = torch.stack([all_scales.magnitudes({"w": [part]}) for part in parts]).amax(0)
    (found,) = all_scales.split(known).values()
    assert tuple(found.shape) == scales.shape
    assembled = torch.zeros(SHAPE, dtype=getattr(torch, dtype))
    for box, part in parts:
        assembled[tuple(slice(*side) for side in box)] = quantized(part, box, found, encoding)
    expected, expected_scales = reference(whole, dtype, block)
    assert torch.equal(found, expected_scales)
    assert torch.equal(assembled.view(torch.uint8), expected.view(torch.uint8))
    spread = expected_scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    back = assembled.float() * spread[:5, :4]
    step = 0.5 if dtype == "int8" else LARGEST[dtype] / (16 if "e4m3" in dtype else 8)
    assert (back - whole.float()).abs().max() <= (expected_scales.max() * step * 1.01)


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_model_that_has_diverged_is_seen_after_quantizing(dtype, bad):
    whole = torch.tensor([[1.0, bad], [3.0, 2.0]])
    (found,) = (
        scales
        for all_scales in [Scales([("w", Encoding(dtype, (1, 2)))], {"w": (2, 2)})]
        for scales in all_scales.split(
            all_scales.magnitudes({"w": [(((0, 2), (0, 2)), whole)]})
        ).values()
    )
    elements = quantized(whole, ((0, 2), (0, 2)), found, Encoding(dtype, (1, 2)))
    back = elements.float() * found
    assert back[0].isnan().all()
    assert torch.allclose(back[1], whole[1], rtol=0.1)


def test_numbers_below_the_smallest_scale_are_zeros():
    scales = scales_of(torch.tensor([1e-44, 0.0]), "int8")
    assert (scales > 0).all()
    tiny = quantized(torch.full((2,), 1e-44), ((0, 2),), scales, Encoding("int8", (1,)))
    assert tiny.tolist() == [0, 0]


def reference(whole, dtype, block):
    """Quantize block by block, as the definition says."""
    out = torch.zeros(whole.shape, dtype=getattr(torch, dtype))
    scales = torch.ones(-(-whole.shape[0] // block[0]), -(-whole.shape[1] // block[1]))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            place = (
                slice(i * block[0], (i + 1) * block[0]),
                slice(j * block[1], (j + 1) * block[1]),
            )
            of_block = whole[place].float()
            if of_block.abs().max() > 0:
                scales[i, j] = of_block.abs().max() / LARGEST[dtype]
            ratio = (of_block / scales[i, j]).clamp(-LARGEST[dtype], LARGEST[dtype])
            out[place] = (ratio.round() if dtype == "int8" else ratio).to(out.dtype)
    return out, scales


@pytest.mark.parametrize(
    ("published", "wanted", "sent"),
    [
        ("float32", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "bfloat16"),
        ("float32", "float32", "float32"),
        ("float16", "bfloat16", "float16"),
        ("int64", "int64", "int64"),
        ("float8_e4m3fn", "float32", "float8_e4m3fn"),
    ],
)
def test_a_tensor_is_sent_in_the_smaller_of_two_types(published, wanted, sent):
    (read,) = View.whole("w", (2,)).reads
    assert sent_as(read, published, wanted) == Sent("w", PLAIN, sent)


@pytest.mark.parametrize(
    ("encoding", "published", "wanted", "message"),
    [
        (PLAIN, "float32", "int8", "float8 and int8 by View.quantize, which has scales"),
        (PLAIN, "float32", "float8_e4m3fn", "got float32 as published and float8_e4m3fn"),
        (PLAIN, "int64", "int32", "got int64 as published and int32"),
        (Encoding("int8", (2,)), "float32", "float8_e4m3fn", "elements are int8"),
        (Encoding("int8", (2,), True), "float32", "bfloat16", "scales are float32"),
        (Encoding("int8", (2,)), "int8", "int8", "floating-point tensors are quantized; got int8"),
    ],
)
def test_types_that_would_change_what_a_number_means_are_refused(
    encoding, published, wanted, message
):
    (read,) = View.whole("w", (2,), encoding).reads
    with pytest.raises(PlanError, match=message):
        sent_as(read, published, wanted)
