"""The arrays that callers give and get: a shard for each tensor and device, by name or without."""

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
"""Device to array, for a plan of one tensor; or name to device to array."""

Named = Mapping[str, Mapping[int, Array]]
"""Name to device to array."""


def by_name(plan: TransferPlan, shards: Shards) -> Named:
    """Shards with names, whether they had them or not.

    Raises:
        ShardError: names that the plan has not, or none for a plan of several tensors.
    """
    names = [tensor.name for tensor in plan.tensors]
    if not isinstance(shards, Mapping):
        raise ShardError(f"shards are a mapping; got {type(shards).__name__}")
    named: dict[Any, Any] = dict(shards) if has_names(plan, shards) else {names[0]: shards}
    if set(named) != set(names):
        raise ShardError(
            "shards are {device: array} for a plan of one tensor, {name: {device: array}} for one "
            f"of several; got {sorted(map(str, named))[:4]} for the tensors {names[:4]}"
        )
    for name, of_device in named.items():
        if not isinstance(of_device, Mapping):
            raise ShardError(
                f"the shards of a tensor are {{device: array}}; got {type(of_device).__name__} "
                f"for {name!r}"
            )
    return named


def has_names(plan: TransferPlan, shards: Shards) -> bool:
    """Whether these are shards by name; a plan of one tensor has some without."""
    return len(plan.tensors) != 1 or any(isinstance(key, str) for key in shards)


def shapes(layout: Layout, devices: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """The shapes of the arrays in which devices keep their shards."""
    return {device: layout.local_shape(device) for device in devices}


def check(
    tensor: Tensor,
    layout: Layout,
    expected: Mapping[int, tuple[int, ...]],
    shards: Mapping[int, Array],
) -> None:
    """Refuse arrays that are not the shards of a tensor.

    Args:
        tensor: What it is.
        layout: How it lies.
        expected: What `shapes` says of the devices that have a shard.
        shards: Device to array.

    Raises:
        ShardError: a shard is missing or of no device, or has another shape or dtype than planned,
            as `holds` says.
    """
    if shards.keys() != expected.keys():
        raise ShardError(
            f"shards has one array for each device of the mesh; "
            f"got {list(shards)} for {list(expected)} of {tensor.name!r} on this rank"
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
                f"shards have the dtype that is planned; got {dtype} ({dtype.str}) for "
                f"{tensor.dtype} of {tensor.name!r} on device {device}; convert them, or plan for "
                f"it; raw bytes of planned elements are .view('V{tensor.item_bytes}')"
            )
    if len(dtypes) > 1:
        raise ShardError(
            f"all shards have one dtype; got {sorted(map(str, dtypes))} for {tensor.name!r}"
        )


Span = tuple[int, int]
"""The first address of some memory, and the one behind the last; equal if there is none."""


def check_apart(out: Named, sources: Named) -> None:
    """Refuse destinations that cannot be written to while the sources are read.

    Raises:
        ShardError: one is read-only, has elements that share memory, or shares some with a source.
    """
    written = {}
    for name, of_device in out.items():
        for device, array in of_device.items():
            if not array.flags.writeable:
                raise ShardError(
                    "a destination can be written to; "
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
        written: Shape, strides and span of each, by tensor and device.
        read: The spans of all sources.

    Raises:
        ShardError: some do.
    """
    spans = sorted(read)
    starts = [start for start, _ in spans]
    stops = [0, *itertools.accumulate((stop for _, stop in spans), max)]
    for (name, device), (shape, strides, (start, stop)) in written.items():
        if start == stop:
            continue
        if any(n > 1 and stride == 0 for n, stride in zip(shape, strides, strict=True)):
            raise ShardError(
                "a destination has memory of its own for each element; got one with strides "
                f"{tuple(strides)} for device {device} of {name!r}; give a copy of it, or none"
            )
        if stops[bisect_left(starts, stop)] > start:
            raise ShardError(
                "a destination shares no memory with a source, which is read all the while; "
                f"got such an array for device {device} of {name!r}; give another, or none"
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
    """That of the shards; where there are none the planned one, or as many raw bytes.

    Those are what stands for types that only torch has, and for those that only ml_dtypes has where
    it is not installed.
    """
    for shard in shards.values():
        return shard.dtype
    try:
        return number_type(tensor.dtype)
    except MissingExtraError:
        return np.dtype(f"V{tensor.item_bytes}")


_ALIGNMENT = 64
"""Bytes: a cache line of x86-64, and what JAX's CPU devices take without a copy [measured with jax
0.10.2 and `device_put(..., may_alias=True)`]."""


def new(tensor: Tensor, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new destination shard; where the layout has padding it is zero."""
    n_bytes = math.prod(shape) * dtype.itemsize
    make = np.zeros if "padded" in tensor.dst.rules else np.empty
    room = make(n_bytes + _ALIGNMENT - 1, np.uint8)
    start = -room.__array_interface__["data"][0] % _ALIGNMENT
    return room[start : start + n_bytes].view(dtype).reshape(shape)
