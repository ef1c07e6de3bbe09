"""The seconds saved by bucketing: small collectives that do not depend on each other run as one.

Two collectives of a phase can share a bucket if both could start when the phase begins (their
values were computed in an earlier phase or are stored: gradients in apply, gathered parameters in
forward), if they are of the same kind over the same axes, and if they have the same dtype. Together
they pay one latency. PyTorch's DDP does this with gradients (Li et al., "PyTorch Distributed", VLDB
13(12), 2020, section 4.2). As in DDP, buckets are filled in order of execution.
"""

from __future__ import annotations

from typing import cast, get_args

from costmodel import CollectiveKind, collective_time
from shardspec import Axis

from autoshard.answer.judge import made_specs
from autoshard.answer.sharding_fields import Collective, ShardingFields, collectives

Bucket = tuple[int, str, tuple[Axis, ...], str]
"""Phase, kind, axes and dtype of collectives that can run together."""


def bucket_savings(sharding: ShardingFields, bucket_bytes: int) -> tuple[float, ...]:
    """Seconds that bucketing saves in each phase, all repeats together.

    Args:
        sharding: The collectives of this sharding are put into buckets.
        bucket_bytes: The most that a bucket holds, on one device; larger collectives run alone.
    """
    graph = sharding.graph
    links = sharding.cluster.links(sharding.mesh)
    made_in = {name: graph.operators[index].phase for name, (index, _) in graph.producers.items()}
    starts = made_specs(sharding)
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
            before = 0.0  # the bucket is full; a new one begins
        together, first, alone = (
            float(collective_time(kind, size, links.group(axes))) if size else 0.0
            for size in (before + n_bytes, before, n_bytes)
        )
        saved[one.phase] += (first + alone - together) * one.repeats
        filled[key] = before + n_bytes
    return tuple(saved)


def _priced_bytes(one: Collective) -> float:
    """The bytes that costmodel prices: a reduce-scatter's input, the others' output."""
    layout = one.step.src if one.step.kind == "reduce_scatter" else one.step.dst
    return float(layout.local_bytes(one.itemsize))
