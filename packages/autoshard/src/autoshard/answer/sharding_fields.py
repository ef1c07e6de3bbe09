"""A sharding as a value: strategies of operators, conversions between them, and their costs."""

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
from autoshard.space.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Alternative:
    """Something that was priced as well, and why it was not taken."""

    name: str
    """A baseline, or `search`."""
    objective_s: float | None
    """Its price; `None` if there is no such sharding."""
    reason: str


@dataclass(frozen=True, slots=True)
class ShardingFields:
    """The fields of a `Sharding`, which adds what is done with them."""

    graph: Graph
    mesh: Mesh
    cluster: Cluster
    options: Options
    """Those of `shard` that it was found with."""
    input_specs: tuple[tuple[str, Spec], ...]
    """How each input is stored, in the graph's order."""
    strategies: tuple[Strategy, ...]
    """One an operator."""
    conversions: tuple[Conversion, ...]
    """In order of execution."""
    output_specs: tuple[Spec, ...]
    """How each output leaves; an aliased input's spec."""
    compute_s: tuple[float, ...]
    """Per phase, all repeats together."""
    communication_s: tuple[float, ...]
    """Per phase, all repeats together."""
    objective_s: float
    """Compute and communication of all phases, without what is hidden."""
    lower_bound_s: float
    """No sharding is priced below this, if `is_bound_of_all`."""
    peak_bytes: int
    """The most that a device holds at a time; see `memory`."""
    activation_bytes: int
    """What forward saves for later phases, per device, for one microbatch."""
    solution: Solution
    """Of the problem behind it."""
    alternatives: tuple[Alternative, ...] = ()
    """What else was priced."""
    hidden_s: tuple[float, ...] = ()
    """Per phase: communication that `Options.overlap` hides behind compute."""
    is_bound_of_all: bool = True
    """Whether the bound holds for every sharding. Else (three or more operators read a value, which
    could be copied in more than `copy_sets.COPY_SETS` ways) it holds for those that make one copy
    of it, or a partial sum and what that is reduced to, for others to start from; to share more
    conversions than that might take less."""
    bucketed_s: tuple[float, ...] = ()
    """Per phase: what buckets of `Options.bucket_bytes` save; not taken off the objective, as the
    search does not know what will share a bucket."""
    memory_by: str = ""
    """Whose account of memory `peak_bytes` and `activation_bytes` are: "autoshard" in what `shard`
    returns. A package that knows how its programs hold things puts its own account there, and its
    name here. `verify` judges ours alone; texts that do not say whose it is are older."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective that runs in a phase."""

    phase: int
    value: str
    step: Step
    itemsize: int
    repeats: int
    """How often a step of the program runs it."""

    @property
    def n_bytes(self) -> int:
        """Bytes that one device receives, in one run."""
        return self.step.received_bytes(self.itemsize)


def collectives(graph: Graph, sharding: ShardingFields) -> tuple[Collective, ...]:
    """Everything that a sharding sends, in order of execution; local slices are left out."""
    is_sharding(sharding)
    of_class(GraphError, "graph", graph, Graph, "the sharding's own")
    found = []
    for conversion in sharding.conversions:
        value = graph.value(conversion.value)
        ends = (conversion.src, conversion.dst)
        repeats = graph.phases[conversion.phase].repeats
        found += [
            Collective(conversion.phase, value.name, step, value.itemsize, repeats)
            for step in steps_of(value.shape, sharding.mesh, *ends)
            if step.kind != "slice"
        ]
    return tuple(found)


def is_sharding(given: object) -> None:
    """Refuse what is no sharding with a `GraphError`."""
    how = "as shard and Sharding.from_json make it"
    if not isinstance(given, ShardingFields):
        raise GraphError(f"sharding is of the class Sharding, {how}; got sharding={given!r}")
