"""How long a step takes by a plan: its pipeline, simulated.

Where the schedule splits a backward, its weight gradient takes what its operators do; in a plan
without shardings, half.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pipesched

from frontends.plan import Stage, Transfer
from frontends.schedule import split_stages
from frontends.split_backward import parts_of, sent_backwards


def predict_step_s(
    stages: Sequence[Stage], transfers: Sequence[Transfer], schedule: pipesched.Schedule
) -> float:
    """Time of a step: the simulated pipeline, then the slowest apply, with what they send."""
    timeline = simulate(stages, transfers, schedule)
    apply_s: dict[tuple[int, ...], float] = defaultdict(float)
    for stage in stages:  # those of one rank take turns
        apply_s[tuple(stage.mesh.device_ids)] += stage.apply_s
    once_s = sum(t.time_s for t in transfers if t.phase in ("state", "apply"))
    return timeline.makespan_s + max(apply_s.values()) + once_s


def simulate(
    stages: Sequence[Stage], transfers: Sequence[Transfer], schedule: pipesched.Schedule
) -> pipesched.Timeline:
    """The pipeline of one step, as predicted."""
    kinds = {"forward": pipesched.Kind.FORWARD, "backward": pipesched.Kind.BACKWARD}
    edges: dict[pipesched.Edge, float] = {}
    for t in transfers:
        if t.phase in kinds:
            comes_back = t.phase == "backward" or t.destination < t.source
            to = pipesched.Kind.BACKWARD if comes_back else pipesched.Kind.FORWARD
            edge = pipesched.Edge((kinds[t.phase], t.source), (to, t.destination))
            edges[edge] = edges.get(edge, 0.0) + t.time_s
    return pipesched.simulate(
        replace(schedule, edges=tuple(edges)),
        pipesched.Costs(
            [stage.forward_s for stage in stages],
            [stage.backward_s for stage in stages],
            input_gradient_s=_input_gradients_s(stages, transfers, schedule),
            transfer_s=edges,
        ),
    )


def _input_gradients_s(
    stages: Sequence[Stage], transfers: Sequence[Transfer], schedule: pipesched.Schedule
) -> list[float] | None:
    """Of each stage; None if no backward is split."""
    split = split_stages(schedule)
    if not split:
        return None
    seconds = [stage.backward_s / 2 for stage in stages]
    for index in split:
        stage = stages[index]
        if stage.sharding is not None:
            parts = parts_of(stage.sharding, sent_backwards(transfers, index))
            seconds[index] = max(0.0, stage.backward_s - parts.weight_gradient_s)
    return seconds
