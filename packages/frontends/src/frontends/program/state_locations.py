"""Where state and constants are when a step begins, and where its results are when it ends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from shardspec import Spec

from frontends.plan.plan_fields import PlanFields, Stored
from frontends.program.chunks import stages_of_operators
from frontends.program.instructions import Key
from frontends.program.program import LoweredPlan


@dataclass(frozen=True, slots=True)
class Result:
    """Where a result of a step is."""

    key: Key
    is_whole: bool
    """True for outputs that are not state (e.g. the loss); they are gathered on every process."""


def find_placed(plan: PlanFields, constants: Collection[str], state: Collection[str]) -> list[Key]:
    """The constants and state that stages keep before the first instruction runs.

    Args:
        plan: The plan that runs.
        constants: Names of values that are the same in every step.
        state: Names of arguments that are not batch.
    """
    copies = {(t.destination, t.value) for t in plan.transfers if t.phase == "state"}
    return [
        (stage, stored, None)
        for stage, planned in enumerate(plan.stages)
        for stored in planned.inputs
        if stored.value in constants
        or (stored.value in state and (stage, stored.value) not in copies)
    ]


def find_results(program: LoweredPlan) -> dict[str, Result]:
    """By output of the step, where it is when the step ends."""
    graph, plan = program.step.graph, program.plan
    stage_of = stages_of_operators(plan)
    stored = [{s.value: s.spec for s in stage.inputs} for stage in plan.stages]
    results: dict[str, Result] = {}
    for output in graph.outputs:
        stage = stage_of[graph.operators[graph.producers[output.value][0]].name]
        if output.alias is not None:
            spec = stored[stage][output.alias]
        else:
            spec = Spec.replicated(len(graph.value(output.value).shape))
        key = (stage, Stored(output.value, spec), None)
        results[output.value] = Result(key, output.alias is None)
    return results
