"""Cut the layers of a step into the stages of an earlier plan, with its state where that keeps it.

The same step with another batch usually has the same layers. With a longer loop it has more, and
state that is updated from the batch alone (such as its running mean) may be in another layer. The
layers are then cut so that most state is in the stage that keeps it; the new version of the rest is
sent to that stage at the end of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pipesched
from autoshard import Operator
from shardspec.amounts import bytes_text

from frontends.answer.plan import Plan
from frontends.errors import HeldLayoutError
from frontends.layers.layer_assignment import in_levels
from frontends.layers.layers import LayeredStep, layer, layer_as
from frontends.plan.plan_fields import Stage
from frontends.step.step import APPLY, STATE, TrainingStep, identity

_FINER = (2, 4)
"""Multiples of the earlier plan's number of layers to try, if the step's layers do not correspond
to those of the plan [chosen]."""

_MOST_HANDED = 0.25
"""The largest share of state, by bytes, that may be sent to its stage in each step [chosen]: with
more, it is better to plan the step on its own, and to move the state before it."""

Spans = list[tuple[int, int]]


def layers_of_held(
    step: TrainingStep, hold: Plan, *, sends_state: bool = False
) -> tuple[LayeredStep, Spans]:
    """The layers of a step, and the first and last layer of each stage, replicas left out.

    Args:
        step: A step that shares state, by name, with that of the plan, or the plan's step itself.
        hold: The earlier plan.
        sends_state: Whether any part of the state may be sent to another stage in each step.

    Raises:
        HeldLayoutError: The step has fewer layers than the plan has stages, or too much state would
            be in another stage than the one that keeps it.
    """
    stages = without_copies(hold)
    read = {name for op in step.graph.operators for name in op.inputs}
    n_layers = stages[-1].last_layer + 1
    stage_of = {
        name: stage
        for name, stage in _stage_of_state(hold).items()
        if name in read and step.graph.value(name).role in STATE
    }
    as_planned = _holding(layer_as(step, hold), stage_of)
    tries: list[tuple[LayeredStep, Spans]] = []
    if as_planned.n_layers == n_layers:
        tries.append((as_planned, [(stage.first_layer, stage.last_layer) for stage in stages]))
    wanted: tuple[int | None, ...] = (as_planned.n_layers, None, *(n * n_layers for n in _FINER))
    if tries and step.fingerprint == hold.step:  # the plan's own layers, wherever it keeps state
        wanted = ()
    best: tuple[int, LayeredStep, Spans] | None = None
    while tries or wanted:
        if not tries:
            n, *rest = wanted
            wanted = tuple(rest)
            layered = as_planned if n == as_planned.n_layers else _holding(layer(step, n), stage_of)
            if layered.n_layers < len(stages):
                continue
            tries.append((layered, _cut(layered, len(stages), stage_of)))
        layered, spans = tries.pop()
        n_bytes = sum(_misplaced(layered, spans, stage_of).values())
        if best is None or n_bytes < best[0]:
            best = n_bytes, layered, spans
        if n_bytes == 0:
            break
    if best is None:
        raise HeldLayoutError(
            "a step in held layouts has a layer for each stage of the earlier plan; this one has "
            f"{as_planned.n_layers}, and the plan {len(stages)} stages: plan it on its own, and "
            "move the state"
        )
    n_bytes, layered, spans = best
    wrong = _misplaced(layered, spans, stage_of)
    graph = layered.step.graph
    whole = sum(graph.value(name).n_bytes for name in layered.kept)
    if n_bytes > _MOST_HANDED * whole and not sends_state:
        raise HeldLayoutError(
            "a step that shares its state with a plan reads it in the order of the plan's stages; "
            f"this one has {bytes_text(n_bytes)} of {bytes_text(whole)} in other stages than keep "
            f"them, such as {', '.join([*wrong][:3])}: plan it on its own, and move the state"
        )
    return _handed(layered, {name: spans[stage_of[name]][0] for name in wrong}), spans


def _holding(layered: LayeredStep, stage_of: Mapping[str, int]) -> LayeredStep:
    """The layers of a step that only reads some of the state that a plan keeps in one stage."""
    return replace(layered, held=frozenset(stage_of) - layered.updated)


def without_copies(plan: Plan) -> tuple[Stage, ...]:
    """The stages of a plan, without those that are replicas of others."""
    name = plan.schedule_name
    n_copies = 1
    if pipesched.is_schedule(name) and len(plan.stages) > 1:
        n_copies = pipesched.schedule_entry(name).copies_of_stages
    return plan.stages[: len(plan.stages) // n_copies]


def _stage_of_state(hold: Plan) -> dict[str, int]:
    """By value that one stage keeps and no other one, this stage."""
    received = {(t.destination, t.value) for t in hold.transfers}
    stages_of: dict[str, list[int]] = {}
    for index, stage in enumerate(without_copies(hold)):
        for stored in stage.inputs:
            if (index, stored.value) not in received:
                stages_of.setdefault(stored.value, []).append(index)
    return {name: stages[0] for name, stages in stages_of.items() if len(stages) == 1}


def _misplaced(
    layered: LayeredStep, spans: Sequence[tuple[int, int]], stage_of: Mapping[str, int]
) -> dict[str, int]:
    """By state that would be in another stage than the one that keeps it, its bytes."""
    at = {k: i for i, (first, last) in enumerate(spans) for k in range(first, last + 1)}
    graph = layered.step.graph
    return {
        name: graph.value(name).n_bytes
        for name in graph.inputs
        if name in layered.kept
        and name in stage_of
        and at.get(layered.home[name]) != stage_of[name]
    }


def _cut(layered: LayeredStep, n_stages: int, stage_of: Mapping[str, int]) -> Spans:
    """The layers of each stage, cut so that the most bytes of state are in the stage that keeps it.

    Dynamic programming over the layers: `most[s]` is the most bytes in place if the layers so far
    end in stage s, and `began[k][s]` says whether layer k then begins that stage.
    """
    graph = layered.step.graph
    in_place = [[0] * n_stages for _ in range(layered.n_layers)]
    for name in graph.inputs:
        if name in layered.kept and name in stage_of:
            in_place[layered.home[name]][stage_of[name]] += graph.value(name).n_bytes
    most: list[float] = [0.0] + [float("-inf")] * (n_stages - 1)
    most[0] = in_place[0][0]
    began = [[True] * n_stages]
    for row in in_place[1:]:
        begins = [s > 0 and most[s - 1] > most[s] for s in range(n_stages)]
        most = [(most[s - 1] if begins[s] else most[s]) + row[s] for s in range(n_stages)]
        began.append(begins)
    stage, firsts = n_stages - 1, [layered.n_layers]
    for k in reversed(range(layered.n_layers)):
        if began[k][stage]:
            firsts.append(k)
            stage -= 1
        if stage < 0:
            break
    firsts = [0, *firsts[::-1][1:]]
    return [(a, b - 1) for a, b in pairwise(firsts)]


def _handed(layered: LayeredStep, home: Mapping[str, int]) -> LayeredStep:
    """The step with some state kept in the layers of `home`, by name.

    The new version of state is passed to the layer that keeps it, by an identity in that layer.
    """
    if not home:
        return layered
    graph = layered.step.graph
    layer_of, homes = dict(layered.layer_of), {**layered.home, **home}
    values, operators = list(graph.values), list(graph.operators)
    for output in graph.outputs:
        if output.alias is None or output.alias not in home:
            continue
        computed = f"made.{output.value}"
        values.append(replace(graph.value(output.value), name=computed))
        operators = [_renamed(op, output.value, computed) for op in operators]
        operators.append(identity(graph.value(output.value), output.value))
        operators[-1] = replace(operators[-1], inputs=(computed,), name=f"keep.{output.value}")
        layer_of[operators[-1].name] = home[output.alias]
    handed = replace(graph, values=tuple(values), operators=tuple(operators))
    step = replace(layered.step, graph=in_levels(handed, layer_of))
    return replace(layered, step=step, layer_of=layer_of, home=homes)


def _renamed(op: Operator, old: str, new: str) -> Operator:
    if op.phase != APPLY or old not in (*op.inputs, *op.outputs):
        return op
    inputs, outputs = (
        tuple(new if name == old else name for name in names) for names in (op.inputs, op.outputs)
    )
    return replace(op, inputs=inputs, outputs=outputs)
