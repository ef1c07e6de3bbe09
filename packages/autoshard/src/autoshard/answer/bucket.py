"""What bucketing saves: small collectives that need not wait for each other, run as one.

Two collectives of a phase can be one if both could start when the phase begins (what they convert
was made in an earlier phase, or stored: gradients in apply, gathered parameters in forward), do the
same over the same axes, and have the same dtype. Together they pay one latency. It is what
PyTorch's DDP does with gradients (Li et al., "PyTorch Distributed", VLDB 13(12), 2020, section
4.2); as there, a bucket is filled in order of execution.
"""

from __future__ import annotations

from typing import cast, get_args

from costmodel import CollectiveKind, collective_time
from shardspec import Axis

from autoshard.answer.sharding_fields import Collective, ShardingFields, collectives

Bucket = tuple[int, str, tuple[Axis, ...], str]
"""Phase, kind, axes and dtype of what can run together."""


def bucket_savings(sharding: ShardingFields, bucket_bytes: int) -> tuple[float, ...]:
    """Seconds that bucketing saves in each phase, all repeats together.

    Args:
        sharding: Whose collectives are put into buckets.
        bucket_bytes: A bucket holds at most this, on one device; larger collectives run alone.
    """
    graph = sharding.graph
    links = sharding.cluster.links(sharding.mesh)
    made_in = {name: graph.operators[index].phase for name, (index, _) in graph.producers.items()}
    starts = dict(sharding.input_specs)
    for operator, strategy in zip(graph.operators, sharding.strategies, strict=True):
        starts.update(zip(operator.outputs, strategy.result_specs, strict=True))
    saved = [0.0] * len(graph.phases)
    filled: dict[Bucket, float] = {}
    for one in collectives(graph, sharding):
        waits = made_in.get(one.value, -1) == one.phase or one.step.src.spec != starts[one.value]
        n_bytes = _priced_bytes(one)
        if waits or n_bytes > bucket_bytes or one.step.kind not in get_args(CollectiveKind):
            continue
        kind, axes = cast(CollectiveKind, one.step.kind), one.step.axes
        key = (one.phase, kind, axes, graph.value(one.value).dtype)
        before = filled.get(key, 0.0)
        if before + n_bytes > bucket_bytes:
            before = 0.0  # the bucket is full, a new one begins
        together, first, alone = (
            float(collective_time(kind, size, links.group(axes))) if size else 0.0
            for size in (before + n_bytes, before, n_bytes)
        )
        saved[one.phase] += (first + alone - together) * one.repeats
        filled[key] = before + n_bytes
    return tuple(saved)


def _priced_bytes(one: Collective) -> float:
    """What costmodel prices: the input of a reduce-scatter, and the output of the others."""
    layout = one.step.src if one.step.kind == "reduce_scatter" else one.step.dst
    return float(layout.local_bytes(one.itemsize))
