"""Explain why an operator or a value of a plan has its layouts and its stage.

Layouts: autoshard prices every other strategy of an operator, or layout of an input, with all else
unchanged. This takes a fraction of a second for each, so a plan keeps the data that prices follow
from, and not the prices. Stage: an operator's layer follows from what it reads (see `layers`), and
the search decides which layers make a stage; the plans that were not chosen show what other stages
cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches

import autoshard
from autoshard import Graph, Sharding
from shardspec.amounts import bytes_text, seconds_text

from frontends.errors import PlanError
from frontends.plan.plan_fields import PlanFields, Stage, Transfer
from frontends.report.text import describe_devices, describe_layers, describe_mesh, runs_per_step
from frontends.step.step import APPLY, BACKWARD, PHASE_NAMES

_WHY_OPERATOR = (
    "forward operators are cut into layers in the order of the program",
    "a backward operator is in the last layer that holds what it reads",
    "an operator of apply is where the largest state that it reads is kept",
)
"""By phase, why an operator is on its stage."""


@dataclass(frozen=True, slots=True)
class OnStage:
    """How one stage runs an operator or stores a value, and why."""

    stage: int
    title: str
    why_here: str
    layouts: autoshard.Explanation
    """The chosen strategy or layout, and the others with their prices."""

    sent: tuple[Transfer, ...]
    """Transfers of the values to other stages."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a name has its layouts and its stage; prints as tables and sentences."""

    name: str
    stages: tuple[OnStage, ...]
    """Every stage that has the name; the one that computes or keeps it comes first."""

    other_stages: str
    """A sentence about the next best plan and its cost."""

    _plan: PlanFields

    def __str__(self) -> str:
        parts: list[str] = []
        for stage in self.stages:
            parts += [stage.title, "", str(stage.layouts), "", stage.why_here]
            parts += [self._transfer_text(transfer) for transfer in stage.sent]
            parts.append("")
        return "\n".join([*parts, self.other_stages])

    def _transfer_text(self, t: Transfer) -> str:
        runs = runs_per_step(self._plan, t)
        return (
            f"It is sent to stage {t.destination} as {t.dst_spec}: {bytes_text(t.n_bytes)} in "
            f"{seconds_text(t.time_s)}, {runs} times a step."
        )


def explain(plan: PlanFields, name: str) -> Explanation:
    """Why an operator or a value has its layouts and its stage.

    Args:
        plan: A plan that keeps the shardings of its stages.
        name: An operator, a value (which stands for the operator that computes it), or an argument
            by its path, such as `params['head']`.

    Raises:
        PlanError: The plan keeps no shardings, or has no operator or value of that name.
    """
    shardings = [(i, s.sharding) for i, s in enumerate(plan.stages) if s.sharding is not None]
    if not shardings:
        raise PlanError(
            "only a plan that keeps its stages' shardings can explain itself; this one is of "
            "format 1 or was not searched: plan again"
        )
    having = [(i, sharding) for i, sharding in shardings if _has(sharding.graph, name)]
    if not having:
        names = dict.fromkeys(n for _, sharding in shardings for n in _names(sharding.graph))
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "str(plan) names its arguments"
        raise PlanError(f"no operator or value of the plan is called {name!r}; {hint}")
    received = {(t.destination, t.value) for t in plan.transfers}
    having.sort(key=lambda item: (item[0], name) in received)
    stages = tuple(_on_stage(plan, i, sharding, name) for i, sharding in having)
    return Explanation(name, stages, _next_best(plan), plan)


def _names(graph: Graph) -> list[str]:
    return [*(operator.name for operator in graph.operators), *graph.by_name]


def _has(graph: Graph, name: str) -> bool:
    return name in graph.by_name or any(operator.name == name for operator in graph.operators)


def _on_stage(plan: PlanFields, index: int, sharding: Sharding, name: str) -> OnStage:
    stage = plan.stages[index]
    title = (
        f"{name} on stage {index}: layers {describe_layers(stage)}, mesh "
        f"{describe_mesh(stage.mesh)}, devices {describe_devices(stage.mesh.device_ids)}"
    )
    # The search computed the peak for another number of microbatches in flight.
    peak = max(autoshard.live_bytes(sharding))
    layouts = autoshard.explain(replace(sharding, peak_bytes=peak), name)
    why, values = _why_here(plan, index, stage, sharding.graph, name)
    sent = tuple(t for t in plan.transfers if t.source == index and t.value in values)
    return OnStage(index, title, why, layouts, sent)


def _why_here(
    plan: PlanFields, index: int, stage: Stage, graph: Graph, name: str
) -> tuple[str, tuple[str, ...]]:
    """Why a name is on a stage, as a sentence, and the values that it stands for."""
    producers = [op for op in graph.operators if name == op.name or name in op.outputs]
    if producers:
        operator = producers[0]
        phase = PHASE_NAMES[operator.phase]
        text = f"On stage {index} in {phase}: {_WHY_OPERATOR[operator.phase]}."
        return text, operator.outputs
    for transfer in plan.transfers:
        if transfer.destination == index and transfer.value == name:
            return f"On stage {index} because it is read here; stage {transfer.source} has it.", ()
    role = graph.value(name).role
    if role == "parameter":
        text = "a parameter is kept where forward reads it first"
    elif role == "optimizer_state":
        text = "optimizer state is kept where it is updated"
    else:
        text = "an input that the step does not update is on every stage that reads it"
    phases = {op.phase for op in graph.operators if name in op.inputs}
    if role == "parameter" and phases and phases <= {BACKWARD, APPLY}:
        text = "a parameter that forward does not read is kept where it is updated"
    return f"On stage {index}: {text}.", (name,)


def _next_best(plan: PlanFields) -> str:
    """A sentence about the fastest of the plans that were not chosen, and its cost."""
    chosen = f"The stages are those of the plan {plan.strategy}, {seconds_text(plan.step_s)} a step"
    priced = [(a.step_s, a) for a in plan.alternatives if a.step_s is not None]
    if not priced:
        return f"{chosen}; no other plan that was priced can run."
    seconds, other = min(priced, key=lambda item: item[0])
    return (
        f"{chosen}; the next best plan, {other.name}, would take {seconds_text(seconds)} "
        f"({other.reason})."
    )
