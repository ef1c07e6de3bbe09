"""Random plans, to test that whatever the planner may choose runs right."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache

import autoshard
import shardspec
from autoshard import Graph, Operator, Strategy
from shardspec import Layout, Mesh, Spec

from frontends.layers import LayeredStep
from frontends.plan import Conversion, Placement, Plan, Stage, Stored, Transfer


def random_plan(
    layered: LayeredStep, meshes: Sequence[Mesh], rng: random.Random, schedule: str = "1f1b"
) -> Plan:
    """A plan that runs, with every choice left to chance and nothing priced.

    Args:
        layered: The step; it needs at least one layer a stage.
        meshes: One for each stage.
        rng: Makes the choices: where layers are cut, and the layouts of all that is stored,
            computed and sent.
        schedule: Name of a pipesched schedule.
    """
    cuts = sorted(rng.sample(range(1, layered.n_layers), len(meshes) - 1))
    first_layers, ends = [0, *cuts], [*cuts, layered.n_layers]
    stages = tuple(
        _random_stage(layered.stage(first, end - 1), first, end - 1, mesh, rng)
        for first, end, mesh in zip(first_layers, ends, meshes, strict=True)
    )
    return Plan(
        step=layered.step.fingerprint,
        cluster="none",
        memory_limit_bytes=0,
        microbatches=layered.step.microbatches,
        schedule=schedule,
        stages=stages,
        transfers=_transfers(layered, stages),
        step_s=0.0,
        lower_bound_s=0.0,
        unsharded=(),
        alternatives=(),
    )


def _random_stage(graph: Graph, first: int, last: int, mesh: Mesh, rng: random.Random) -> Stage:
    home: dict[str, Spec] = {}
    for name in graph.inputs:
        home[name] = rng.choice(autoshard.stored_specs(graph.value(name).shape, mesh.shape))
    conversions: dict[tuple[int, str, Spec], Conversion] = {}

    def reachable(name: str, spec: Spec) -> bool:
        shape = graph.value(name).shape
        return _is_reachable(Layout(shape, mesh, home[name]), Layout(shape, mesh, spec))

    def need(phase: int, name: str, spec: Spec) -> None:
        if spec != home[name]:
            conversions[phase, name, spec] = Conversion(phase, name, home[name], spec)

    placements = []
    for op in graph.operators:
        possible = [
            strategy
            for strategy in autoshard.enumerate_strategies(op.rule, mesh.shape)
            if all(map(reachable, op.inputs, strategy.operand_specs))
        ]
        if rng.random() < 0.8:  # mostly as things lie: every conversion has to be compiled
            counts = [_conversions(op, strategy, home) for strategy in possible]
            possible = [s for s, n in zip(possible, counts, strict=True) if n == min(counts)]
        chosen = rng.choice(possible)
        for name, spec in zip(op.inputs, chosen.operand_specs, strict=True):
            need(op.phase, name, spec)
        home.update(zip(op.outputs, chosen.result_specs, strict=True))
        placements.append(Placement(op.name, op.phase, chosen.operand_specs, chosen.result_specs))
    outputs = []
    for output in graph.outputs:
        shape = graph.value(output.value).shape
        if output.alias is not None:
            spec = home[output.alias]
        elif output.whole:
            spec = Spec.replicated(len(shape))
        else:
            spec = rng.choice(autoshard.stored_specs(shape, mesh.shape))
        need(graph.phase_of_output(output), output.value, spec)
        outputs.append(Stored(output.value, spec))
    return Stage(
        first_layer=first,
        last_layer=last,
        mesh=mesh,
        inputs=tuple(Stored(name, home[name]) for name in graph.inputs),
        outputs=tuple(outputs),
        placements=tuple(placements),
        conversions=tuple(conversions.values()),
        collectives=(),
        forward_s=0.0,
        backward_s=0.0,
        apply_s=0.0,
        memory_bytes=0,
    )


@cache
def _is_reachable(src: Layout, dst: Layout) -> bool:
    try:
        shardspec.reshard_whole_axes(src, dst)
    except shardspec.ReshardError:
        return False
    return True


def _conversions(op: Operator, strategy: Strategy, home: Mapping[str, Spec]) -> int:
    return sum(home[n] != s for n, s in zip(op.inputs, strategy.operand_specs, strict=True))


def _transfers(layered: LayeredStep, stages: Sequence[Stage]) -> tuple[Transfer, ...]:
    spans = [(stage.first_layer, stage.last_layer) for stage in stages]
    return tuple(
        Transfer(
            name,
            phase,
            source,
            to,
            stages[source].leaving(name, phase),
            stages[to].entering(name),
            n_bytes=0,
            time_s=0.0,
        )
        for name, phase, source, to in layered.exchanges(spans)
    )
