"""`shard` cuts a whole array as a layout says; `assemble` puts the shards together again."""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardspec.base.integers import shown
from shardspec.base.partial import Reduction
from shardspec.errors import ShardsError
from shardspec.layout.layout import Layout

Array = NDArray[Any]


def shard(layout: Layout, array: ArrayLike, *, seed: int = 0) -> dict[int, Array]:
    """The shard of `array` that each device of a layout holds, by device id; copies, not views.

    Padding is filled with zeros. Partial results are drawn at random, so that they combine to
    `array`: exactly for integers, and for floats that hold small integers.

    Raises:
        ShardsError: the array has another shape than the layout, or booleans would be summed.

    Examples:
        >>> from shardspec import Mesh, Spec
        >>> shard(Layout((4,), Mesh((2,), ("x",)), Spec.parse("S0")), [1, 2, 3, 4])
        {0: array([1, 2]), 1: array([3, 4])}
    """
    whole = np.asarray(array)
    if whole.shape != layout.shape:
        raise ShardsError(
            "the array has the shape of its layout; "
            f"got {whole.shape} for a layout of {layout.shape}"
        )
    rng = np.random.default_rng(seed)
    parts: dict[tuple[int, ...], Array] = {(): whole}
    # Averages are taken axis after axis. Multiples of the product of the axes' lengths keep them
    # whole numbers.
    averaged = [p.axis for p in layout.spec.partial if p.kind == "avg"]
    unit = layout.mesh.axis_size(averaged)
    for partial in layout.spec.partial:
        count = layout.mesh.length(partial.axis)
        parts = {
            (*place, i): part
            for place, combined in parts.items()
            for i, part in enumerate(_split(combined, count, partial.kind, unit, rng))
        }
    held = {}
    for device in layout.mesh.device_ids:
        part = parts[partial_place(layout, device)][np.ix_(*layout.indices(device))]
        room = np.zeros(layout.local_shape(device), part.dtype)
        room[tuple(map(slice, part.shape))] = part
        held[device] = room
    return held


def assemble(layout: Layout, shards: Mapping[int, Array]) -> Array:
    """The whole tensor that `shards` hold, with partial results combined; inverse of `shard`.

    Args:
        layout: The layout of the shards. Values in padding do not matter.
        shards: One for each device of the mesh.

    Raises:
        ShardsError: a device is missing or not in the mesh, a shard has another shape than the
            layout gives it or another dtype than the other shards, or replicas differ.
    """
    check_shards(layout, shards)
    dtype = next(iter(shards.values())).dtype
    partial = layout.spec.partial
    places = itertools.product(*(range(layout.mesh.length(p.axis)) for p in partial))
    parts = {place: np.empty(layout.shape, dtype) for place in places}
    holders: dict[Any, int] = {}
    for device in layout.mesh.device_ids:
        place, runs = partial_place(layout, device), layout.runs(device)
        indices = layout.indices(device)
        data = shards[device][tuple(slice(len(i)) for i in indices)]
        holder = holders.setdefault((place, runs), device)
        if holder != device:
            first = parts[place][np.ix_(*indices)]
            if not np.array_equal(first, data, equal_nan=dtype.kind in "fc"):
                raise ShardsError(
                    "devices that hold the same part of the tensor agree; "
                    f"devices {holder} and {device} differ in {runs} of {layout}"
                )
        parts[place][np.ix_(*indices)] = data
    for p in reversed(partial):
        groups = itertools.groupby(parts.items(), key=lambda item: item[0][:-1])
        parts = {place: combine(p.kind, [part for _, part in group]) for place, group in groups}
    return parts[()]


def partial_place(layout: Layout, device_id: int) -> tuple[int, ...]:
    """The device's coordinates along the axes that hold partial results."""
    coordinates = layout.mesh.coordinates(device_id)
    return tuple(layout.mesh.coordinate(coordinates, p.axis) for p in layout.spec.partial)


def check_shards(layout: Layout, shards: Mapping[int, Array]) -> None:
    """Raises `ShardsError` unless there is one array for each device, of the right shape."""
    if set(shards) != set(layout.mesh.device_ids):
        raise ShardsError(
            f"each device of the mesh has one shard; got shards of devices {tuple(shards)} "
            f"for the mesh's {layout.mesh.device_ids}"
        )
    wrong = [
        device for device, part in shards.items() if not isinstance(part, np.ndarray | np.generic)
    ]
    if wrong:
        raise ShardsError(
            f"shards are numpy arrays; device {wrong[0]} has {shown(shards[wrong[0]])}"
        )
    dtypes = {part.dtype for part in shards.values()}
    if len(dtypes) > 1:
        raise ShardsError(f"all shards have one dtype; got {', '.join(sorted(map(str, dtypes)))}")
    for device in layout.mesh.device_ids:
        if shards[device].shape != layout.local_shape(device):
            raise ShardsError(
                f"a shard has the shape its layout gives it; device {device} has "
                f"{shards[device].shape} instead of {layout.local_shape(device)} in {layout}"
            )


_COMBINE: dict[Reduction, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "avg": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "product": np.multiply,
}


def combine(kind: Reduction, parts: list[Array]) -> Array:
    """Partial results combined in the order of `parts`; averages of integers are rounded down."""
    if kind != "avg":
        return np.asarray(functools.reduce(_COMBINE[kind], parts))
    first = parts[0]
    if first.dtype.kind not in "iu":
        mean: Array = functools.reduce(np.add, parts) / len(parts)
        return mean
    # A sum may overflow; quotients and remainders do not.
    wide = [part.astype(np.uint64 if first.dtype.kind == "u" else np.int64) for part in parts]
    count = wide[0].dtype.type(len(parts))
    with np.errstate(over="ignore"):  # the sum of quotients may wrap until the rest is added
        quotient = functools.reduce(np.add, [part // count for part in wide])
        rest = functools.reduce(np.add, [part % count for part in wide])
        return np.asarray(quotient + rest // count).astype(first.dtype)


def neutral(kind: Reduction, like: Array) -> Array:
    """An array that changes nothing if combined with one like `like`; for avg, `like` itself."""
    if kind == "avg":
        return like
    if kind in ("sum", "product"):
        return np.zeros_like(like) if kind == "sum" else np.ones_like(like)
    if like.dtype == np.bool_:
        return np.full_like(like, kind == "min")
    if like.dtype.kind == "f":
        return np.full_like(like, -np.inf if kind == "max" else np.inf)
    limits = np.iinfo(like.dtype)
    return np.full_like(like, limits.min if kind == "max" else limits.max)


def _split(
    combined: Array, count: int, kind: Reduction, unit: int, rng: np.random.Generator
) -> list[Array]:
    """`count` arrays that combine to `combined`; random addends of sums are multiples of `unit`."""
    if kind in ("sum", "avg"):
        if combined.dtype == np.bool_:
            raise ShardsError("booleans have no partial sums; convert the array to integers")
        drawn = [unit * rng.integers(0, 9, combined.shape) for _ in range(count - 1)]
        if kind == "avg":
            return _around(combined, drawn[: count // 2], count)
        parts = [part.astype(combined.dtype) for part in drawn]
        return [*parts, functools.reduce(np.subtract, parts, combined)]
    owner = rng.integers(0, count, combined.shape)
    if kind == "product":
        return [np.where(owner == i, combined, np.ones_like(combined)) for i in range(count)]
    no_larger = _COMBINE["min" if kind == "max" else "max"]
    others = rng.permuted(combined.reshape(-1)).reshape(combined.shape)
    return [np.where(owner == i, combined, no_larger(combined, others)) for i in range(count)]


def _around(mean: Array, distances: list[NDArray[np.int64]], count: int) -> list[Array]:
    """`count` arrays whose mean is `mean`: pairs equally far from it, where the dtype has room."""
    parts = [mean] * (count % 2)
    for distance in distances:
        if mean.dtype.kind in "iu":
            limits, most = np.iinfo(mean.dtype), int(distance.max(initial=0))
            room = (mean >= limits.min + most) & (mean <= limits.max - most)
            distance = np.where(room, distance, 0)
        away = distance.astype(mean.dtype)
        parts += [mean + away, mean - away]
    return parts
