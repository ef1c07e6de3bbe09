"""How long a step takes by a plan: its pipeline, simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pipesched

from frontends.plan import Stage, Transfer


def predict_step_s(
    stages: Sequence[Stage], transfers: Sequence[Transfer], schedule: pipesched.Schedule
) -> float:
    """Time of a step: the simulated pipeline, then the slowest apply, with what they send."""
    timeline = simulate(stages, transfers, schedule)
    once_s = sum(t.time_s for t in transfers if t.phase in ("state", "apply"))
    return timeline.makespan_s + max(stage.apply_s for stage in stages) + once_s


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
            transfer_s=edges,
        ),
    )
