"""The JSON text of a sharding, and that what is read fits together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from costmodel import CostmodelError
from shardspec import Layout, ShardspecError, Spec

from autoshard import record
from autoshard.errors import RecordError
from autoshard.graph import verify
from autoshard.ledger import converter
from autoshard.rule import Rule
from autoshard.strategy import Strategy
from autoshard.tables import table_of

if TYPE_CHECKING:
    from autoshard.sharding import Sharding

_SHARED = (Rule, Strategy)


def write(sharding: Sharding) -> str:
    """The text of a sharding: also its graph, mesh and cluster, so that it needs nothing else."""
    return record.write("sharding", sharding, _SHARED)


def read(of: type[Sharding], text: str) -> Sharding:
    """The sharding that `write` wrote.

    What it says about seconds and bytes is taken as it is; whether the graph is well-formed, and
    every spec, strategy and conversion one of that graph on that mesh, is checked.

    Raises:
        RecordError: the text is no such JSON, or its parts do not fit together.
        GraphError: the graph is not well-formed.
    """
    sharding = record.read("sharding", of, text, _SHARED)
    verify(sharding.graph)
    try:
        for problem in _problems(sharding):
            raise RecordError(problem)
    except (ShardspecError, CostmodelError) as error:
        raise RecordError(f"the sharding does not fit its graph and mesh: {error}") from error
    return sharding


def _problems(sharding: Sharding) -> Iterator[str]:
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
    if (names := tuple(name for name, _ in sharding.input_specs)) != graph.inputs:
        yield f"input_specs are for the inputs {graph.inputs}, in this order; got {names}"
    for operator, strategy in zip(graph.operators, sharding.strategies, strict=True):
        if strategy not in table_of(graph, operator, mesh.shape, sharding.options).strategies:
            yield f"operator {operator.name!r} has no strategy {strategy} on {mesh.shape}"
    for name, spec in _stored(sharding):
        Layout(graph.value(name).shape, mesh, spec)  # says what does not fit
    for of in sharding.conversions:
        if not 0 <= of.phase < len(graph.phases):
            yield f"a conversion is in one of {len(graph.phases)} phases; got phase {of.phase}"
        if len(converter(sharding).steps(graph.value(of.value), of.src, of.dst)) != 1:
            yield f"a conversion is one step; {of.value!r} from {of.src} to {of.dst} is not"


def _stored(sharding: Sharding) -> Iterable[tuple[str, Spec]]:
    """Which value has which spec, at the ends of the graph and of conversions."""
    names = (output.value for output in sharding.graph.outputs)
    yield from sharding.input_specs
    yield from zip(names, sharding.output_specs, strict=True)
    for of in sharding.conversions:
        yield of.value, of.src
        yield of.value, of.dst
