"""`simulate`: a resharding plan executed in numpy, on all devices at once."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from shardspec.base.axis import overlap
from shardspec.base.chunking import Run
from shardspec.base.partial import Reduction
from shardspec.errors import InternalError, ReshardError
from shardspec.layout.layout import Layout
from shardspec.refine.shards import Array, check_shards, combine, neutral
from shardspec.resharding.step import ReshardPlan, Step
from shardspec.resharding.transfer import common, transfers


def simulate(plan: ReshardPlan, shards: Mapping[int, Array]) -> dict[int, Array]:
    """What the devices hold after the plan's collectives, by device id; arrays may share memory.

    Args:
        plan: From `reshard`.
        shards: What they hold before, one for each device of the mesh.

    Raises:
        ShardsError: a device is missing or foreign, or a shard has another shape than `plan.src`
            gives it.
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
    """What is gathered, sliced, permuted or exchanged: each device's shard from its senders."""
    if step.kind in ("slice", "all_gather", "all_to_all") and _are_blocks(step):
        return _moved_blocks(step, held)
    dtype = next(iter(held.values())).dtype
    found = {d: np.zeros(step.dst.local_shape(d), dtype) for d in step.dst.mesh.device_ids}
    for t in transfers(step.src, step.dst, step.axes):
        found[t.receiver][_within(step.dst, t.receiver, t.runs)] = held[t.sender][
            _within(step.src, t.sender, t.runs)
        ]
    return found


def _are_blocks(step: Step) -> bool:
    """Whether all parts that a device sends are equal blocks of what it has."""
    device = step.src.mesh.device_ids[0]
    return (step.pack(device) or step.unpack(device)) is not None


def _moved_blocks(step: Step, held: Mapping[int, Array]) -> dict[int, Array]:
    """The same by the collectives of libraries: a part for each device of the group, in order."""
    found = {}
    for group in step.groups:
        parts = {d: order(held[d]) if (order := step.pack(d)) else held[d] for d in group}
        for place, device in enumerate(group):
            if step.kind == "slice":
                found[device] = parts[device][place]
                continue
            sent = [parts[d] if step.kind == "all_gather" else parts[d][place] for d in group]
            order = step.unpack(device)
            if order is None:
                raise InternalError(
                    f"an all-gather or all-to-all that packs also unpacks; got {step}"
                )
            found[device] = order(np.stack(sent))
    return found


def _reduced(step: Step, held: Mapping[int, Array]) -> dict[int, Array]:
    """Partial results combined in group order, and each device's part of them."""
    reduction = _reduction(step)
    found = {}
    for group in step.groups:
        combined = np.asarray(combine(reduction, [held[device] for device in group]))
        for device in group:
            if step.kind == "all_reduce":
                found[device] = combined
            elif order := step.pack(device):
                found[device] = order(combined)[group.index(device)]
            else:
                own = np.zeros(step.dst.local_shape(device), combined.dtype)
                runs = step.dst.runs(device)
                own[_within(step.dst, device, runs)] = combined[_within(step.src, device, runs)]
                found[device] = own
    return found


def _reduction(step: Step) -> Reduction:
    if step.reduction is None:
        raise ReshardError(f"a step with partial results says how they combine; got {step}")
    return step.reduction


def _filled(step: Step, held: Mapping[int, Array]) -> dict[int, Array]:
    """Partial results that combine to what is there: neutral elements where another has it."""
    reduction = _reduction(step)
    mesh, (axis,) = step.src.mesh, step.axes
    sharding = [a for dim in range(len(step.src.shape)) for a in step.src.spec.sharding_of(dim)]
    shards = overlap([axis, *sharding])
    found = {}
    for device, data in held.items():
        if shards:
            whole = neutral(reduction, np.zeros(step.dst.local_shape(device), data.dtype))
            runs = tuple(map(common, step.src.runs(device), step.dst.runs(device)))
            whole[_within(step.dst, device, runs)] = data[_within(step.src, device, runs)]
            found[device] = whole
        else:
            first = mesh.coordinate(mesh.coordinates(device), axis) == 0
            found[device] = data if first else neutral(reduction, data)
    return found


def _within(
    layout: Layout, device: int, runs: tuple[tuple[Run, ...], ...]
) -> tuple[NDArray[np.intp], ...]:
    """Where blocks of the tensor lie in a device's array."""
    indices = layout.indices(device)
    wanted = [
        np.concatenate([np.arange(*run) for run in of_dim]) if of_dim else np.empty(0, np.intp)
        for of_dim in runs
    ]
    return np.ix_(*(np.searchsorted(i, w) for i, w in zip(indices, wanted, strict=True)))
