"""How long a step takes by a plan: its pipeline, simulated.

Copies of a stage run alike, on equal meshes; each is taken to need what the slowest does. Where the
schedule splits a backward, its weight gradient takes what its operators do; in a plan
without shardings, half.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pipesched

from frontends.layers.split_backward import parts_of, sent_backwards
from frontends.plan.plan_fields import PlanFields, Stage, Transfer
from frontends.plan.schedule import each_copy, schedule_of, split_stages


def predict_step_s(
    stages: Sequence[Stage], transfers: Sequence[Transfer], schedule: pipesched.Schedule
) -> float:
    """Time of a step: the simulated pipeline, then the slowest apply, with what they send."""
    timeline = simulate(stages, transfers, schedule)
    apply_s: dict[tuple[int, ...], float] = defaultdict(float)
    for stage in stages:  # those of one rank take turns
        apply_s[tuple(stage.mesh.device_ids)] += stage.apply_s
    once_s = dict.fromkeys(apply_s, 0.0)
    for t in transfers:  # those of other ranks go on at the same time
        if t.phase in ("state", "apply"):
            for index in {t.source, t.destination}:
                once_s[tuple(stages[index].mesh.device_ids)] += t.time_s
    return timeline.makespan_s + max(apply_s.values()) + max(once_s.values())


def timeline_of(plan: PlanFields) -> pipesched.Timeline:
    """The pipeline of one step of a plan, as predicted.

    Raises:
        PlanError: The plan has no schedule that runs.
        pipesched.PipeschedError: The schedule does not fit what stages send each other.
    """
    return simulate(plan.stages, plan.transfers, schedule_of(plan))


def simulate(
    stages: Sequence[Stage], transfers: Sequence[Transfer], schedule: pipesched.Schedule
) -> pipesched.Timeline:
    """The pipeline of one step, as predicted."""
    kinds = {"forward": pipesched.Kind.FORWARD, "backward": pipesched.Kind.BACKWARD}
    size = schedule.n_stages
    edges_of: dict[int, dict[pipesched.Edge, float]] = defaultdict(dict)  # by route
    for t in transfers:
        if t.phase in kinds:
            comes_back = t.phase == "backward" or t.destination < t.source
            to = pipesched.Kind.BACKWARD if comes_back else pipesched.Kind.FORWARD
            source, destination = t.source % size, t.destination % size
            edge = pipesched.Edge((kinds[t.phase], source), (to, destination))
            edges = edges_of[t.source // size]
            edges[edge] = edges.get(edge, 0.0) + t.time_s
    slowest: dict[pipesched.Edge, float] = {}
    for edges in edges_of.values():
        for edge, seconds in edges.items():
            slowest[edge] = max(seconds, slowest.get(edge, 0.0))
    return pipesched.simulate(
        replace(schedule, edges=tuple(slowest)),
        pipesched.Costs(
            _slowest(size, [stage.forward_s for stage in stages]),
            _slowest(size, [stage.backward_s for stage in stages]),
            input_gradient_s=_input_gradients_s(stages, transfers, schedule),
            transfer_s=slowest,
        ),
    )


def _slowest(size: int, each: Sequence[float]) -> list[float]:
    """Of the copies of each of `size` stages."""
    return [max(each[stage::size]) for stage in range(size)]


def _input_gradients_s(
    stages: Sequence[Stage], transfers: Sequence[Transfer], schedule: pipesched.Schedule
) -> list[float] | None:
    """Of each stage; None if no backward is split."""
    split = split_stages(each_copy(schedule))
    if not split:
        return None
    seconds = [stage.backward_s / 2 for stage in stages]
    for index in split:
        stage = stages[index]
        if stage.sharding is not None:
            parts = parts_of(stage.sharding, sent_backwards(transfers, index))
            seconds[index] = max(0.0, stage.backward_s - parts.weight_gradient_s)
    return _slowest(schedule.n_stages, seconds)
