import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, Partial, ShardsError, Spec, assemble, shard
from shardspec.refine.shards import combine
from shardspec.testing import EVERY_RULE, layouts

LINE = Mesh((2,), ("x",))
KINDS = ("sum", "max", "min", "product", "avg")
INTEGERS = ("int8", "uint8", "int32", "int64", "uint64")
DTYPES = st.sampled_from([*INTEGERS, "float16", "float32", "float64"])
ANY = {"sub_axes": True, "strided": True, "mixed_kinds": True, "chunking": EVERY_RULE}


def kinds(layout):
    return {p.kind for p in layout.spec.partial}


@given(layouts(**ANY), DTYPES, st.integers(0, 9))
def test_assemble_inverts_shard(layout, dtype, seed):
    whole = np.random.default_rng(seed).integers(0, 9, layout.shape).astype(dtype)
    shards = shard(layout, whole, seed=seed)
    assert {(part.dtype, part.shape) for part in shards.values()} == {
        (whole.dtype, layout.local_shape(device)) for device in layout.mesh.device_ids
    }
    found = assemble(layout, shards)
    assert found.dtype == whole.dtype
    np.testing.assert_array_equal(found, whole)


@given(layouts(**ANY), st.sampled_from(INTEGERS), st.integers(0, 9))
def test_assemble_inverts_shard_up_to_the_limits_of_integers(layout, dtype, seed):
    info = np.iinfo(dtype)
    whole = np.random.default_rng(seed).integers(
        info.min, info.max, layout.shape, dtype, endpoint=True
    )
    np.testing.assert_array_equal(assemble(layout, shard(layout, whole, seed=seed)), whole)


@given(layouts(**ANY).filter(lambda layout: not kinds(layout) & {"sum", "avg"}), st.integers(0, 9))
def test_booleans_are_sharded_and_combined_by_maxima_minima_and_products(layout, seed):
    whole = np.random.default_rng(seed).random(layout.shape) < 0.5
    found = assemble(layout, shard(layout, whole, seed=seed))
    assert found.dtype == bool
    np.testing.assert_array_equal(found, whole)


@given(layouts(partial=False, sub_axes=True, strided=True, chunking=EVERY_RULE))
def test_shards_are_the_parts_of_the_tensor_and_padding_is_zero(layout):
    whole = np.arange(1, 1 + math.prod(layout.shape)).reshape(layout.shape)
    for device, part in shard(layout, whole).items():
        indices = layout.indices(device)
        own = tuple(slice(len(of_dim)) for of_dim in indices)
        np.testing.assert_array_equal(part[own], whole[np.ix_(*indices)])
        assert np.count_nonzero(part) == math.prod(map(len, indices))


@given(layouts(sub_axes=True, strided=True, chunking=EVERY_RULE), st.integers(0, 9))
def test_what_lies_in_the_padding_does_not_matter(layout, seed):
    whole = np.random.default_rng(seed).integers(0, 9, layout.shape)
    shards = shard(layout, whole, seed=seed)
    for device, part in shards.items():
        padding = np.ones(part.shape, bool)
        padding[tuple(slice(len(of_dim)) for of_dim in layout.indices(device))] = False
        part[padding] = seed
    np.testing.assert_array_equal(assemble(layout, shards), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_partial_results_depend_on_the_seed_and_differ_from_the_whole(kind):
    whole = np.arange(20) + 2
    layout = Layout((20,), LINE, Spec(((),), (Partial(0, kind),)))
    first, again, other = (shard(layout, whole, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first[0], again[0])
    assert (first[0] != other[0]).any()
    assert (first[0] != whole).any()
    assert (first[1] != whole).any()


@pytest.mark.parametrize("first", ["sum", "avg"])
@pytest.mark.parametrize("second", ["sum", "avg"])
def test_sums_and_averages_of_shards_are_whole_in_any_order(first, second):
    mesh = Mesh((3, 2), ("x", "y"))
    layout = Layout((8,), mesh, Spec(((),), (Partial(0, first), Partial(1, second))))
    whole = np.arange(8)
    shards = shard(layout, whole, seed=4)
    columns = [combine(first, [shards[d] for d in group]) for group in mesh.groups((0,))]
    np.testing.assert_array_equal(combine(second, columns), whole)


def test_partial_results_of_two_kinds_combine_from_the_last_axis_to_the_first():
    mesh = Mesh((2, 2), ("x", "y"))
    layout = Layout((1,), mesh, Spec.parse("R+P0+Pmax1"))
    held = {device: np.array([value]) for device, value in enumerate([1, 5, 2, 3])}
    assert assemble(layout, held) == 5 + 3


def test_shards_are_copies():
    whole = np.zeros(4)
    shard(Layout((4,), LINE, Spec.parse("S0")), whole)[0][:] = 1
    assert not whole.any()


@pytest.mark.parametrize("kind", ["sum", "avg"])
def test_booleans_have_no_partial_sums(kind):
    layout = Layout((2,), LINE, Spec(((),), (Partial(0, kind),)))
    with pytest.raises(ShardsError, match="booleans have no partial sums; convert the array"):
        shard(layout, np.array([True, False]))


def test_replicas_with_nan_agree():
    layout = Layout((1,), LINE, Spec.parse("R"))
    assert np.isnan(assemble(layout, shard(layout, [np.nan]))).all()


def test_names_replicas_that_differ():
    layout = Layout((2,), LINE, Spec.parse("R"))
    with pytest.raises(ShardsError, match=r"agree; devices 0 and 1 differ in .* \(2,\) as R on"):
        assemble(layout, {0: np.array([1, 2]), 1: np.array([1, 3])})


def test_rejects_an_array_of_another_shape():
    with pytest.raises(ShardsError, match=r"its layout; got \(3,\) for a layout of \(2,\)"):
        shard(Layout((2,), LINE, Spec.parse("R")), [1, 2, 3])


@pytest.mark.parametrize("devices", [(), (0,), (0, 1, 2), (0, 2), ("0", "1")])
def test_rejects_missing_and_foreign_devices(devices):
    layout = Layout((2,), LINE, Spec.parse("R"))
    rule = r"one shard; got shards of .* for the mesh's range\(0, 2\)"
    with pytest.raises(ShardsError, match=rule):
        assemble(layout, dict.fromkeys(devices, np.zeros(2)))


def test_rejects_a_shard_of_another_shape():
    layout = Layout((2,), LINE, Spec.parse("S0"))
    with pytest.raises(ShardsError, match=r"device 1 has \(2,\) instead of \(1,\) in \(2,\) as S0"):
        assemble(layout, {0: np.zeros(1), 1: np.zeros(2)})


def test_rejects_shards_of_several_dtypes():
    layout = Layout((2,), LINE, Spec.parse("S0"))
    with pytest.raises(ShardsError, match="all shards have one dtype; got float64, int64"):
        assemble(layout, {0: np.zeros(1, "int64"), 1: np.zeros(1)})


@pytest.mark.parametrize("part", [[0, 0], 0, None, "00"])
def test_rejects_shards_that_are_no_arrays(part):
    layout = Layout((2,), LINE, Spec.parse("R"))
    with pytest.raises(ShardsError, match="shards are numpy arrays; device 1 has "):
        assemble(layout, {0: np.zeros(2), 1: part})


def test_numpy_scalars_are_shards_of_scalars():
    layout = Layout((), Mesh((2,), ("x",)), Spec.parse("()"))
    assert assemble(layout, {0: np.float32(1.5), 1: np.float32(1.5)}) == np.float32(1.5)
