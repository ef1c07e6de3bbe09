"""A numpy interpreter: cut arrays into shards, run a plan's collectives, put shards together."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ShardsError
from .layout import Layout
from .spec import Reduction
from .step import ReshardPlan, Step

Array = npt.NDArray[Any]

_COMBINE: dict[Reduction, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
}


def shard(layout: Layout, array: npt.ArrayLike, *, seed: int = 0) -> dict[int, Array]:
    """The shards of `array`, by device id.

    Partial results are made up at random, alike on replicas: partial sums are small whole numbers,
    the last one the rest (exact for integers, even if they wrap); for a maximum one device chosen
    for each element holds it, and the others something no larger.

    Args:
        layout: Of the same shape as `array`; may be uneven.
        array: The whole tensor.
        seed: Determines the partial results.

    Raises:
        ShardsError: `array` has another shape, or is boolean and to be split into partial sums.

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
    for partial in layout.spec.partial:
        count = layout.mesh.shape[partial.axis]
        parts = {
            (*place, i): part
            for place, combined in parts.items()
            for i, part in enumerate(_split(combined, count, partial.kind, rng))
        }
    return {
        device: parts[_partial_place(layout, device)][layout.slices(device)].copy()
        for device in layout.mesh.device_ids
    }


def assemble(layout: Layout, shards: Mapping[int, Array]) -> Array:
    """The whole tensor that `shards` hold, with partial results combined; inverse of `shard`.

    Args:
        layout: How the shards lie; may be uneven.
        shards: One for each device of the mesh.

    Raises:
        ShardsError: a device is missing or foreign, a shard has another shape than the layout
            gives it, or replicas differ.
    """
    _check_shards(layout, shards)
    dtype = next(iter(shards.values())).dtype
    partial = layout.spec.partial
    places = list(itertools.product(*(range(layout.mesh.shape[p.axis]) for p in partial)))
    parts = {place: np.empty(layout.shape, dtype) for place in places}
    holders: dict[tuple[Any, ...], int] = {}
    for device in layout.mesh.device_ids:
        place, slices = _partial_place(layout, device), layout.slices(device)
        holder = holders.setdefault((place, *((s.start, s.stop) for s in slices)), device)
        if not np.array_equal(shards[holder], shards[device], equal_nan=dtype.kind in "fc"):
            raise ShardsError(
                "devices that hold the same part of the tensor agree; "
                f"devices {holder} and {device} differ in {slices} of {layout}"
            )
        parts[place][slices] = shards[device]
    for p in reversed(partial):
        groups = itertools.groupby(parts.items(), key=lambda item: item[0][:-1])
        parts = {
            place: functools.reduce(_COMBINE[p.kind], (part for _, part in group))
            for place, group in groups
        }
    return parts[()]


def simulate(plan: ReshardPlan, shards: Mapping[int, Array]) -> dict[int, Array]:
    """What the devices hold after the plan's collectives, by device id; arrays may share memory.

    Args:
        plan: From `reshard`.
        shards: What they hold before, one for each device of the mesh.

    Raises:
        ShardsError: a device is missing or foreign, or a shard has another shape than `plan.src`
            gives it.
    """
    _check_shards(plan.src, shards)
    held = dict(shards)
    for step in plan.steps:
        for group in step.src.mesh.groups(step.axes):
            results = _run(step, [held[device] for device in group])
            held.update(zip(group, results, strict=True))
    return held


def _run(step: Step, inputs: Sequence[Array]) -> list[Array]:
    """One group's results, for its inputs in group order."""
    n = len(inputs)
    match step:
        case Step(kind="slice", dim=int(dim)):
            return [np.split(held, n, dim)[i] for i, held in enumerate(inputs)]
        case Step(kind="all_gather", dim=int(dim)):
            return [np.concatenate(inputs, dim)] * n
        case Step(kind="all_to_all", dim=int(dim), to_dim=int(to_dim)):
            pieces = [np.split(held, n, to_dim) for held in inputs]
            return [np.concatenate([sent[i] for sent in pieces], dim) for i in range(n)]
        case Step(kind="reduce_scatter", dim=int(dim), reduction=str(reduction)):
            return np.split(functools.reduce(_COMBINE[reduction], inputs), n, dim)
        case Step(kind="all_reduce", reduction=str(reduction)):
            return [functools.reduce(_COMBINE[reduction], inputs)] * n
        case _:
            raise AssertionError(f"a step lacks what its kind needs: {step!r}")


def _split(combined: Array, count: int, kind: Reduction, rng: np.random.Generator) -> list[Array]:
    """`count` arrays that combine to `combined`."""
    if kind == "sum":
        if combined.dtype == np.bool_:
            raise ShardsError("booleans have no partial sums; convert the array to integers")
        parts = [
            rng.integers(0, 9, combined.shape).astype(combined.dtype) for _ in range(count - 1)
        ]
        return [*parts, functools.reduce(np.subtract, parts, combined)]
    owner = rng.integers(0, count, combined.shape)
    no_larger = _COMBINE["min" if kind == "max" else "max"]
    others = rng.permuted(combined.reshape(-1)).reshape(combined.shape)
    return [np.where(owner == i, combined, no_larger(combined, others)) for i in range(count)]


def _partial_place(layout: Layout, device: int) -> tuple[int, ...]:
    """The device's coordinates along the axes that hold partial results."""
    coordinates = layout.mesh.coordinates(device)
    return tuple(coordinates[p.axis] for p in layout.spec.partial)


def _check_shards(layout: Layout, shards: Mapping[int, Array]) -> None:
    if set(shards) != set(layout.mesh.device_ids):
        raise ShardsError(
            f"each device of the mesh has one shard; got shards of devices {tuple(shards)} "
            f"for the mesh's {layout.mesh.device_ids}"
        )
    for device in layout.mesh.device_ids:
        if shards[device].shape != layout.local_shape(device):
            raise ShardsError(
                f"a shard has the shape its layout gives it; device {device} has "
                f"{shards[device].shape} instead of {layout.local_shape(device)} in {layout}"
            )
