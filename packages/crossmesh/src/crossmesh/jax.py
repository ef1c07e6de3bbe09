"""`transfer`: arrays of JAX to other meshes of this process, as `jax.device_put` does, by a plan.

A device's shard is read where JAX keeps it, and written where JAX then keeps it: on CPU devices
without a copy before or after. All devices are of one process, so a plan has one host.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from shardspec import Layout, Mesh
from shardspec.notation.jax import from_sharding

from crossmesh.engines.local import LocalTransport
from crossmesh.errors import MissingExtraError, PlanError, ShardError
from crossmesh.search.planner import plan

try:
    import jax
    from jax.sharding import AbstractMesh, NamedSharding, Sharding, SingleDeviceSharding
except ImportError:
    raise MissingExtraError("crossmesh.jax", "jax") from None


def transfer(x: Any, sharding: Any) -> Any:
    """Move arrays to other shardings, on any devices of this process.

    Of unreduced arrays it moves the sums. On CPU, devices with equal shards share memory. It is not
    differentiable, and not for use inside `jax.jit`.

    Args:
        x: A pytree of `jax.Array`, of any shape and element type but keys.
        sharding: What each shall have: a pytree of `jax.sharding.Sharding`, or a prefix of one,
            such as one sharding for all arrays. It divides its arrays evenly.

    Returns:
        The same pytree of new arrays. `x` stays as it is, and may be deleted.

    Raises:
        ShardError: a leaf is no array with data on devices of this process, or one of keys.
        PlanError: shardings are of another tree; or one has devices of other processes, or does not
            divide an array evenly.
        PartialLayoutError: a destination is unreduced.
        shardspec.NotationError: a sharding does not say what each device holds, or has other dims.

    Examples:
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> mesh = jax.make_mesh((1,), ("server",), devices=jax.devices()[:1])
        >>> weights = {"up": jax.numpy.ones((4, 8)), "down": jax.numpy.zeros((8, 4))}
        >>> moved = transfer(weights, NamedSharding(mesh, P(None, "server")))
        >>> moved["up"].sharding.spec
        P(None, 'server')
    """
    leaves, structure = jax.tree.flatten(x)
    try:
        targets = jax.tree.leaves(jax.tree.broadcast(sharding, x))
    except ValueError as error:
        raise PlanError(
            f"shardings are a tree like that of the arrays, or a prefix of it; {error}"
        ) from None
    for leaf, target in zip(leaves, targets, strict=True):
        _check(leaf, target)
    ends = [*(leaf.sharding for leaf in leaves), *targets]
    devices = sorted(set[Any]().union(*(end.device_set for end in ends)), key=_order)
    ids = {device: i for i, device in enumerate(devices)}
    host = dict.fromkeys(ids.values(), 0)

    @cache  # layers of a model have equal layouts
    def transport(src: Layout, dst: Layout, dtype: np.dtype[Any]) -> LocalTransport:
        return LocalTransport(plan(src, dst, dtype, host), share=True)

    moved = []
    for leaf, target in zip(leaves, targets, strict=True):
        src, dst = _layout(leaf.sharding, leaf.shape, ids), _layout(target, leaf.shape, ids)
        shards = {ids[shard.device]: np.asarray(shard.data) for shard in leaf.addressable_shards}
        received = transport(src, dst, leaf.dtype)(shards)
        placed = [
            jax.device_put(
                received[ids[device]],
                SingleDeviceSharding(device, memory_kind=target.memory_kind),
                may_alias=True,
            )
            for device in target.device_set
        ]
        moved.append(jax.make_array_from_single_device_arrays(leaf.shape, target, placed))
    return jax.tree.unflatten(structure, moved)


def _order(device: Any) -> tuple[str, int]:
    return device.platform, device.id


def _layout(sharding: Sharding, shape: tuple[int, ...], ids: Mapping[Any, int]) -> Layout:
    """The layout of an array, with devices by `ids`, as JAX's are distinct on one platform only."""
    found = from_sharding(sharding, shape)
    if not found.is_even:
        raise PlanError(f"arrays of JAX divide evenly; got {found} for {sharding}; pad the array")
    devices_of: set[Any] = sharding.device_set
    number = {device.id: ids[device] for device in devices_of}
    devices = tuple(number[i] for i in found.mesh.device_ids)
    mesh = Mesh(found.mesh.shape, found.mesh.axis_names, devices)
    return Layout(shape, mesh, found.spec, found.rules)


def _check(leaf: Any, target: Any) -> None:
    if isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, jax.Array):
        raise ShardError(
            "a transfer moves arrays of JAX that have data; "
            f"got {type(leaf).__name__}; call it outside of jit, and jax.device_put what is no "
            "jax.Array"
        )
    if leaf.is_deleted():
        raise ShardError(f"a transfer moves arrays that have data; got a deleted {leaf.aval}")
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise ShardError(
            f"a transfer moves plain elements; got dtype {leaf.dtype}; move jax.random.key_data"
        )
    if not isinstance(target, Sharding):
        raise PlanError(f"an array goes to a jax.sharding.Sharding; got {type(target).__name__}")
    for end in (leaf.sharding, target):
        if isinstance(end, NamedSharding) and isinstance(end.mesh, AbstractMesh):
            raise PlanError(f"the devices of a transfer are known; got an AbstractMesh in {end}")
        if not end.is_fully_addressable:
            elsewhere: set[Any] = end.device_set
            processes = sorted({device.process_index for device in elsewhere})
            raise PlanError(
                "the devices of a transfer are of this process; got devices of the processes "
                f"{processes} in {end}; plan() the layouts, and execute() over mpi"
            )
