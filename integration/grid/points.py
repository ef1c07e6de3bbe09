"""The grid: what experts set by hand, in the words of `plan_for`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import frontends.jax as mw
from costmodel import Cluster
from frontends import NoPlanError, Plan, PlanError
from zoo.example import Example

REMATS = ("none", "dots", "all")
SCHEDULES = ("1f1b", "eager-1f1b", "interleaved-1f1b:2", "interleaved-1f1b:4", "zb-h1", "zb-v")


@dataclass(frozen=True, slots=True)
class Point:
    """A plan of the grid."""

    microbatches: int
    stages: int
    tp: int
    dp: int
    zero: int
    remat: str
    schedule: str | None

    def options(self) -> dict[str, Any]:
        """The plan as options of `plan_for`."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def points(cluster: Cluster, batch: int) -> Iterator[Point]:
    """All plans of the grid for a cluster and a number of examples."""
    n, per_host = cluster.n_devices, cluster.devices_per_host
    for microbatches, stages, tp in product(_powers(batch), _powers(n), _powers(per_host)):
        dp = n // (stages * tp)
        if dp < 1 or batch % (microbatches * dp) or (stages > 1 and microbatches < stages):
            continue
        zeros = (0, 1, 2, 3) if dp > 1 else (0,)
        schedules = (None,) if stages == 1 else SCHEDULES
        for zero, remat, schedule in product(zeros, REMATS, schedules):
            yield Point(microbatches, stages, tp, dp, zero, remat, schedule)


def planned(example: Example, cluster: Cluster, **options: Any) -> Plan:
    """A plan of a step."""
    step, arguments, batch = example.step, example.arguments, example.batch_argnums
    return mw.plan_for(step, arguments, cluster, batch_argnums=batch, advise=False, **options).plan


def plan_at(point: Point, example: Example, cluster: Cluster) -> Plan | None:
    """The plan at a point; None if the step or the cluster cannot have it, or it does not fit."""
    try:
        return planned(example, cluster, **point.options())
    except (NoPlanError, PlanError):
        return None


def _powers(most: int) -> Iterator[int]:
    """The powers of two up to a number."""
    power = 1
    while power <= most:
        yield power
        power *= 2
