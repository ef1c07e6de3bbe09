"""A backward in two parts, where the schedule splits it: input gradient and weight gradient.

The input gradient is all that the backward of another stage waits for; the weight gradient is the
rest, which leads to sums over microbatches only, so that it can fill what would be idle time (Qi et
al., Zero Bubble Pipeline Parallelism, ICLR 2024).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import autoshard
from autoshard import Operator, Sharding
from costmodel import step_time
from shardspec import Layout, Spec

from frontends.layers.expand import operator_seconds
from frontends.plan.plan_fields import Transfer
from frontends.step.step import BACKWARD, FORWARD

INPUT_GRADIENT, WEIGHT_GRADIENT = 0, 1


@dataclass(frozen=True, slots=True)
class Parts:
    """What the parts of one microbatch's backward take on a stage."""

    weight_gradient_s: float
    between_bytes: int
    """Of one device: what the weight gradient reads that was received, or made by the input
    gradient, in backward. Activations are not in it."""


def sent_backwards(transfers: Iterable[Transfer], stage: int) -> set[str]:
    """What the backward of a stage sends to other stages."""
    return {t.value for t in transfers if t.source == stage and t.phase == "backward"}


def levels_of(operators: Iterable[Operator], leaving: Collection[str]) -> dict[str, int]:
    """The part of the backward that each of its operators is in.

    Args:
        operators: Of one stage, in order.
        leaving: What its backward sends to other stages.
    """
    needed, levels = set(leaving), {}
    for op in reversed([op for op in operators if op.phase == BACKWARD]):
        levels[op.name] = WEIGHT_GRADIENT if needed.isdisjoint(op.outputs) else INPUT_GRADIENT
        if levels[op.name] == INPUT_GRADIENT:
            needed.update(op.inputs)
    return levels


def parts_of(sharding: Sharding, leaving: Collection[str]) -> Parts:
    """What the parts take, as the cost model has it.

    A collective is of the weight gradient if no operator of the input gradient makes or reads its
    value.

    Args:
        sharding: Of the stage.
        leaving: What its backward sends to other stages.
    """
    graph, mesh, device = sharding.graph, sharding.mesh, sharding.cluster.device
    levels = levels_of(graph.operators, leaving)
    parts: tuple[list[int], list[int]] = ([], [])
    for index, op in enumerate(graph.operators):
        if op.name in levels:
            parts[levels[op.name]].append(index)
    seconds = sum(
        operator_seconds(graph, graph.operators[i], sharding.strategies[i], mesh.shape, device)
        for i in parts[WEIGHT_GRADIENT]
    )
    names = {
        name
        for i in parts[INPUT_GRADIENT]
        for name in (*graph.operators[i].inputs, *graph.operators[i].outputs)
    }
    links = sharding.cluster.links(mesh)
    seconds += sum(
        step_time(c.step, c.itemsize, links)
        for c in autoshard.collectives(graph, sharding)
        if c.phase == BACKWARD and c.value not in names
    )
    return Parts(seconds, _between_bytes(sharding, *parts))


def _between_bytes(sharding: Sharding, first: Sequence[int], second: Sequence[int]) -> int:
    graph = sharding.graph
    home = dict(sharding.input_specs)
    for op, strategy in zip(graph.operators, sharding.strategies, strict=True):
        home.update(zip(op.outputs, strategy.result_specs, strict=True))
    in_forward = {name for op in graph.operators if op.phase == FORWARD for name in op.inputs}
    made = {name for i in first for name in graph.operators[i].outputs}
    made.update(n for n in graph.inputs if graph.value(n).role == "activation")
    made -= in_forward
    there = _reads(sharding, first)
    left: set[tuple[str, Spec]] = set()
    for name, spec in _reads(sharding, second):
        if spec != home[name] and (name, spec) in there:
            left.add((name, spec))  # converted once for both
        elif name in made:
            left.add((name, home[name]))
    return sum(
        Layout(value.shape, sharding.mesh, spec).local_bytes(value.itemsize)
        for name, spec in left
        for value in [graph.value(name)]
    )


def _reads(sharding: Sharding, operators: Iterable[int]) -> set[tuple[str, Spec]]:
    return {
        read
        for i in operators
        for read in zip(
            sharding.graph.operators[i].inputs, sharding.strategies[i].operand_specs, strict=True
        )
    }
