"""Plans a model of Alpa's tables on a cluster: from operators to layers, prices and stages."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from costmodel import Cluster

from stagecut.base.progress import Progress
from stagecut.base.types import Submesh
from stagecut.errors import InfeasibleClusteringError
from stagecut.layers.cluster_operators import cluster_operators
from stagecut.models import Model
from stagecut.plan.plan_stages import plan_stages
from stagecut.plan.stage_plan import StagePlan
from stagecut.profiles import LayerProfile, Options


def demo(
    model: Model,
    cluster: Cluster,
    *,
    n_layers: int | None = None,
    n_microbatches: Sequence[int] | None = None,
    schedule: str = "1f1b",
    memory_bytes: int | None = None,
    alternatives: bool = False,
    processes: int = 1,
    progress: Progress | bool | None = None,
) -> StagePlan:
    """Plan a model on a cluster of equal hosts.

    Args:
        model: A model of `stagecut.models.model`. If it uses float16 and the devices only have
            bfloat16, it is planned with bfloat16.
        cluster: A cluster of `costmodel`.
        n_layers: Number of layers into which the operators are joined; None for the number of the
            model's blocks.
        n_microbatches: Microbatches of a step. If there are several numbers, the plan has the best
            one, and the others are among its rivals. None for the number that Alpa used.
        schedule: A name in `SCHEDULES`.
        memory_bytes: Memory of a device; None for what the cluster's devices have.
        alternatives: Whether to compare with the best slicing for every other number of stages.
        processes: How many processes price stages.
        progress: True for a progress bar, or a function as for `slice_stages`.

    Raises:
        InvalidInputError: The microbatches do not divide the batch, or there are more layers than
            operators.
        InfeasibleStagesError: No slicing fits with any number of microbatches.
        HeterogeneousClusterError: The hosts of the cluster differ.
    """
    peaks = dict(cluster.device.flops_per_s)
    if model.dtype == "float16" and "float16" not in peaks and "bfloat16" in peaks:
        model = replace(model, dtype="bfloat16")  # it has the same size
    layers = joined(model, model.n_blocks if n_layers is None else n_layers)
    counts = tuple(n_microbatches or (model.n_microbatches,))
    profiles = {count: LayerProfile(model, layers, cluster, count) for count in counts}

    def boundary_s(layer: int, count: int) -> float:
        return profiles[count].boundary_s(layer)

    profile = profiles[counts[0]]
    return plan_stages(
        len(layers),
        profile.shape,
        counts,
        partial(_cost, profiles),
        cluster.device.memory_bytes if memory_bytes is None else memory_bytes,
        boundary_s=boundary_s,
        schedule=schedule,
        alternatives=alternatives,
        processes=processes,
        progress=progress,
        flops=profile.flops,
        n_operators=profile.n_operators,
        title=f"{model.name} on {cluster.name}, {model.batch} samples a step, {len(layers)} layers",
    )


def _cost(
    profiles: Mapping[int, LayerProfile],
    first: int,
    last: int,
    submesh: Submesh,
    n_microbatches: int,
) -> Options | None:
    return profiles[n_microbatches].cost(first, last, submesh)


def joined(model: Model, n_layers: int) -> tuple[tuple[int, int], ...]:
    """The model's operators joined into layers (Alpa, Eq. 6): first and last operator of each.

    If the default limit on a layer's FLOPs is impossible, the smallest possible limit is taken.

    Raises:
        InvalidInputError: There are fewer operators than layers.
    """
    try:
        return cluster_operators(model.flops, model.boundaries, n_layers)
    except InfeasibleClusteringError as error:
        delta = error.smallest_delta
    return cluster_operators(model.flops, model.boundaries, n_layers, delta=delta)
