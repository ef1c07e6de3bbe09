"""The stages that a user chose, as layers and submeshes; what no pipeline has is refused."""

from __future__ import annotations

import math
from itertools import accumulate

import pipesched
import stagecut
from costmodel import Cluster

from frontends.errors import PlanError
from frontends.price.parallel_options import ParallelPins, submesh_of


def check_ranks(
    n_ranks: int | None, per_rank: int, n_layers: int, cluster: Cluster, ways: ParallelPins
) -> None:
    """Raise `PlanError` if no pipeline has the ranks and ways that the user chose.

    Args:
        n_ranks: The number of ranks; None if it is searched.
        per_rank: Stages on each rank.
        n_layers: Layers of the step.
        cluster: The cluster to plan for.
        ways: The ways of parallelism that the user chose.
    """
    n_devices = cluster.n_devices
    if n_ranks is not None and n_ranks > min(n_layers // per_rank, n_devices):
        raise PlanError(
            f"each rank has a device, and {per_rank} stages of a layer or more; got "
            f"stages={n_ranks} for {n_layers} layers on {n_devices} devices: take fewer, "
            "or n_layers= cuts the model into more layers"
        )
    if ways.dp is not None and ways.tp is not None:
        fitting, rest = divmod(n_devices, ways.dp * ways.tp)
        if rest or fitting == 0 or n_ranks not in (None, fitting):
            raise PlanError(
                f"stages * dp * tp is the number of devices, {n_devices}; got "
                f"dp={ways.dp}, tp={ways.tp}"
                + (f", stages={n_ranks}" if n_ranks else "")
                + ": leave one of them out"
            )


def spans_of(
    stages: tuple[int, ...] | tuple[tuple[int, int, int], ...],
    n_layers: int,
    cluster: Cluster,
    schedule: str,
) -> list[stagecut.Span]:
    """The layers and submeshes of the stages that the user chose.

    Args:
        stages: By stage, its layers; or its layers, hosts and devices of a host.
        n_layers: Layers of the step.
        cluster: The cluster to plan for.
        schedule: Name of the schedule, which says how many stages are on each rank.

    Raises:
        PlanError: They are not those of the step, the cluster or the schedule.
    """
    n_devices, per_rank = cluster.n_devices, pipesched.schedule_entry(schedule).stages_a_rank
    counts = [stage if isinstance(stage, int) else stage[0] for stage in stages]
    n_ranks, rest = divmod(len(stages), per_rank)
    if rest:
        raise PlanError(
            f"{schedule} has {per_rank} stages on each rank; got stages= with "
            f"{len(stages)} stages: give a multiple"
        )
    if sum(counts) != n_layers:
        raise PlanError(
            f"stages= has all layers of the step, which is cut into {n_layers}; got "
            f"{counts}, which are {sum(counts)}: n_layers= changes how many there are"
        )
    given = [stage[1:] for stage in stages if not isinstance(stage, int)]
    if not given:
        each, rest = divmod(n_devices, n_ranks)
        if rest or each == 0:
            raise PlanError(
                f"ranks have equally many devices; got stages= with {n_ranks} ranks for the "
                f"{n_devices} devices of cluster {cluster.name!r}: say the devices of "
                "each, as (layers, hosts, devices of a host)"
            )
        given = [submesh_of(each, cluster)] * len(stages)
    known = stagecut.submesh_shapes(cluster.n_hosts, cluster.devices_per_host)
    used = sum(math.prod(submesh) for submesh in given) // per_rank
    if used != n_devices or not set(given) <= {*known}:
        raise PlanError(
            f"stages take all devices of the cluster, in parts of a host that divide it or in "
            f"whole hosts; got {', '.join(f'{h}x{d}' for h, d in dict.fromkeys(given))} with "
            f"{used} devices for {cluster.n_hosts} hosts of {cluster.devices_per_host}"
        )
    ends = [*accumulate(counts)]
    return [
        (end - n, end - 1, submesh) for n, end, submesh in zip(counts, ends, given, strict=True)
    ]
