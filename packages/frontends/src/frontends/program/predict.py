"""Predict the time of a step by simulating the pipeline of its plan.

The replicas of a stage run alike, on equal meshes; each is assumed to take as long as the slowest.
If the schedule splits a backward, the weight gradient takes the time of its operators; in a plan
without shardings, half of the backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pipesched

from frontends.layers.split_backward import parts_of, sent_backwards
from frontends.plan.plan_fields import PlanFields, Stage, Transfer
from frontends.plan.schedule import each_copy, edge_of, schedule_of, split_stages


def predict_step_s(
    stages: Sequence[Stage], transfers: Sequence[Transfer], schedule: pipesched.Schedule
) -> float:
    """Time of a step: the simulated pipeline, the slowest apply, and transfers once a step."""
    timeline = simulate(stages, transfers, schedule)
    apply_s: dict[tuple[int, ...], float] = defaultdict(float)
    for stage in stages:  # stages of one rank take turns
        apply_s[tuple(stage.mesh.device_ids)] += stage.apply_s
    once_s = dict.fromkeys(apply_s, 0.0)
    for t in transfers:  # different ranks send at the same time
        if t.phase in ("state", "apply"):
            for index in {t.source, t.destination}:
                once_s[tuple(stages[index].mesh.device_ids)] += t.time_s
    return timeline.makespan_s + max(apply_s.values()) + max(once_s.values())


def timeline_of(plan: PlanFields) -> pipesched.Timeline:
    """The simulated pipeline of one step of a plan.

    Raises:
        PlanError: The schedule of the plan cannot run.
        pipesched.PipeschedError: The schedule does not fit the transfers between stages.
    """
    return simulate(plan.stages, plan.transfers, schedule_of(plan))


def simulate(
    stages: Sequence[Stage], transfers: Sequence[Transfer], schedule: pipesched.Schedule
) -> pipesched.Timeline:
    """The simulated pipeline of one step."""
    edges = tuple(_transfers_s(stages, transfers, schedule.n_stages))
    costs = costs_of(stages, transfers, schedule)
    return pipesched.simulate(replace(schedule, edges=edges), costs)


def costs_of(
    stages: Sequence[Stage], transfers: Sequence[Transfer], schedule: pipesched.Schedule
) -> pipesched.Costs:
    """The seconds of a plan's stages and transfers, as pipesched takes them.

    Over an edge of the schedule that has no transfer, as to a stage that trains nothing, it is 0.
    """
    size = schedule.n_stages
    nothing = dict.fromkeys(schedule.edges, 0.0)
    return pipesched.Costs(
        _slowest(size, [stage.forward_s for stage in stages]),
        _slowest(size, [stage.backward_s for stage in stages]),
        input_gradient_s=_input_gradients_s(stages, transfers, schedule),
        transfer_s=nothing | _transfers_s(stages, transfers, size),
    )


def _transfers_s(
    stages: Sequence[Stage], transfers: Sequence[Transfer], size: int
) -> dict[pipesched.Edge, float]:
    """By edge of a schedule of `size` stages, the seconds of its transfers for one microbatch."""
    edges_of: dict[int, dict[pipesched.Edge, float]] = defaultdict(dict)  # by route
    for t in transfers:
        if copied := edge_of(t, stages):
            (produced, source), (read, destination) = copied.src, copied.dst
            edge = pipesched.Edge((produced, source % size), (read, destination % size))
            edges = edges_of[t.source // size]
            edges[edge] = edges.get(edge, 0.0) + t.time_s
    slowest: dict[pipesched.Edge, float] = {}
    for edges in edges_of.values():
        for edge, seconds in edges.items():
            slowest[edge] = max(seconds, slowest.get(edge, 0.0))
    return slowest


def _slowest(size: int, each: Sequence[float]) -> list[float]:
    """By stage, the maximum over its replicas; `size` is the number of stages without replicas."""
    return [max(each[stage::size]) for stage in range(size)]


def _input_gradients_s(
    stages: Sequence[Stage], transfers: Sequence[Transfer], schedule: pipesched.Schedule
) -> list[float] | None:
    """By stage, the time of its input gradient; None if no backward is split."""
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
