import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec, reshard, transfers
from shardspec.refine.lower_bound import held_elements, kept_elements
from shardspec.resharding.transfer import common
from shardspec.testing import EVERY_RULE, every_spec, layout_pairs
from shardspec.testing.plans import elements

RUNS = st.lists(st.integers(0, 30), unique=True, max_size=12).map(
    lambda bounds: tuple(zip(*[iter(sorted(bounds))] * 2, strict=False))
)


def whole(pair):
    """The pair without partial results, with all axes of the mesh."""
    src, dst = (
        Layout(layout.shape, layout.mesh, Spec(layout.spec.dims), layout.chunking)
        for layout in pair
    )
    return src, dst, tuple(range(src.mesh.ndim))


def indices(runs):
    return [i for run in runs for i in range(*run)]


@given(RUNS, RUNS)
def test_common_runs_are_the_common_indices(a, b):
    found = common(a, b)
    assert indices(found) == sorted({*indices(a)} & {*indices(b)})
    assert all(start < stop for start, stop in found)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(found))


def check_transfers(pair):
    src, dst, axes = whole(pair)
    number = np.arange(math.prod(src.shape)).reshape(src.shape)
    before, after = elements(src), elements(dst)
    got = {device: [] for device in after}
    sent = 0
    for t in transfers(src, dst, axes):
        flat = number[np.ix_(*map(indices, t.runs))].reshape(-1).tolist()
        assert len(flat) == t.elements
        assert before[t.sender].issuperset(flat)
        got[t.receiver] += flat
        sent += t.elements * (t.sender != t.receiver)
    assert {device: sorted(flat) for device, flat in got.items()} == {
        device: sorted(wanted) for device, wanted in after.items()
    }
    assert sent == held_elements(dst) - kept_elements(src, dst)


@given(layout_pairs(sub_axes=True, strided=True))
def test_every_element_comes_once_from_a_device_that_has_it_and_none_that_is_there(pair):
    check_transfers(pair)


@given(layout_pairs(even=False, chunking=EVERY_RULE))
def test_every_element_of_uneven_shards_comes_once_and_none_that_is_there(pair):
    check_transfers(pair)


@pytest.mark.parametrize(
    ("shape", "rank"), [((2, 2), 2), ((4, 2), 2), ((2, 2, 2), 1)], ids=["2x2", "4x2", "2x2x2"]
)
def test_no_device_sends_more_than_one_receives_where_shards_keep_their_size(shape, rank):
    mesh = Mesh(shape, tuple("xyz"[: len(shape)]))
    layouts = [Layout((8,) * rank, mesh, s) for s in every_spec(mesh, rank, partial=False)]
    for src, dst in itertools.product(layouts, layouts):
        for step in reshard(src, dst).steps:
            if step.kind not in ("exchange", "all_to_all", "collective_permute"):
                continue
            sent = dict.fromkeys(mesh.device_ids, 0)
            for t in transfers(step.src, step.dst, step.axes):
                sent[t.sender] += t.elements * (t.sender != t.receiver)
            assert max(sent.values()) == step.sent_bytes(1) == step.received_bytes(1), str(step)


@given(layout_pairs(sub_axes=True), st.data())
def test_devices_in_another_order_send_the_same_for_each_other(pair, data):
    src, dst, axes = whole(pair)
    ids = tuple(data.draw(st.permutations(src.mesh.device_ids)))
    renamed = dict(zip(src.mesh.device_ids, ids, strict=True))
    mesh = Mesh(src.mesh.shape, src.mesh.axis_names, ids)
    moved = (Layout(layout.shape, mesh, layout.spec) for layout in (src, dst))
    assert {(t.sender, t.receiver, t.runs) for t in transfers(*moved, axes)} == {
        (renamed[t.sender], renamed[t.receiver], t.runs) for t in transfers(src, dst, axes)
    }


def test_replicas_share_the_sending():
    mesh = Mesh((2, 2), ("x", "y"), (7, 5, 3, 1))
    src, dst = (Layout((4,), mesh, Spec.parse(text)) for text in ("S0", "R"))
    pairs = [(t.sender, t.receiver) for t in transfers(src, dst, (0,))]
    assert pairs == [(7, 7), (3, 7), (7, 3), (3, 3), (5, 5), (1, 5), (5, 1), (1, 1)]


def test_an_axis_that_takes_over_for_another_is_a_permutation_of_the_devices():
    mesh = Mesh((2, 2), ("x", "y"))
    src, dst = (Layout((4,), mesh, Spec.parse(text)) for text in ("S0", "S1"))
    found = [(t.sender, t.receiver, *t.runs[0]) for t in transfers(src, dst, (0, 1))]
    assert found == [(0, 0, (0, 2)), (2, 1, (2, 4)), (1, 2, (0, 2)), (3, 3, (2, 4))]
