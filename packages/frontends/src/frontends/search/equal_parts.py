"""Plan on a cluster of unlike hosts: on all devices, and on each part whose hosts are equal.

Some plans need equal hosts: the baseline of equal layers, and schedules with several stages on each
rank. And a search over all devices looks at few of many slicings. So the parts are searched, too,
unless a bound says that they are slower, and no plan is slower than the best one of a part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import autoshard
from autoshard import Graph
from costmodel import Cluster, Device, UnknownDtypeError

from frontends.answer.plan import Plan
from frontends.errors import NoPlanError, PlanError
from frontends.plan.plan_fields import Alternative
from frontends.price.device_pool import DevicePool


@dataclass(frozen=True)
class ClusterParts:
    """The parts of a cluster to plan on."""

    pools: tuple[DevicePool, ...]
    """All devices that can run the step, then parts of these with equal hosts."""

    left_out: tuple[Alternative, ...] = ()
    """The devices that cannot run the step, and why."""


def parts_of(cluster: Cluster, memory_bytes: int | None, graph: Graph) -> ClusterParts:
    """The parts of a cluster to plan a step on; equal hosts have one, which is all.

    Args:
        cluster: The cluster.
        memory_bytes: Memory limit of each device; None for what each has.
        graph: The step.
    """
    whole = DevicePool(cluster, memory_bytes)
    if whole.is_equal:
        return ClusterParts((whole,))
    left_out: dict[Device, Alternative] = {}
    for device, n in whole.kinds.items():
        reason = _missing(device, graph)
        if reason is not None:
            name = f"{n} devices {device.name}"
            left_out[device] = Alternative(name, None, None, reason)
    if len(left_out) == len(whole.kinds):  # then the search says what is missing
        return ClusterParts((whole,))
    if left_out:
        kinds = [host.device for host in cluster.hosts for _ in range(host.n_devices)]
        kept = (i for i, device in enumerate(kinds) if device not in left_out)
        whole = DevicePool(cluster, memory_bytes, kept)
    return ClusterParts((whole, *equal_parts_of(whole)), tuple(left_out.values()))


def equal_parts_of(pool: DevicePool) -> list[DevicePool]:
    """The parts of unlike hosts that are equal, the one with most devices first.

    For each kind of host, these are as many devices of each host that has the same devices, and so
    many of them or more.
    """
    parts: dict[tuple[int, ...], DevicePool] = {}
    for kind in dict.fromkeys(() if pool.is_equal else pool.hosts):
        ids: list[int] = []
        for host, row in zip(pool.hosts, pool.rows, strict=True):
            if host.device == kind.device and host.n_devices >= kind.n_devices:
                ids += row[: kind.n_devices]
        part = DevicePool(pool.cluster, pool.memory_bytes, ids)
        if part.is_equal:
            parts.setdefault(part.device_ids, part)
    return sorted(parts.values(), key=lambda part: -part.n_devices)


def fastest_of(
    parts: ClusterParts,
    search: Callable[[DevicePool], Plan],
    bound_s: Callable[[DevicePool], float],
) -> Plan:
    """The fastest plan over the parts of a cluster, with the others as alternatives.

    Args:
        parts: The parts.
        search: Returns the fastest plan on some devices.
        bound_s: Lower bound of the time of a step on some devices, in seconds.

    Raises:
        NoPlanError, PlanError: No part has a plan; the error is that of all devices.
    """
    whole, *others = parts.pools
    plans: dict[DevicePool, Plan] = {}
    failed: dict[DevicePool, Exception] = {}
    skipped: dict[DevicePool, float] = {}
    for pool in parts.pools:
        least_s = bound_s(pool) if others else 0.0
        if plans and least_s >= min(plan.step_s for plan in plans.values()):
            skipped[pool] = least_s
            continue
        try:
            plans[pool] = search(pool)
        except (NoPlanError, PlanError) as error:
            if not others:
                raise
            failed[pool] = error
    if not plans:
        raise failed[whole]
    chosen = min(plans, key=lambda pool: plans[pool].step_s)
    best = plans[chosen]
    alternatives = [
        *(_slower(_named(p, whole), plan, best) for p, plan in plans.items() if p is not chosen),
        *(
            Alternative(_named(pool, whole), least_s, None, _at_least(least_s, best))
            for pool, least_s in skipped.items()
        ),
        *(Alternative(_named(p, whole), None, None, str(error)) for p, error in failed.items()),
        *parts.left_out,
    ]
    return replace(best, alternatives=(*best.alternatives, *alternatives))


def _missing(device: Device, graph: Graph) -> str | None:
    """Why a device cannot run a step; None if it can."""
    dtypes = {value.name: value.dtype for value in graph.values}
    wanted = dict.fromkeys(
        autoshard.arithmetic_dtype(op.rule, tuple(dtypes[n] for n in (*op.inputs, *op.outputs)))
        for op in graph.operators
    )
    try:
        for dtype in wanted:
            device.units(dtype)
    except UnknownDtypeError as error:
        return str(error)
    return None


def _named(pool: DevicePool, whole: DevicePool) -> str:
    """A part in words: `devices 0-7 alone`."""
    if pool is whole:
        return f"all {pool.n_devices} devices"
    return f"device{'s' * (pool.n_devices > 1)} {_runs(pool.device_ids)} alone"


def _runs(ids: Sequence[int]) -> str:
    """Ids with runs shortened: `0-3, 6-7`."""
    texts: list[str] = []
    for _, run in groupby(enumerate(ids), key=lambda pair: pair[1] - pair[0]):
        first, *_, last = [*(device for _, device in run)] * 2
        texts.append(str(first) if first == last else f"{first}-{last}")
    return ", ".join(texts)


def _slower(name: str, plan: Plan, best: Plan) -> Alternative:
    ratio = f"{plan.step_s / best.step_s:.2f} times as long a step" if best.step_s else "as fast"
    return Alternative(name, plan.step_s, plan.memory_bytes, f"{ratio}, by {plan.strategy}")


def _at_least(least_s: float, best: Plan) -> str:
    ratio = least_s / best.step_s if best.step_s else 1.0
    return f"at least {ratio:.2f} times as long a step: a bound, nothing was searched"
