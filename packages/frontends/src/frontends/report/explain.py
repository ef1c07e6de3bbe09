"""Why an operator or a value of a plan has its layouts and its stage, and what else there was.

The layouts: autoshard prices every other way to run an operator or to store an input, with all else
as it is. That takes a part of a second for each, so a plan keeps what prices are made of, and not
the prices. The stage: an operator's layer follows from what it reads (see `layers`), and which
layers make a stage was searched; the plans that were not taken say what others cost.
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
    "apply is where the largest state that it reads is kept",
)
"""By phase."""


@dataclass(frozen=True, slots=True)
class OnStage:
    """What one stage does with an operator or a value, and why."""

    stage: int
    title: str
    why_here: str
    layouts: autoshard.Explanation
    """The way that was taken, and the others with their prices."""

    sent: tuple[Transfer, ...]
    """To other stages."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a name has its layouts and its stage; prints as tables and sentences."""

    name: str
    stages: tuple[OnStage, ...]
    """Every stage that has the name; the one that makes or keeps it first."""

    other_stages: str
    """What the plan that was next best costs."""

    _plan: PlanFields

    def __str__(self) -> str:
        parts: list[str] = []
        for here in self.stages:
            parts += [here.title, "", str(here.layouts), "", here.why_here]
            parts += [self._transfer_text(transfer) for transfer in here.sent]
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
        plan: One that was searched, or read from a file that holds one.
        name: An operator, a value (which stands for the operator that makes it), or an argument
            by its path, as `params['head']`.

    Raises:
        PlanError: The plan keeps no shardings, or has nothing of that name.
    """
    shardings = [(i, s.sharding) for i, s in enumerate(plan.stages) if s.sharding is not None]
    if not shardings:
        raise PlanError(
            "only a plan that keeps its stages' shardings can explain itself; this one is of "
            "format 1 or was not searched: plan again"
        )
    found = [(i, sharding) for i, sharding in shardings if _has(sharding.graph, name)]
    if not found:
        names = dict.fromkeys(n for _, sharding in shardings for n in _names(sharding.graph))
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "str(plan) names its arguments"
        raise PlanError(f"no operator or value of the plan is called {name!r}; {hint}")
    received = {(t.destination, t.value) for t in plan.transfers}
    found.sort(key=lambda item: (item[0], name) in received)
    stages = tuple(_on_stage(plan, i, sharding, name) for i, sharding in found)
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
    peak = max(autoshard.live_bytes(sharding))  # the search's own is for other microbatches
    layouts = autoshard.explain(replace(sharding, peak_bytes=peak), name)
    why, made = _why_here(plan, index, stage, sharding.graph, name)
    sent = tuple(t for t in plan.transfers if t.source == index and t.value in made)
    return OnStage(index, title, why, layouts, sent)


def _why_here(
    plan: PlanFields, index: int, stage: Stage, graph: Graph, name: str
) -> tuple[str, tuple[str, ...]]:
    """A sentence, and the values that stand behind the name."""
    makers = [op for op in graph.operators if name == op.name or name in op.outputs]
    if makers:
        operator = makers[0]
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
        text = "optimizer state is kept with what updates it"
    else:
        text = "what no step changes is placed wherever it is read"
    phases = {op.phase for op in graph.operators if name in op.inputs}
    if role == "parameter" and phases and phases <= {BACKWARD, APPLY}:
        text = "a parameter that forward does not read is kept with what updates it"
    return f"On stage {index}: {text}.", (name,)


def _next_best(plan: PlanFields) -> str:
    """What the fastest of the plans that were not taken costs."""
    taken = f"The stages are of the plan {plan.strategy}, {seconds_text(plan.step_s)} a step"
    priced = [(a.step_s, a) for a in plan.alternatives if a.step_s is not None]
    if not priced:
        return f"{taken}; no other plan that was priced can run."
    seconds, other = min(priced, key=lambda item: item[0])
    return (
        f"{taken}; the next best plan, {other.name}, would take {seconds_text(seconds)} "
        f"({other.reason})."
    )
