"""`simulate`: executes a resharding plan in numpy, for all devices at once."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from shardspec.base.axis import overlap
from shardspec.base.chunking import Run
from shardspec.base.partial import Reduction
from shardspec.errors import InternalError, ReshardError
from shardspec.layout.layout import Layout
from shardspec.layout.spec import sharding_axes
from shardspec.refine.shards import Array, check_shards, combine, neutral
from shardspec.resharding.step import ReshardPlan, Step
from shardspec.resharding.transfer import common, transfers


def simulate(plan: ReshardPlan, shards: Mapping[int, Array]) -> dict[int, Array]:
    """The shard of each device after the plan's steps, by device id; arrays may share memory.

    Args:
        plan: From `reshard`.
        shards: The shards before, one for each device of the mesh.

    Raises:
        ShardsError: a device is missing or not in the mesh, or a shard has another shape than
            `plan.src` gives it.
    """
    check_shards(plan.src, shards)
    held = dict(shards)
    for step in plan.steps:
        if step.kind in ("all_reduce", "reduce_scatter"):
            held = _reduced(step, held)
        elif step.kind == "fill":
            held = _filled(step, held)
        else:
            held = _moved(step, held)
    return held


def _moved(step: Step, held: Mapping[int, Array]) -> dict[int, Array]:
    """The shards after a gather, slice, permutation or exchange, put together from transfers."""
    if step.kind in ("slice", "all_gather", "all_to_all") and _are_blocks(step):
        return _moved_blocks(step, held)
    dtype = next(iter(held.values())).dtype
    moved = {d: np.zeros(step.dst.local_shape(d), dtype) for d in step.dst.mesh.device_ids}
    for t in transfers(step.src, step.dst, step.axes):
        moved[t.receiver][_within(step.dst, t.receiver, t.runs)] = held[t.sender][
            _within(step.src, t.sender, t.runs)
        ]
    return moved


def _are_blocks(step: Step) -> bool:
    """Whether all parts that a device sends are equal blocks of its array."""
    device = step.src.mesh.device_ids[0]
    return (step.pack(device) or step.unpack(device)) is not None


def _moved_blocks(step: Step, held: Mapping[int, Array]) -> dict[int, Array]:
    """The same as `_moved`, in the way of library collectives: an equal part for each device."""
    moved = {}
    for group in step.groups:
        parts = {d: order(held[d]) if (order := step.pack(d)) else held[d] for d in group}
        for place, device in enumerate(group):
            if step.kind == "slice":
                moved[device] = parts[device][place]
                continue
            received = [parts[d] if step.kind == "all_gather" else parts[d][place] for d in group]
            order = step.unpack(device)
            if order is None:
                raise InternalError(
                    f"an all-gather or all-to-all that packs also unpacks; got {step}"
                )
            moved[device] = order(np.stack(received))
    return moved


def _reduced(step: Step, held: Mapping[int, Array]) -> dict[int, Array]:
    """The shards after an all-reduce or reduce-scatter; results are combined in group order."""
    reduction = _reduction(step)
    reduced = {}
    for group in step.groups:
        combined = np.asarray(combine(reduction, [held[device] for device in group]))
        for device in group:
            if step.kind == "all_reduce":
                reduced[device] = combined
            elif order := step.pack(device):
                reduced[device] = order(combined)[group.index(device)]
            else:
                part = np.zeros(step.dst.local_shape(device), combined.dtype)
                runs = step.dst.runs(device)
                part[_within(step.dst, device, runs)] = combined[_within(step.src, device, runs)]
                reduced[device] = part
    return reduced


def _reduction(step: Step) -> Reduction:
    if step.reduction is None:
        raise ReshardError(f"a step with partial results says how they combine; got {step}")
    return step.reduction


def _filled(step: Step, held: Mapping[int, Array]) -> dict[int, Array]:
    """Partial results that combine to the tensor: each element on one device, neutral elsewhere."""
    reduction = _reduction(step)
    mesh, (axis,) = step.src.mesh, step.axes
    axis_shards = overlap([axis, *sharding_axes(step.src.spec)])
    filled = {}
    for device, data in held.items():
        if axis_shards:
            whole = neutral(reduction, np.zeros(step.dst.local_shape(device), data.dtype))
            runs = tuple(map(common, step.src.runs(device), step.dst.runs(device)))
            whole[_within(step.dst, device, runs)] = data[_within(step.src, device, runs)]
            filled[device] = whole
        else:
            first = mesh.coordinate(mesh.coordinates(device), axis) == 0
            filled[device] = data if first else neutral(reduction, data)
    return filled


def _within(
    layout: Layout, device: int, runs: tuple[tuple[Run, ...], ...]
) -> tuple[NDArray[np.intp], ...]:
    """The index of intervals of the tensor (`runs`, for each dim) in a device's array."""
    indices = layout.indices(device)
    wanted = [
        np.concatenate([np.arange(*run) for run in of_dim]) if of_dim else np.empty(0, np.intp)
        for of_dim in runs
    ]
    return np.ix_(*(np.searchsorted(i, w) for i, w in zip(indices, wanted, strict=True)))
