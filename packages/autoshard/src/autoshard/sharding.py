"""The answer: a strategy for every operator, the conversions between them, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel import Cluster
from shardspec import Mesh, Spec, Step

from autoshard import sharding_json, verification
from autoshard.boundary import is_sharding, of_class
from autoshard.conversion import Conversion, steps_of
from autoshard.errors import GraphError
from autoshard.explain import Explanation, explain
from autoshard.graph import Graph
from autoshard.options import Options
from autoshard.run import Solution
from autoshard.strategy import Strategy
from autoshard.table import table


@dataclass(frozen=True, slots=True)
class Alternative:
    """Something that was priced as well, and why it was not taken."""

    name: str
    """A baseline, or `search`."""
    objective_s: float | None
    """Its price; `None` if there is no such sharding."""
    reason: str


@dataclass(frozen=True, slots=True)
class Sharding:
    """How to run a graph on a mesh, with its price per step."""

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
    could be copied in more than `relay.COPY_SETS` ways) it holds for those that make one copy of
    it, or a partial sum and what that is reduced to, for others to start from; to share more
    conversions than that might take less."""
    bucketed_s: tuple[float, ...] = ()
    """Per phase: what buckets of `Options.bucket_bytes` save; not taken off the objective, as the
    search does not know what will share a bucket."""
    memory_by: str = ""
    """Whose account of memory `peak_bytes` and `activation_bytes` are: "autoshard" in what `shard`
    returns. A package that knows how its programs hold things puts its own account there, and its
    name here. `verify` judges ours alone; texts that do not say whose it is are older."""

    def __str__(self) -> str:
        return table(self)

    def explain(self, name: str) -> Explanation:
        """Why an operator runs, or an input is stored, as it does; see `autoshard.explain`."""
        return explain(self, name)

    def verify(self) -> None:
        """Check that this is a sharding of its graph on its mesh, at its price and in its memory.

        Seconds and bytes are recomputed from graph, cluster, specs and conversions alone, by code
        that shares nothing with the search. Not checked is what only another search could know:
        whether the bound holds for all shardings, and what the alternatives would take.

        Raises:
            VerificationError: It is not; says the first thing that is wrong.
            GraphError: The graph is not well-formed.
        """
        verification.verify(self)

    def to_json(self) -> str:
        """The sharding as JSON, which `from_json` reads back to an equal one."""
        return sharding_json.write(self)

    @classmethod
    def from_json(cls, text: str) -> Sharding:
        """Read a sharding from the JSON that `to_json` writes, and verify it.

        Raises:
            RecordError: the text is no such JSON, or the sharding is not what it says (`verify`).
            GraphError: the graph in it is not well-formed.
        """
        return sharding_json.read(cls, text)


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


def collectives(graph: Graph, sharding: Sharding) -> tuple[Collective, ...]:
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
