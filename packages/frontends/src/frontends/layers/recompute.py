"""Compute activations again in backward instead of holding them since forward.

What may be computed again is one of four choices for a layer, each with more work and less memory
than the one before. Among what it allows, every layer saves the fewest bytes that its
backward can do with, which is a minimum cut (`autoshard.least_saved`). A layer starts from what
earlier layers hand it and from weights, never from the batch, so its forward runs at most once
more. The last layer holds everything: its backward follows at once, so its peak would not sink.

`cheap` is what JAX calls `dots_saveable`, `dots` is `dots_with_no_batch_dims_saveable` or
Megatron's selective recomputation (Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models", 2023), and `all` is a `jax.checkpoint` around each layer. What the user's own
`jax.checkpoint` or `torch.utils.checkpoint` repeats is repeated in any case: it is in the trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from autoshard import Graph, Operator, least_saved, rematerialize

from frontends.layers.cheap import has_batch_dims, is_cheap, is_product
from frontends.layers.expand import operator_seconds
from frontends.plan.plan_fields import PlanFields, Remat, Remats
from frontends.step.step import APPLY, BACKWARD, FORWARD, TrainingStep


def recomputed(step: TrainingStep, layer_of: Mapping[str, int], remat: Remats) -> TrainingStep:
    """The step whose backward computes again what `remat` allows.

    Args:
        step: A step, not yet in layers.
        layer_of: The layers of its operators; those that have none hold what they read.
        remat: What may be computed again, in all layers or by layer.
    """
    names = _repeated(step.graph, layer_of, remat)
    if not names:
        return step
    graph = rematerialize(step.graph, names)
    known = {op.name for op in step.graph.operators}
    prefix = f"{step.graph.phases[BACKWARD].name}@"
    original = {
        op.name: op.name.removeprefix(prefix) for op in graph.operators if op.name not in known
    }
    return replace(step, graph=graph, original=original)


def share_again(plan: PlanFields) -> float:
    """The share of the plan's compute time, over all devices, that computes something again.

    It does not count what the user's own checkpoints repeat. 0 for a plan of format 1.
    """
    again = every = 0.0
    for stage in plan.stages:
        if stage.sharding is None:
            continue
        sharding, graph = stage.sharding, stage.sharding.graph
        phase, device = graph.phases[BACKWARD], sharding.cluster.slowest(sharding.mesh)
        forward = {op.name for op in graph.operators if op.phase == FORWARD}
        mark = f"{phase.name}@"  # within the name, if the stage is a replica
        every += stage.mesh.size * sum(sharding.compute_s)
        again += stage.mesh.size * sum(
            phase.repeats * operator_seconds(graph, op, how, sharding.mesh.shape, device)
            for op, how in zip(graph.operators, sharding.strategies, strict=True)
            if mark in op.name and op.name.replace(mark, "", 1) in forward
        )
    return again / every if every else 0.0


def _repeated(graph: Graph, layer_of: Mapping[str, int], remat: Remats) -> set[str]:
    """The results of forward to compute again."""
    last = max(layer_of.values(), default=0)
    layer_of_value: dict[str, int] = {}
    may_repeat: dict[int, list[str]] = defaultdict(list)
    readers: dict[int, list[str]] = defaultdict(list)
    saved = {output.value for output in graph.outputs}
    for op in graph.operators:
        layer = layer_of.get(op.name)
        if op.phase == FORWARD and layer is not None:
            layer_of_value.update(dict.fromkeys(op.outputs, layer))
            allowed = remat if isinstance(remat, str) else remat[layer]
            if layer != last and _may_repeat(op, graph, allowed):
                may_repeat[layer].append(op.name)
        elif op.phase == APPLY or layer is None:
            saved.update(op.inputs)
        else:
            readers[layer].append(op.name)
            saved.update(n for n in op.inputs if layer_of_value.get(n, layer) != layer)
    repeated: set[str] = set()
    for layer in sorted(may_repeat, reverse=True):  # a later layer saves what an earlier one made
        names = set(least_saved(graph, may_repeat[layer], readers[layer], saved)) - saved
        repeated |= names
        for op in (graph.operators[graph.producers[name][0]] for name in names):
            saved.update(n for n in op.inputs if layer_of_value.get(n, layer) != layer)
    return repeated


def _may_repeat(op: Operator, graph: Graph, remat: Remat) -> bool:
    """Whether an operator of forward may run again."""
    if remat in ("none", "all"):
        return remat == "all"
    if is_product(op):
        return remat == "dots" and has_batch_dims(op)
    return is_cheap(op, graph)
