"""`transfer`: moves arrays of JAX to other meshes of this process by a plan, as `jax.device_put`.

A device's shard is read and written in the memory where JAX keeps it, on CPU devices without a copy
before or after. All devices belong to one process, so the plan has one host.
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

    Unreduced arrays arrive as their sums. On CPU, devices with equal shards share memory. The
    function is not differentiable, and does not work inside `jax.jit`.

    Args:
        x: A pytree of `jax.Array` of any shape and of any element type except random keys.
        sharding: The new shardings: a pytree of `jax.sharding.Sharding`, or a prefix of one, such
            as one sharding for all arrays. Each one divides its arrays evenly.

    Returns:
        The same pytree of new arrays. `x` is not changed, and may be deleted.

    Raises:
        ShardError: A leaf is not an array with data on devices of this process, or it is an array
            of keys.
        PlanError: The tree of shardings does not match; or a sharding has devices of other
            processes, or does not divide an array evenly.
        PartialLayoutError: A destination is unreduced.
        shardspec.NotationError: A sharding does not say what each device holds, or does not fit the
            number of dims.

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
            f"shardings are a pytree like that of the arrays, or a prefix of it; {error}"
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
    """The layout of an array, with devices numbered by `ids`.

    JAX's own device ids are distinct only within one platform.
    """
    layout = from_sharding(sharding, shape)
    if not layout.is_even:
        raise PlanError(
            f"a sharding divides its array evenly; got {layout} for {sharding}; pad the array"
        )
    devices_of: set[Any] = sharding.device_set
    number = {device.id: ids[device] for device in devices_of}
    devices = tuple(number[i] for i in layout.mesh.device_ids)
    mesh = Mesh(layout.mesh.shape, layout.mesh.axis_names, devices)
    return Layout(shape, mesh, layout.spec, layout.rules)


def _check(leaf: Any, target: Any) -> None:
    if isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, jax.Array):
        raise ShardError(
            "a transfer moves arrays of JAX that have data; "
            f"got {type(leaf).__name__}; call it outside of jit, and make other arrays a jax.Array "
            "by jax.device_put"
        )
    if leaf.is_deleted():
        raise ShardError(f"a transfer moves arrays that have data; got a deleted {leaf.aval}")
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise ShardError(
            f"a transfer moves plain elements; got dtype {leaf.dtype}; move the result of "
            "jax.random.key_data"
        )
    if not isinstance(target, Sharding):
        raise PlanError(f"an array goes to a jax.sharding.Sharding; got {type(target).__name__}")
    for end in (leaf.sharding, target):
        if isinstance(end, NamedSharding) and isinstance(end.mesh, AbstractMesh):
            raise PlanError(
                f"a transfer is between meshes of devices; got an AbstractMesh in {end}"
            )
        if not end.is_fully_addressable:
            elsewhere: set[Any] = end.device_set
            processes = sorted({device.process_index for device in elsewhere})
            raise PlanError(
                "the devices of a transfer belong to this process; got devices of the processes "
                f"{processes} in {end}; plan() the layouts, and execute() over MPI"
            )
