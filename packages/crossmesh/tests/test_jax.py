import jax
import jax.numpy as jnp
import numpy as np
import pytest
from crossmesh import PartialLayoutError, PlanError, ShardError
from crossmesh.jax import transfer
from crossmesh.testing import SAME_SIZE
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jax.sharding import Mesh as JaxMesh
from shardspec import Layout, Mesh, NotationError, Spec, shard
from shardspec.notation.jax import to_sharding
from shardspec.testing import layouts, meshes, specs

jax.config.update("jax_num_cpu_devices", 8)

DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "int8", "bool", "complex64", "int4")


@st.composite
def jax_transfers(draw, *, partial=False):
    """Two layouts of one shape that arrays of JAX can have; the first one may hold partial sums."""
    src = draw(layouts(mesh=draw(jax_meshes()), even=True, partial=partial))
    sums = tuple(type(partial)(partial.axis) for partial in src.spec.partial)
    src = Layout(src.shape, src.mesh, Spec(src.spec.dims, sums))
    mesh = draw(jax_meshes())
    dst = Layout(src.shape, mesh, draw(specs(mesh, len(src.shape), partial=False)))
    # Multiply the sizes, so that both layouts divide the shape evenly.
    shape = tuple(a * b for a, b in zip(src.shape, dst.shards, strict=True))
    return tuple(Layout(shape, end.mesh, end.spec) for end in (src, dst))


@st.composite
def jax_meshes(draw):
    mesh = draw(meshes(max_length=4, max_size=6))
    return Mesh(mesh.shape, mesh.axis_names, draw(st.permutations(range(8)))[: mesh.size])


def array_as(layout, whole):
    """A JAX array with this layout, made of numpy's shards."""
    shards = shard(layout, whole)
    devices = jax.devices()
    return jax.make_array_from_single_device_arrays(
        layout.shape, to_sharding(layout), [jax.device_put(shards[i], devices[i]) for i in shards]
    )


def numbers(shape, dtype):
    whole = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7
    return whole.astype(jnp.dtype(dtype))


@given(jax_transfers(), st.sampled_from(DTYPES))
def test_every_shard_is_that_of_device_put(ends, dtype):
    src, dst = ends
    whole = numbers(src.shape, dtype)
    moved = transfer(array_as(src, whole), to_sharding(dst))
    expected = jax.device_put(whole, to_sharding(dst))
    assert moved.sharding == expected.sharding
    assert moved.dtype == expected.dtype
    for ours, theirs in zip(moved.addressable_shards, expected.addressable_shards, strict=True):
        assert ours.device == theirs.device
        np.testing.assert_array_equal(np.asarray(ours.data), np.asarray(theirs.data), strict=True)


NAMED_ONLY = {"int1", "uint1", "float6_e2m3fn", "float6_e3m2fn"}
"""Types that JAX has names of, but no arrays [0.10.2]."""

TYPES = [
    name
    for names in SAME_SIZE.values()
    for name in names
    if hasattr(jnp, name) and name not in NAMED_ONLY
]


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_that_jax_has_arrives_bit_for_bit(dtype):
    with jax.enable_x64(True):
        whole = (np.arange(48) % 2).astype(jnp.dtype(dtype))
        # Types of fewer than 8 bits do not use all bits of a byte.
        if dtype not in ("bool", "int2", "int4", "uint2", "uint4", "float4_e2m1fn"):
            bits = np.random.default_rng(0).integers(256, size=whole.nbytes, dtype=np.uint8)
            whole = bits.view(whole.dtype)  # some are not a number
        source = jax.device_put(whole, sharding("x"))
        moved = transfer(source, sharding("x", devices=(1, 2, 3)))
        assert moved.dtype == source.dtype == jnp.dtype(dtype)
        assert np.asarray(moved).tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    "kind", [memory.kind for memory in jax.devices()[0].addressable_memories()]
)
def test_arrays_go_to_the_memory_that_a_sharding_says(kind):
    target = sharding("x", devices=(2, 3)).with_memory_kind(kind)
    moved = transfer(jnp.arange(8.0), target)
    assert moved.sharding == target
    np.testing.assert_array_equal(np.asarray(moved), np.arange(8.0))


@given(jax_transfers(partial=True))
def test_of_unreduced_arrays_the_sums_arrive(ends):
    src, dst = ends
    whole = numbers(src.shape, "float32")  # sums of small integers are exact in float32
    moved = transfer(array_as(src, whole), to_sharding(dst))
    np.testing.assert_array_equal(np.asarray(moved), whole, strict=True)


@pytest.mark.parametrize("size", [64, 2**20])
def test_devices_with_equal_shards_share_memory_as_nothing_is_copied_after(size):
    moved = transfer(jnp.arange(size, dtype="bfloat16"), sharding(None, devices=(1, 2, 3)))
    assert len({part.data.unsafe_buffer_pointer() for part in moved.addressable_shards}) == 1


def sharding(*spec, devices=(0, 1), shape=None):
    grid = np.array([jax.devices()[i] for i in devices]).reshape(shape or len(devices))
    return NamedSharding(JaxMesh(grid, ("x", "y")[: grid.ndim]), PartitionSpec(*spec))


def test_moves_a_tree_to_a_tree_of_shardings_or_one_for_all():
    tree = {"up": jnp.ones((4, 8)), "layers": [jnp.zeros(4), jnp.arange(4)]}
    one = sharding("x")
    each = {"up": sharding(None, "y", devices=(2, 3, 4, 5), shape=(2, 2)), "layers": one}
    for shardings in (one, each):
        moved = transfer(tree, shardings)
        jax.tree.map(np.testing.assert_array_equal, moved, tree)
        wanted = jax.tree.broadcast(shardings, tree)
        assert jax.tree.map(lambda array: array.sharding, moved) == wanted


def test_the_source_is_left_as_it_was_and_may_be_deleted():
    source = jax.device_put(jnp.arange(8.0), sharding("x"))
    moved = transfer(source, sharding(None, devices=(1, 2)))
    np.testing.assert_array_equal(source, np.arange(8.0))
    source.delete()
    np.testing.assert_array_equal(moved, np.arange(8.0))


def test_a_donated_replica_leaves_the_others():
    moved = transfer(jnp.arange(64.0), sharding(None, devices=(0, 1, 2)))
    first, second, _ = (shard.data for shard in moved.addressable_shards)
    jax.jit(lambda x: -x, donate_argnums=0)(first).block_until_ready()
    np.testing.assert_array_equal(second, np.arange(64.0))


def test_results_can_be_computed_with_on_their_mesh():
    moved = transfer(jnp.arange(8.0), sharding("x", devices=(6, 7)))
    assert jax.jit(jnp.sum)(moved) == 28
    assert jax.jit(lambda x: 2 * x)(moved).sharding.device_set == set(jax.devices()[6:])


def test_shardings_other_than_named_ones_can_be_source_or_destination():
    source = jax.device_put(jnp.arange(8.0), SingleDeviceSharding(jax.devices()[3]))
    moved = transfer(source, SingleDeviceSharding(jax.devices()[5]))
    assert moved.sharding == SingleDeviceSharding(jax.devices()[5])
    np.testing.assert_array_equal(moved, np.arange(8.0))


def test_says_which_arrays_have_no_data_to_move():
    target = sharding("x")
    with pytest.raises(ShardError, match="got ndarray; call it outside of jit"):
        transfer(np.ones(4), target)
    with pytest.raises(ShardError, match=r"got .*Tracer; call it outside of jit"):
        jax.jit(lambda x: transfer(x, target))(jnp.ones(4))
    deleted = jnp.ones(4)
    deleted.delete()
    with pytest.raises(ShardError, match=r"got a deleted float32\[4\]"):
        transfer(deleted, target)
    with pytest.raises(ShardError, match=r"key<fry>; move the result of jax\.random\.key_data"):
        transfer(jax.random.key(0), target)


@pytest.mark.parametrize("target", [{"other": sharding("x")}, None, [sharding("x")] * 2])
def test_shardings_are_a_tree_like_that_of_the_arrays(target):
    with pytest.raises(PlanError, match="shardings are a pytree like that of the arrays, or a"):
        transfer({"w": jnp.ones(4)}, target)


def test_devices_of_other_processes_are_refused(monkeypatch):
    monkeypatch.setattr(NamedSharding, "is_fully_addressable", False)
    with pytest.raises(PlanError, match=r"to this process; got devices of the processes \[0\] in"):
        transfer(jnp.ones(4), sharding("x"))


@pytest.mark.parametrize(
    ("shape", "target", "error", "message"),
    [
        ((5,), sharding("x"), PlanError, r"divides its array evenly; got \(5,\) as S0"),
        ((), sharding("x"), NotationError, "at most one entry for each dim"),
        ((4,), jax.devices()[0], PlanError, r"goes to a jax\.sharding\.Sharding; got Device"),
        (
            (4,),
            NamedSharding(AbstractMesh((2,), ("x",)), PartitionSpec("x")),
            PlanError,
            "got an AbstractMesh",
        ),
        (
            (4,),
            sharding(PartitionSpec.UNCONSTRAINED),
            NotationError,
            "leaves it to the program",
        ),
        (
            (4,),
            to_sharding(Layout((4,), Mesh((2,), ("x",)), Spec.parse("R+P0"))),
            PartialLayoutError,
            r"delivers whole results; got the partial destination spec R\+P0",
        ),
    ],
)
def test_says_what_is_wrong_with_a_destination(shape, target, error, message):
    with pytest.raises(error, match=message):
        transfer(jnp.ones(shape), target)
