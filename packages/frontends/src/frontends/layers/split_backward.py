"""Split a backward into input gradient and weight gradient, for schedules that do.

The input gradient consists of all operators that the backward of another stage depends on. The
weight gradient is the rest, which only contributes to sums over microbatches, so that it can run
when the rank would be idle (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024).
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
class SplitBackwardCost:
    """Time and memory of the split backward of one microbatch on a stage."""

    weight_gradient_s: float
    between_bytes: int
    """Bytes of one device between the two parts: what the weight gradient reads that the input
    gradient computed, or that was received in backward. Activations are not in it."""


def sent_backwards(transfers: Iterable[Transfer], stage: int) -> set[str]:
    """The values that the backward of a stage sends to other stages."""
    return {t.value for t in transfers if t.source == stage and t.phase == "backward"}


def levels_of(operators: Iterable[Operator], leaving: Collection[str]) -> dict[str, int]:
    """By backward operator, the part that it is in: `INPUT_GRADIENT` or `WEIGHT_GRADIENT`.

    Args:
        operators: The operators of one stage, in order.
        leaving: The values that its backward sends to other stages.
    """
    needed, levels = set(leaving), {}
    for op in reversed([op for op in operators if op.phase == BACKWARD]):
        levels[op.name] = WEIGHT_GRADIENT if needed.isdisjoint(op.outputs) else INPUT_GRADIENT
        if levels[op.name] == INPUT_GRADIENT:
            needed.update(op.inputs)
    return levels


def parts_of(sharding: Sharding, leaving: Collection[str]) -> SplitBackwardCost:
    """The cost of a stage's split backward, by the cost model.

    A collective belongs to the weight gradient if no operator of the input gradient computes or
    reads its value.

    Args:
        sharding: The sharding of the stage.
        leaving: The values that its backward sends to other stages.
    """
    graph, mesh = sharding.graph, sharding.mesh
    device = sharding.cluster.slowest(mesh)
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
    return SplitBackwardCost(seconds, _between_bytes(sharding, *parts))


def _between_bytes(sharding: Sharding, first: Sequence[int], second: Sequence[int]) -> int:
    graph = sharding.graph
    home = dict(sharding.input_specs)
    for op, strategy in zip(graph.operators, sharding.strategies, strict=True):
        home.update(zip(op.outputs, strategy.result_specs, strict=True))
    in_forward = {name for op in graph.operators if op.phase == FORWARD for name in op.inputs}
    available = {name for i in first for name in graph.operators[i].outputs}
    available.update(n for n in graph.inputs if graph.value(n).role == "activation")
    available -= in_forward
    read_before = _reads(sharding, first)
    left: set[tuple[str, Spec]] = set()
    for name, spec in _reads(sharding, second):
        if spec != home[name] and (name, spec) in read_before:
            left.add((name, spec))  # converted once for both parts
        elif name in available:
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
