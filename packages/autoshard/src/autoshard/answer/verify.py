"""Checks that a sharding is one of its graph on its mesh, and that its seconds and bytes are right.

The numbers are recomputed by `judge`, which shares nothing with the search. Some things are not
checked, since only another search could do so: that no sharding is below `lower_bound_s` (except
for this one), how `solution` came about, and what the `alternatives` would have taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from costmodel import CostmodelError
from shardspec import Layout, ShardspecError, Spec

from autoshard.answer.bucket import bucket_savings
from autoshard.answer.costs import converter
from autoshard.answer.judge import conversion_misfits, recompute_memory, recompute_seconds
from autoshard.answer.sharding_fields import ShardingFields
from autoshard.errors import VerificationError
from autoshard.graph.graph import verify as verify_graph
from autoshard.space.strategy_tables import table_of

RELATIVE = 1e-9
"""The relative difference allowed between two sums of the same seconds in different orders."""

OWN = "autoshard"
"""The `memory_by` of shardings whose memory `judge` recomputes."""


def verify(sharding: ShardingFields) -> None:
    """See `Sharding.verify`."""
    verify_graph(sharding.graph)
    try:
        for misfits in (_parts, conversion_misfits, _seconds, _bytes):
            for misfit in misfits(sharding):
                raise VerificationError(misfit)
    except (ShardspecError, CostmodelError) as error:
        message = f"the sharding does not fit its graph and mesh: {error}"
        raise VerificationError(message) from error


def _parts(sharding: ShardingFields) -> Iterator[str]:
    """Yield a sentence for each field of a sharding that does not fit its graph and mesh."""
    graph, mesh = sharding.graph, sharding.mesh
    for what, entries, expected in (
        ("strategies", sharding.strategies, graph.operators),
        ("output_specs", sharding.output_specs, graph.outputs),
        ("compute_s", sharding.compute_s, graph.phases),
        ("communication_s", sharding.communication_s, graph.phases),
    ):
        if len(entries) != len(expected):
            yield f"a sharding has {len(expected)} {what} for this graph; got {len(entries)}"
    for what, seconds in (("hidden_s", sharding.hidden_s), ("bucketed_s", sharding.bucketed_s)):
        if seconds and len(seconds) != len(graph.phases):
            yield f"a sharding has {len(graph.phases)} {what} for this graph; got {len(seconds)}"
    if (names := tuple(name for name, _ in sharding.input_specs)) != graph.inputs:
        yield f"input_specs are for the inputs {graph.inputs}, in this order; got {names}"
    for operator, strategy in zip(graph.operators, sharding.strategies, strict=True):
        if strategy not in table_of(graph, operator, mesh.shape, sharding.options).strategies:
            yield f"operator {operator.name!r} has no strategy {strategy} on {mesh.shape}"
    for name, spec in _stored(sharding):
        Layout(graph.value(name).shape, mesh, spec)  # raises if they do not fit
    of_mesh = converter(sharding)
    for of in sharding.conversions:
        if not 0 <= of.phase < len(graph.phases):
            yield f"a conversion is in one of {len(graph.phases)} phases; got phase {of.phase}"
        if len(of_mesh.steps(graph.value(of.value), of.src, of.dst)) != 1:
            yield f"a conversion is one step; {of.value!r} from {of.src} to {of.dst} is not"


def _stored(sharding: ShardingFields) -> Iterable[tuple[str, Spec]]:
    """Values and specs of all inputs, outputs, and ends of conversions."""
    names = (output.value for output in sharding.graph.outputs)
    yield from sharding.input_specs
    yield from zip(names, sharding.output_specs, strict=True)
    for of in sharding.conversions:
        yield of.value, of.src
        yield of.value, of.dst


def _seconds(sharding: ShardingFields) -> Iterator[str]:
    """Yield a sentence for each of the sharding's seconds that differs from the recomputed ones."""
    options, n_phases = sharding.options, len(sharding.graph.phases)
    compute, communication = recompute_seconds(sharding)
    hidden, bucketed = [0.0] * n_phases, (0.0,) * n_phases
    if options.overlap:
        pairs = zip(communication, compute, strict=True)
        hidden = [min(options.overlap * sent, busy) for sent, busy in pairs]
    if options.bucket_bytes is not None:
        bucketed = bucket_savings(sharding, options.bucket_bytes)
    for what, stated, recomputed in (
        ("compute_s", sharding.compute_s, compute),
        ("communication_s", sharding.communication_s, communication),
        ("hidden_s", sharding.hidden_s or (0.0,) * n_phases, hidden),
        ("bucketed_s", sharding.bucketed_s or (0.0,) * n_phases, bucketed),
    ):
        for phase, old, new in zip(sharding.graph.phases, stated, recomputed, strict=True):
            if not math.isclose(old, new, rel_tol=RELATIVE):
                yield (
                    f"a sharding's {what} of a phase is that of its operators and conversions; "
                    f"that of {phase.name!r} is {old!r}, and they give {new!r}; solve again, or "
                    "register the algorithms that it was solved with, and no others, by "
                    "costmodel.register_algorithm"
                )
    total = sum(compute) + sum(communication) - sum(hidden)
    if not math.isclose(sharding.objective_s, total, rel_tol=RELATIVE):
        yield (
            "the objective of a sharding is the time of its phases minus what is hidden; "
            f"objective_s is {sharding.objective_s!r}, and the phases give {total!r}; solve again"
        )
    if not sharding.lower_bound_s <= sharding.objective_s:
        yield (
            "no sharding takes less than the lower bound; lower_bound_s is "
            f"{sharding.lower_bound_s!r}, and objective_s is {sharding.objective_s!r}; solve again"
        )


def _bytes(sharding: ShardingFields) -> Iterator[str]:
    """Yield a sentence for each number of bytes that differs from the recomputed one.

    Only if the numbers are this package's.
    """
    if sharding.memory_by != OWN:
        return
    peak, saved = recompute_memory(sharding)
    for what, stated, recomputed in (
        ("peak_bytes", sharding.peak_bytes, peak),
        ("activation_bytes", sharding.activation_bytes, saved),
    ):
        if stated != recomputed:
            yield (
                f"a sharding's {what} is what a device holds; it is {stated}, and a device holds "
                f"{recomputed}; solve again"
            )
    limit = sharding.options.memory_bytes
    if limit is not None and peak > limit:
        yield f"a sharding keeps its limit of {limit} bytes; a device holds {peak} at its peak"
