"""The answer: a strategy for every operator, the conversions between them, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel import Cluster
from shardspec import Layout, Mesh, Spec, Step, reshard_whole_axes

from autoshard.baseline import Baseline
from autoshard.graph import Graph
from autoshard.run import Solution
from autoshard.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Conversion:
    """A value that is there as `src` is made available as `dst`, by one step, once in one phase.

    All readers in that phase that ask for `dst` share it. `src` is how the value is made or stored,
    or the `dst` of an earlier conversion of the same value in the same phase.
    """

    phase: int
    value: str
    src: Spec
    dst: Spec


@dataclass(frozen=True, slots=True)
class Options:
    """What decides the price of a sharding, beside the graph, the mesh and the cluster."""

    memory_bytes: int | None = None
    in_flight: int = 1
    restrict: Baseline | None = None


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
    """Compute and communication of all phases."""
    lower_bound_s: float
    """No sharding is priced below this."""
    peak_bytes: float
    """The most that a device holds at a time; passing copies of conversions are not in it."""
    activation_bytes: float
    """What forward saves for later phases, per device, for one microbatch."""
    solution: Solution
    """Of the problem behind it."""


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
    found = []
    for conversion in sharding.conversions:
        value = graph.value(conversion.value)
        src, dst = (
            Layout(value.shape, sharding.mesh, spec) for spec in (conversion.src, conversion.dst)
        )
        repeats = graph.phases[conversion.phase].repeats
        found += [
            Collective(conversion.phase, value.name, step, value.itemsize, repeats)
            for step in reshard_whole_axes(src, dst).steps
            if step.kind != "slice"
        ]
    return tuple(found)
