"""The obvious plan, priced for comparison: every stage gets as many layers and devices."""

from stagecut.errors import InfeasibleStagesError, InvalidInputError
from stagecut.plan import (
    BoundaryFunction,
    CostFunction,
    Slicing,
    StageSlice,
    pipeline_time_s,
)
from stagecut.schedule import InFlightFunction, one_f_one_b
from stagecut.submesh import submesh_shapes


def equal_layers(
    n_layers: int,
    cluster_shape: tuple[int, int],
    n_microbatches: int,
    cost: CostFunction,
    memory_bytes: int | None = None,
    *,
    n_stages: int,
    boundary_s: BoundaryFunction | None = None,
    in_flight: InFlightFunction = one_f_one_b,
) -> Slicing:
    """Price the slicing into `n_stages` stages of equal submeshes and, up to one, equal layers.

    The arguments mean what they mean for `slice_stages`. The first stages get the layers left over.

    Returns:
        This one slicing, in the form of a searched one: its lower bound is its own time, and it has
        no alternatives.

    Raises:
        InvalidInputError: There are fewer layers than stages, or no submesh that many times.
        InfeasibleStagesError: A stage has no price or does not fit.
    """
    n_devices = cluster_shape[0] * cluster_shape[1]
    by_size = {n * m: (n, m) for n, m in submesh_shapes(*cluster_shape)}
    submesh = by_size.get(n_devices // n_stages) if 1 <= n_stages <= n_layers else None
    if submesh is None or n_devices % n_stages or n_microbatches < 1:
        raise InvalidInputError(
            "equal stages need a layer each, as many devices each as a submesh can have, and a "
            f"microbatch; got n_stages={n_stages}, n_layers={n_layers}, "
            f"cluster_shape={tuple(cluster_shape)} with submeshes of {tuple(by_size)} devices, "
            f"n_microbatches={n_microbatches}"
        )
    size, left_over = divmod(n_layers, n_stages)
    stages, times = [], []
    first = 0
    for stage in range(n_stages):
        last = first + size - (stage >= left_over)
        priced = cost(first, last, submesh)
        if priced is None:
            raise InfeasibleStagesError(
                f"every stage must have a cost; got None for stage {stage} of {n_stages}, "
                f"layers {first}-{last} on {submesh}",
                stage=stage,
                layers=(first, last),
            )
        peak = priced.peak_bytes(in_flight(n_stages - stage, n_microbatches))
        if memory_bytes is not None and peak > memory_bytes:
            raise InfeasibleStagesError(
                f"a stage must fit in memory_bytes={memory_bytes} a device; got {peak} bytes for "
                f"stage {stage} of {n_stages}, layers {first}-{last} on {submesh}",
                peak_bytes=peak,
                stage=stage,
                layers=(first, last),
            )
        stages.append(StageSlice(first, last, submesh, priced))
        times.append(priced.time_s + (boundary_s(first) if boundary_s and first else 0.0))
        first = last + 1
    time_s = pipeline_time_s(times, n_microbatches)
    return Slicing(tuple(stages), time_s, time_s, n_stages, ())
