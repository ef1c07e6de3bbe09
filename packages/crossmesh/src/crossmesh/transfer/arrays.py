"""The arrays that callers pass and get: one shard for each tensor and device, by name or not."""

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from shardspec import Layout

from crossmesh.base.reduce import number_type
from crossmesh.base.tensor import Tensor, holds
from crossmesh.errors import MissingExtraError, ShardError
from crossmesh.transfer.plan import TransferPlan

Array = npt.NDArray[Any]

Shards = Mapping[int, Array] | Mapping[str, Mapping[int, Array]]
"""{device: array} for a plan of one tensor, or {name: {device: array}}."""

Named = Mapping[str, Mapping[int, Array]]
"""{name: {device: array}}."""


def by_name(plan: TransferPlan, shards: Shards) -> Named:
    """The shards by name, whether the caller passed them by name or not.

    Raises:
        ShardError: The names are not those of the plan, or a plan of several tensors gets shards
            without names.
    """
    names = [tensor.name for tensor in plan.tensors]
    if not isinstance(shards, Mapping):
        raise ShardError(f"shards are a mapping; got {type(shards).__name__}")
    named: dict[Any, Any] = dict(shards) if has_names(plan, shards) else {names[0]: shards}
    if set(named) != set(names):
        raise ShardError(
            "shards are {device: array} for a plan of one tensor, {name: {device: array}} for a "
            f"plan of several; got {sorted(map(str, named))[:4]} for the tensors {names[:4]}"
        )
    for name, of_device in named.items():
        if not isinstance(of_device, Mapping):
            raise ShardError(
                f"the shards of a tensor are {{device: array}}; got {type(of_device).__name__} "
                f"for {name!r}"
            )
    return named


def has_names(plan: TransferPlan, shards: Shards) -> bool:
    """Whether the shards are by name; only for a plan of one tensor they need not be."""
    return len(plan.tensors) != 1 or any(isinstance(key, str) for key in shards)


def shapes(layout: Layout, devices: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """The shapes of the arrays that hold the devices' shards."""
    return {device: layout.local_shape(device) for device in devices}


def check(
    tensor: Tensor,
    layout: Layout,
    expected: Mapping[int, tuple[int, ...]],
    shards: Mapping[int, Array],
) -> None:
    """Refuse arrays that are not the shards of a tensor.

    Args:
        tensor: The tensor.
        layout: Its layout, source or destination.
        expected: The devices that have a shard here, with its shape, as `shapes` returns them.
        shards: {device: array}.

    Raises:
        ShardError: A shard is missing, or belongs to no device, or its shape or dtype is not the
            planned one; for the dtype, `holds` decides.
    """
    if shards.keys() != expected.keys():
        raise ShardError(
            f"shards has one array for each device of the mesh; got devices {list(shards)} "
            f"instead of {list(expected)} for {tensor.name!r} on this rank"
        )
    for device, shape in expected.items():
        shard = shards[device]
        plain = isinstance(shard, np.ndarray) and not isinstance(shard, np.ma.MaskedArray)
        if not plain or shard.shape != shape:
            got = shard.shape if plain else type(shard).__name__
            raise ShardError(
                f"a shard is a numpy array of its local shape; got {got} for device {device}, "
                f"which holds {shape} of {layout}"
            )
    dtypes: dict[np.dtype[Any], int] = {}
    for device in expected:
        dtypes.setdefault(shards[device].dtype, device)
    for dtype, device in dtypes.items():
        if not holds(tensor.dtype, dtype):
            raise ShardError(
                f"shards have the dtype that is planned; got {dtype} ({dtype.str}) instead of "
                f"{tensor.dtype} for {tensor.name!r} on device {device}; convert the shards, plan "
                f"for their dtype, or pass raw bytes: .view('V{tensor.item_bytes}')"
            )
    if len(dtypes) > 1:
        raise ShardError(
            f"all shards have one dtype; got {sorted(map(str, dtypes))} for {tensor.name!r}"
        )


Span = tuple[int, int]
"""A range of memory: its first address and the one behind its last; equal if it is empty."""


def check_apart(out: Named, sources: Named) -> None:
    """Refuse destinations that cannot be written while the sources are read.

    Raises:
        ShardError: A destination is read-only, or its elements share memory with each other or with
            a source.
    """
    written = {}
    for name, of_device in out.items():
        for device, array in of_device.items():
            if not array.flags.writeable:
                raise ShardError(
                    "a destination is writable; "
                    f"got a read-only array for device {device} of {name!r}"
                )
            written[name, device] = array.shape, array.strides, _span(array)
    check_written(
        written, [_span(array) for of_device in sources.values() for array in of_device.values()]
    )


def check_written(
    written: Mapping[tuple[str, int], tuple[Sequence[int], Sequence[int], Span]],
    read: Iterable[Span],
) -> None:
    """Refuse destinations whose elements share memory with each other, or with a source.

    Args:
        written: Shape, strides and span of each destination, by (tensor, device).
        read: The spans of all sources.

    Raises:
        ShardError: Elements of a destination share memory.
    """
    spans = sorted(read)
    starts = [start for start, _ in spans]
    stops = [0, *itertools.accumulate((stop for _, stop in spans), max)]
    for (name, device), (shape, strides, (start, stop)) in written.items():
        if start == stop:
            continue
        if any(n > 1 and stride == 0 for n, stride in zip(shape, strides, strict=True)):
            raise ShardError(
                "each element of a destination has its own memory; got an array with strides "
                f"{tuple(strides)} for device {device} of {name!r}; pass a copy of it, or None"
            )
        if stops[bisect_left(starts, stop)] > start:
            raise ShardError(
                "a destination shares no memory with a source, because sources are read until the "
                f"end; got an array that does for device {device} of {name!r}; pass another one, "
                "or None"
            )


def _span(array: Array) -> Span:
    start = stop = array.__array_interface__["data"][0]
    if array.size == 0:
        return start, start
    for n, stride in zip(array.shape, array.strides, strict=True):
        start += min((n - 1) * stride, 0)
        stop += max((n - 1) * stride, 0)
    return start, stop + array.itemsize


def dtype_of(tensor: Tensor, shards: Mapping[int, Array]) -> np.dtype[Any]:
    """The dtype of the shards; if there are none, the planned dtype, or raw bytes of its size.

    Raw bytes stand for dtypes that only torch has, and for those of ml_dtypes if that is not
    installed.
    """
    for shard in shards.values():
        return shard.dtype
    try:
        return number_type(tensor.dtype)
    except MissingExtraError:
        return np.dtype(f"V{tensor.item_bytes}")


_ALIGNMENT = 64
"""Bytes: a cache line of x86-64, and the alignment of arrays that JAX's CPU devices accept without
a copy [measured with jax 0.10.2 and `device_put(..., may_alias=True)`]."""


def new(tensor: Tensor, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array for a destination shard; if the layout has padding, it is filled with zeros."""
    n_bytes = math.prod(shape) * dtype.itemsize
    allocate = np.zeros if "padded" in tensor.dst.rules else np.empty
    memory = allocate(n_bytes + _ALIGNMENT - 1, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + n_bytes].view(dtype).reshape(shape)
