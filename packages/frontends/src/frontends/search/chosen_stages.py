"""The stages that a user chose, as layers and submeshes; what no pipeline has is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import autoshard
import pipesched
import stagecut

from frontends.errors import PlanError
from frontends.price.device_pool import DevicePool
from frontends.price.parallel_options import ParallelPins


def check_ranks(
    n_ranks: int | None, per_rank: int, n_layers: int, pool: DevicePool, ways: ParallelPins
) -> None:
    """Raise `PlanError` if no pipeline has the ranks and ways that the user chose.

    Args:
        n_ranks: The number of ranks; None if it is searched.
        per_rank: Stages on each rank.
        n_layers: Layers of the step.
        pool: The devices to plan for.
        ways: The ways of parallelism that the user chose.
    """
    n_devices = pool.n_devices
    if n_ranks is not None and n_ranks > min(n_layers // per_rank, n_devices):
        each = "a stage" if per_rank == 1 else f"{per_rank} stages"
        layers = "a layer" if n_layers == 1 else f"{n_layers} layers"
        raise PlanError(
            f"each rank has a device, and {each} of a layer or more; got stages={n_ranks} for "
            f"{layers} on {n_devices} devices: take fewer, or n_layers= cuts the model into more "
            "layers, unless the step cuts the batch itself into parts that are not only added up"
        )
    _check_devices(n_ranks, n_devices, ways)


def _check_devices(n_ranks: int | None, n_devices: int, ways: ParallelPins) -> None:
    """Raise `PlanError` if devices cannot be divided into stages with the user's ways."""
    mesh = None if ways.mesh is None else math.prod(ways.mesh)
    sizes = {"dp": ways.dp, "tp": ways.tp, "the devices of mesh": mesh}
    chosen = {name: size for name, size in sizes.items() if size is not None}
    is_whole = mesh is not None or len(chosen) == 2  # else a stage may have more in another way
    most, rest = divmod(n_devices, math.prod(chosen.values()))
    if not rest and (n_ranks in (None, most) or (not is_whole and n_ranks < most)):
        return
    product = " * ".join(["stages", *chosen])
    rule = "" if is_whole else f" at most, and {''.join(chosen)} divides,"
    given = {"dp": ways.dp, "tp": ways.tp, "mesh": ways.mesh, "stages": n_ranks}
    got = [f"{name}={value}" for name, value in given.items() if value is not None]
    raise PlanError(
        f"{product} is{rule} the number of devices, {n_devices}; got {', '.join(got)}: "
        + ("choose another" if len(got) == 1 else "leave one of them out")
    )


def spans_of(
    stages: tuple[int, ...] | tuple[tuple[int, int, int], ...],
    n_layers: int,
    pool: DevicePool,
    schedule: str,
) -> list[stagecut.Span]:
    """The layers and submeshes of the stages that the user chose.

    Args:
        stages: By stage, its layers; or its layers, hosts and devices of a host.
        n_layers: Layers of the step.
        pool: The devices to plan for.
        schedule: Name of the schedule, which says how many stages are on each rank.

    Raises:
        PlanError: They are not those of the step, the cluster or the schedule.
    """
    n_devices, per_rank = pool.n_devices, pipesched.schedule_entry(schedule).stages_a_rank
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
        if rest or each == 0 or not pool.is_equal:
            raise PlanError(
                f"ranks have equally many devices; got stages= with {n_ranks} ranks for the "
                f"{n_devices} devices of cluster {pool.cluster.name!r}: say the devices of "
                "each, as (layers, hosts, devices of a host)"
            )
        given = [pool.submesh_of(pool.device_ids[:each])] * len(stages)
    used = sum(math.prod(submesh) for submesh in given) // per_rank
    submeshes = _of_kinds(given, pool) if used == n_devices else None
    if submeshes is None:
        raise PlanError(
            f"stages take all devices of the cluster, in parts of a host that divide it or in "
            f"whole hosts; got {', '.join(f'{h}x{d}' for h, d in dict.fromkeys(given))} with "
            f"{used} devices for {_hosts_text(pool)}"
        )
    ends = [*accumulate(counts)]
    return [
        (end - n, end - 1, submesh) for n, end, submesh in zip(counts, ends, submeshes, strict=True)
    ]


def _of_kinds(
    given: Sequence[tuple[int, int]], pool: DevicePool
) -> Sequence[stagecut.Submesh] | None:
    """The submeshes of stages that take the devices in the order of their ids; None if none fit."""
    if pool.is_equal:
        return given if set(given) <= {*pool.places.shapes} else None
    submeshes: list[stagecut.Submesh] = []
    first = 0
    for submesh in given:
        end = first + math.prod(submesh)
        try:
            submeshes.append(pool.submesh_of(pool.device_ids[first:end]))
        except (PlanError, autoshard.InfeasibleError):  # or too many unlike hosts
            return None
        first = end
    fits = [tuple(each) for each in submeshes] == [*given] and pool.places.can_hold(submeshes)
    return submeshes if fits else None


def _hosts_text(pool: DevicePool) -> str:
    """The hosts in words: `2 hosts of 4`, or `hosts of 4, 2`."""
    if pool.is_equal:
        return f"{pool.n_hosts} hosts of {pool.whole[1]}"
    return f"hosts of {', '.join(str(host.n_devices) for host in pool.hosts)}"
