import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardspec import Layout, Mesh, ShardsError, Spec, assemble, reshard, shard, simulate
from shardspec.testing import layouts

LINE = Mesh((2,), ("x",))
DTYPES = st.sampled_from(["int8", "uint8", "int32", "float32", "float64"])


@given(layouts(), DTYPES, st.integers(0, 9))
def test_assemble_inverts_shard(layout, dtype, seed):
    whole = np.random.default_rng(seed).integers(0, 99, layout.shape).astype(dtype)
    shards = shard(layout, whole, seed=seed)
    assert {device: part.dtype for device, part in shards.items()} == dict.fromkeys(
        layout.mesh.device_ids, whole.dtype
    )
    np.testing.assert_array_equal(assemble(layout, shards), whole)


@given(layouts(partial=False))
def test_shards_are_the_slices_of_the_tensor(layout):
    whole = np.arange(np.prod(layout.shape, dtype=int)).reshape(layout.shape)
    for device, part in shard(layout, whole).items():
        np.testing.assert_array_equal(part, whole[layout.slices(device)])


@pytest.mark.parametrize("spec", ["R+P0", "R+Pmax0", "R+Pmin0"])
def test_partial_results_depend_on_the_seed_and_differ_from_the_whole(spec):
    whole = np.arange(20)
    layout = Layout((20,), LINE, Spec.parse(spec))
    first, again, other = (shard(layout, whole, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first[0], again[0])
    assert (first[0] != other[0]).any()
    assert (first[0] != whole).any()
    assert (first[1] != whole).any()


def test_shards_are_copies():
    whole = np.zeros(4)
    shard(Layout((4,), LINE, Spec.parse("S0")), whole)[0][:] = 1
    assert not whole.any()


def test_booleans_have_maxima_but_no_partial_sums():
    whole = np.array([True, False])
    layout = Layout((2,), LINE, Spec.parse("R+Pmax0"))
    np.testing.assert_array_equal(assemble(layout, shard(layout, whole)), whole)
    with pytest.raises(ShardsError, match="booleans have no partial sums; convert the array"):
        shard(Layout((2,), LINE, Spec.parse("R+P0")), whole)


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


@pytest.mark.parametrize("devices", [(0,), (0, 1, 2)])
def test_rejects_missing_and_foreign_devices(devices):
    layout = Layout((2,), LINE, Spec.parse("R"))
    shards = dict.fromkeys(devices, np.zeros(2))
    with pytest.raises(
        ShardsError, match=r"one shard; got shards of .* for the mesh's range\(0, 2\)"
    ):
        assemble(layout, shards)
    with pytest.raises(ShardsError, match="one shard"):
        simulate(reshard(layout, layout), shards)


def test_rejects_a_shard_of_another_shape():
    layout = Layout((2,), LINE, Spec.parse("S0"))
    with pytest.raises(ShardsError, match=r"device 1 has \(2,\) instead of \(1,\) in \(2,\) as S0"):
        simulate(reshard(layout, layout), {0: np.zeros(1), 1: np.zeros(2)})
