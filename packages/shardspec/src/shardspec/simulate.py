"""`simulate`: a resharding plan executed in numpy, on all devices at once."""

from collections.abc import Mapping

import numpy as np

from .shards import Array, check_shards, combine
from .step import ReshardPlan, Step


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
        for group in step.src.mesh.groups(step.axes):
            results = _run(step, [held[device] for device in group])
            held.update(zip(group, results, strict=True))
    return held


def _run(step: Step, inputs: list[Array]) -> list[Array]:
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
        case Step(kind="reduce_scatter", dim=int(dim), reduction=reduction) if reduction:
            return np.split(combine(reduction, inputs), n, dim)
        case Step(kind="all_reduce", reduction=reduction) if reduction:
            return [combine(reduction, inputs)] * n
        case _:
            raise AssertionError(f"a step lacks what its kind needs: {step!r}")
