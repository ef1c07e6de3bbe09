"""Where values are when a step begins, and where its results are when it ends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from shardspec import Spec

from frontends.plan.plan_fields import PlanFields, Stored
from frontends.program.chunks import stages_of_operators
from frontends.program.instructions import Key
from frontends.program.program import Program


@dataclass(frozen=True, slots=True)
class Result:
    """Where a result ends up."""

    key: Key
    is_whole: bool
    """Not state: the user asks for it."""


def find_placed(plan: PlanFields, constants: Collection[str], state: Collection[str]) -> list[Key]:
    """What is there before the first instruction, where it is kept.

    Args:
        plan: What runs.
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


def find_results(program: Program) -> dict[str, Result]:
    """Where each output of the step ends up, by the name of its value."""
    graph, plan = program.step.graph, program.plan
    stage_of = stages_of_operators(plan)
    stored = [{s.value: s.spec for s in stage.inputs} for stage in plan.stages]
    found: dict[str, Result] = {}
    for output in graph.outputs:
        stage = stage_of[graph.operators[graph.producers[output.value][0]].name]
        if output.alias is not None:
            spec = stored[stage][output.alias]
        else:
            spec = Spec.replicated(len(graph.value(output.value).shape))
        key = (stage, Stored(output.value, spec), None)
        found[output.value] = Result(key, output.alias is None)
    return found
