"""A sharding as plain data: strategies of operators, conversions between them, and their costs."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel import Cluster
from shardspec import Mesh, Spec, Step

from autoshard.base.checks import of_class
from autoshard.errors import GraphError
from autoshard.graph.graph import Graph
from autoshard.problem.solution import Solution
from autoshard.space.conversion import Conversion, steps_of
from autoshard.space.options import Options
from autoshard.space.permutations import messages_of
from autoshard.space.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another sharding that was priced, and why it was not taken."""

    name: str
    """A baseline, or `search`."""
    objective_s: float | None
    """Its price; `None` if there is no such sharding."""
    reason: str
    """How much slower it is, or why there is none."""


@dataclass(frozen=True, slots=True)
class ShardingFields:
    """The fields of a `Sharding`, which adds methods that explain and check them."""

    graph: Graph
    mesh: Mesh
    cluster: Cluster
    options: Options
    """The options of `shard` that the sharding depends on."""
    input_specs: tuple[tuple[str, Spec], ...]
    """The spec in which each input is stored, in the graph's order."""
    strategies: tuple[Strategy, ...]
    """The strategy of each operator."""
    conversions: tuple[Conversion, ...]
    """In order of execution."""
    output_specs: tuple[Spec, ...]
    """The spec in which each output leaves; with an alias, that of the input."""
    compute_s: tuple[float, ...]
    """For each phase, all repeats together."""
    communication_s: tuple[float, ...]
    """For each phase, all repeats together."""
    objective_s: float
    """Compute and communication of all phases, minus the hidden part (`hidden_s`)."""
    lower_bound_s: float
    """No sharding has a lower price than this, if `is_bound_of_all`."""
    peak_bytes: int
    """The most bytes that a device holds at a time; see `memory`."""
    activation_bytes: int
    """Bytes that forward saves for later phases, on one device, for one microbatch."""
    solution: Solution
    """The solution of the problem that the sharding was decoded from."""
    alternatives: tuple[Alternative, ...] = ()
    """Other shardings that were priced."""
    hidden_s: tuple[float, ...] = ()
    """For each phase: communication that `Options.overlap` hides behind compute."""
    is_bound_of_all: bool = True
    """Whether the bound holds for every sharding. It does not if three or more operators read a
    value that has more than `copy_sets.COPY_SETS` sets of copies. Then it holds for shardings in
    which other conversions start from one copy of the value, or from a partial sum and what that is
    reduced to; sharing more conversions than that might take less."""
    bucketed_s: tuple[float, ...] = ()
    """For each phase: the seconds that buckets of `Options.bucket_bytes` save. They are not
    subtracted from the objective, as the search does not know what will share a bucket."""
    memory_by: str = ""
    """The package that computed `peak_bytes` and `activation_bytes`: "autoshard" in what `shard`
    returns. A package that knows how its programs use memory may replace them by its own numbers,
    and put its name here. `verify` checks only autoshard's numbers. JSON without this entry is from
    older versions."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective that runs in a phase."""

    phase: int
    value: str
    step: Step
    itemsize: int
    repeats: int
    """How often it runs in a step of the program."""

    @property
    def n_bytes(self) -> int:
        """Bytes that one device receives in one run."""
        return self.step.received_bytes(self.itemsize)


def collectives(graph: Graph, sharding: ShardingFields) -> tuple[Collective, ...]:
    """All collectives of a sharding; local slices are left out.

    First those that operators make while they run, then those of conversions, both in order of
    execution.
    """
    is_sharding(sharding)
    of_class(GraphError, "graph", graph, Graph, "the graph of the sharding")
    every = []
    for operator, strategy in zip(graph.operators, sharding.strategies, strict=True):
        phase = operator.phase
        for value, step, itemsize, times in messages_of(graph, operator, strategy, sharding.mesh):
            repeats = graph.phases[phase].repeats
            every += [Collective(phase, value.name, step, itemsize, repeats)] * times
    for conversion in sharding.conversions:
        value = graph.value(conversion.value)
        ends = (conversion.src, conversion.dst)
        repeats = graph.phases[conversion.phase].repeats
        every += [
            Collective(conversion.phase, value.name, step, value.itemsize, repeats)
            for step in steps_of(value.shape, sharding.mesh, *ends)
            if step.kind != "slice"
        ]
    return tuple(every)


def is_sharding(value: object) -> None:
    """Raise `GraphError` unless the argument `sharding` of a function is a sharding."""
    how = "as shard and Sharding.from_json make it"
    if not isinstance(value, ShardingFields):
        raise GraphError(f"sharding must be of class Sharding, {how}; got sharding={value!r}")
