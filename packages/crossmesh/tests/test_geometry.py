import functools
import math

import numpy as np
import pytest
from crossmesh import shard_boxes
from crossmesh.base.geometry import holders, n_elements, reduction, tiles
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Spec, UnknownDeviceError, shard
from shardspec.testing import EVERY_RULE, layouts


def any_layouts(partial: bool = True) -> st.SearchStrategy[Layout]:
    return layouts(
        partial=partial, sub_axes=True, strided=True, mixed_kinds=True, chunking=EVERY_RULE
    )


@given(any_layouts(partial=False))
def test_boxes_say_where_elements_are_in_the_array_of_a_shard(layout):
    whole = 1 + np.arange(math.prod(layout.shape)).reshape(layout.shape)
    for device, expected in shard(layout, whole).items():
        local = np.zeros_like(expected)
        for box, offset in shard_boxes(layout, device):
            inside = zip(offset, box, strict=True)
            at = tuple(slice(to, to + stop - start) for to, (start, stop) in inside)
            assert (local[at] == 0).all(), "boxes overlap"
            local[at] = whole[tuple(slice(*interval) for interval in box)]
        np.testing.assert_array_equal(local, expected)


@given(any_layouts())
def test_tiles_have_each_element_once_and_each_device_with_elements_once(layout):
    count = np.zeros(layout.shape, int)
    devices = []
    for tile in tiles(layout):
        indices = [np.concatenate([np.arange(*run) for run in runs]) for runs in tile.runs]
        count[np.ix_(*indices)] += 1
        devices += [device for term in tile.terms for device in term]
        assert all(layout.runs(device) == tile.runs for term in tile.terms for device in term)
    assert (count == 1).all()
    with_elements = [device for device in layout.mesh.device_ids if all(layout.runs(device))]
    assert sorted(devices) == sorted(with_elements)


@given(any_layouts())
def test_terms_are_as_many_as_the_reduction_combines(layout):
    n_terms = math.prod(count for _, count in reduction(layout))
    assert all(len(tile.terms) == n_terms for tile in tiles(layout))


FOLD = {"sum": np.add, "avg": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply}


def combined(levels, parts):
    if not levels:
        return parts[0]
    (kind, count), *minor = levels
    size = len(parts) // count
    groups = [combined(minor, parts[i * size : (i + 1) * size]) for i in range(count)]
    return functools.reduce(FOLD[kind], groups) / (count if kind == "avg" else 1)


@given(any_layouts())
def test_terms_combine_to_the_tensor_as_the_reduction_says(layout):
    whole = np.arange(math.prod(layout.shape), dtype=float).reshape(layout.shape) % 7
    shards = shard(layout, whole)
    for tile in tiles(layout):
        terms = [np.array(shards[devices[0]]) for devices in tile.terms]
        result = combined(reduction(layout), terms)
        for box, offset in shard_boxes(layout, tile.terms[0][0]):
            inside = zip(offset, box, strict=True)
            at = tuple(slice(to, to + stop - start) for to, (start, stop) in inside)
            np.testing.assert_array_equal(result[at], whole[tuple(slice(*i) for i in box)])


@given(any_layouts(), st.integers(0, 3))
def test_holders_are_those_of_every_layout_with_the_mesh_and_spec(layout, factor):
    longer = Layout(tuple(n * factor for n in layout.shape), layout.mesh, layout.spec)
    assert tiles(longer, holders(layout)) == tiles(longer)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("R", ()),
        ("R+P0+P1", (("sum", 6),)),
        ("R+Pavg0+Pavg1", (("avg", 6),)),
        ("R+P0+Pmax1", (("sum", 2), ("max", 3))),
        ("R+P0+P2", (("sum", 2),)),
        ("R+P0+Pmax2+P1", (("sum", 6),)),
        ("S0+Pmin1", (("min", 3),)),
    ],
)
def test_reduction_joins_neighbours_of_one_kind(spec, expected):
    layout = Layout((4,), Mesh((2, 3, 1), ("x", "y", "z")), Spec.parse(spec))
    assert reduction(layout) == expected


def test_scalar_has_one_box():
    layout = Layout((), Mesh((2,), ("x",)), Spec.parse("()"))
    assert shard_boxes(layout, 1) == (((), ()),)
    assert n_elements(()) == 1


def test_foreign_device_has_no_boxes():
    with pytest.raises(UnknownDeviceError):
        shard_boxes(Layout((4,), Mesh((2,), ("x",)), Spec.parse("S0")), 2)
