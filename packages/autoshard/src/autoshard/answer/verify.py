"""Whether a sharding is what it says: one of its graph on its mesh, at that price, in that memory.

What it says is recomputed by `judge`, which shares nothing with the search. Not judged is what only
another search could know: that no sharding is below `lower_bound_s` (but that this one is not), how
`solution` came about, and what the `alternatives` would have taken.
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
"""By which two sums of the same seconds may differ, as they are added in other orders."""

OWN = "autoshard"
"""Whose account of memory `judge` repeats."""


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
    """Each misfit of a sharding's parts, as a sentence."""
    graph, mesh = sharding.graph, sharding.mesh
    for what, given, expected in (
        ("strategies", sharding.strategies, graph.operators),
        ("output_specs", sharding.output_specs, graph.outputs),
        ("compute_s", sharding.compute_s, graph.phases),
        ("communication_s", sharding.communication_s, graph.phases),
    ):
        if len(given) != len(expected):
            yield f"a sharding has {len(expected)} {what} for this graph; got {len(given)}"
    for what, given in (("hidden_s", sharding.hidden_s), ("bucketed_s", sharding.bucketed_s)):
        if given and len(given) != len(graph.phases):
            yield f"a sharding has {len(graph.phases)} {what} for this graph; got {len(given)}"
    if (names := tuple(name for name, _ in sharding.input_specs)) != graph.inputs:
        yield f"input_specs are for the inputs {graph.inputs}, in this order; got {names}"
    for operator, strategy in zip(graph.operators, sharding.strategies, strict=True):
        if strategy not in table_of(graph, operator, mesh.shape, sharding.options).strategies:
            yield f"operator {operator.name!r} has no strategy {strategy} on {mesh.shape}"
    for name, spec in _stored(sharding):
        Layout(graph.value(name).shape, mesh, spec)  # says what does not fit
    of_mesh = converter(sharding)
    for of in sharding.conversions:
        if not 0 <= of.phase < len(graph.phases):
            yield f"a conversion is in one of {len(graph.phases)} phases; got phase {of.phase}"
        if len(of_mesh.steps(graph.value(of.value), of.src, of.dst)) != 1:
            yield f"a conversion is one step; {of.value!r} from {of.src} to {of.dst} is not"


def _stored(sharding: ShardingFields) -> Iterable[tuple[str, Spec]]:
    """Which value has which spec, at the ends of the graph and of conversions."""
    names = (output.value for output in sharding.graph.outputs)
    yield from sharding.input_specs
    yield from zip(names, sharding.output_specs, strict=True)
    for of in sharding.conversions:
        yield of.value, of.src
        yield of.value, of.dst


def _seconds(sharding: ShardingFields) -> Iterator[str]:
    """Each time that is not what the parts take."""
    options, n_phases = sharding.options, len(sharding.graph.phases)
    compute, communication = recompute_seconds(sharding)
    hidden, bucketed = [0.0] * n_phases, (0.0,) * n_phases
    if options.overlap:
        pairs = zip(communication, compute, strict=True)
        hidden = [min(options.overlap * sent, busy) for sent, busy in pairs]
    if options.bucket_bytes is not None:
        bucketed = bucket_savings(sharding, options.bucket_bytes)
    for what, said, found in (
        ("compute_s", sharding.compute_s, compute),
        ("communication_s", sharding.communication_s, communication),
        ("hidden_s", sharding.hidden_s or (0.0,) * n_phases, hidden),
        ("bucketed_s", sharding.bucketed_s or (0.0,) * n_phases, bucketed),
    ):
        for phase, its, again in zip(sharding.graph.phases, said, found, strict=True):
            if not math.isclose(its, again, rel_tol=RELATIVE):
                yield (
                    f"what a sharding says of a phase is what its parts take; {what} of "
                    f"{phase.name!r} is {its!r}, and its parts take {again!r}; solve again, or let "
                    "costmodel.register_algorithm add what it was solved with, and nothing else"
                )
    total = sum(compute) + sum(communication) - sum(hidden)
    if not math.isclose(sharding.objective_s, total, rel_tol=RELATIVE):
        yield (
            "the objective of a sharding is what its phases take without what is hidden; "
            f"objective_s is {sharding.objective_s!r}, and they take {total!r}; solve again"
        )
    if not sharding.lower_bound_s <= sharding.objective_s:
        yield (
            "no sharding takes less than the bound of all; lower_bound_s is "
            f"{sharding.lower_bound_s!r}, and objective_s {sharding.objective_s!r}; solve again"
        )


def _bytes(sharding: ShardingFields) -> Iterator[str]:
    """Each number of bytes that is not what is held, if it is ours."""
    if sharding.memory_by != OWN:
        return
    peak, saved = recompute_memory(sharding)
    for what, said, found in (
        ("peak_bytes", sharding.peak_bytes, peak),
        ("activation_bytes", sharding.activation_bytes, saved),
    ):
        if said != found:
            yield (
                f"what a sharding says of memory is what it holds; {what} is {said}, and it holds "
                f"{found}; solve again"
            )
    limit = sharding.options.memory_bytes
    if limit is not None and peak > limit:
        yield f"a sharding keeps its limit of {limit} bytes; it holds {peak} at its peak"
