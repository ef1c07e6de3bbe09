"""A graph that is cut into stages, and what a cut of it is: the values of `split_graph`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardspec.amounts import bytes_text, seconds_text

from stagecut.base.edges import Boundary
from stagecut.base.types import StageCost, pipeline_time_s


@dataclass(frozen=True, slots=True)
class GraphStage:
    """Some nodes of a graph, and what they take together."""

    nodes: tuple[int, ...]
    """Ascending."""
    cost: StageCost
    """Without what it takes to receive; memory that is temporary is that of one node at a time."""
    receive_s: float
    """Of one microbatch, to bring in what the stages before made; nothing overlaps it."""
    received_bytes: int
    held_bytes: int
    """Of one microbatch, values made here and read after the next stage; received once by each."""
    peak_bytes: int
    """With as many microbatches as are in flight here."""

    @property
    def time_s(self) -> float:
        """Of one microbatch."""
        return self.cost.time_s + self.receive_s


@dataclass(frozen=True, slots=True)
class GraphSplit:
    """The stages in pipeline order, and how good they are."""

    stages: tuple[GraphStage, ...]
    time_s: float
    """Of one step."""
    lower_bound_s: float
    """No split takes less; equal to `time_s` if the search ran to its end."""
    linear_s: float | None
    """Of the best cut of the nodes in the order given; None if no such cut keeps to the limits."""

    @property
    def gap(self) -> float:
        """How far `time_s` may be above the best, as a fraction of the lower bound."""
        if self.time_s <= self.lower_bound_s:
            return 0.0
        return self.time_s / self.lower_bound_s - 1 if self.lower_bound_s else math.inf

    @property
    def order(self) -> tuple[int, ...]:
        """The nodes stage by stage: an order in which each comes after those it reads from."""
        return tuple(node for stage in self.stages for node in stage.nodes)

    def reordered(self, values: Sequence[Boundary]) -> tuple[Boundary, ...]:
        """The same values for the nodes in `order`, as `slice_stages` wants to have them."""
        at = {node: place for place, node in enumerate(self.order)}
        return tuple(
            Boundary(at[value.producer], value.n_bytes, tuple(at[c] for c in value.consumers))
            for value in values
        )

    def __str__(self) -> str:
        linear = "no cut fits" if self.linear_s is None else f"{seconds_text(self.linear_s)}"
        lines = [
            f"{len(self.stages)} stages, {seconds_text(self.time_s)} a step, at best "
            f"{seconds_text(self.lower_bound_s)}; in the order given {linear}"
        ]
        lines += [
            f"  nodes {_runs(stage.nodes)}: {seconds_text(stage.time_s)} a microbatch, "
            f"{seconds_text(stage.receive_s)} of it to receive {bytes_text(stage.received_bytes)}"
            for stage in self.stages
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class GraphProblem:
    """What `split_graph` was asked, as its searches need it."""

    nodes: tuple[StageCost, ...]
    values: tuple[Boundary, ...]
    transfer_s: tuple[float, ...]
    """Of each value, to receive it."""
    n_microbatches: int
    in_flight: tuple[int, ...]
    """Of each stage; so many stages there are, and none of them is empty."""
    limit_s: float
    """Of what a stage computes for one microbatch."""
    memory_bytes: int | None

    @property
    def compute_s(self) -> float:
        """Of all nodes together, for one microbatch."""
        return sum(node.time_s for node in self.nodes)

    @property
    def slowest_s(self) -> float:
        """What the slowest stage computes at least, for one microbatch."""
        return max(self.compute_s / len(self.in_flight), max(node.time_s for node in self.nodes))

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Every node with each that reads from it, once, ascending."""
        return sorted({(value.producer, c) for value in self.values for c in value.consumers})

    def received(self, stage_of: Sequence[int]) -> list[tuple[int, int]]:
        """Every value (its index) with each stage that receives it, in one split."""
        return [
            (v, s)
            for v, value in enumerate(self.values)
            for s in sorted({stage_of[c] for c in value.consumers} - {stage_of[value.producer]})
        ]

    def held(self, stage_of: Sequence[int]) -> list[tuple[int, int]]:
        """Every value (its index) read after the stage that follows its own, with its own stage."""
        return [
            (v, stage_of[value.producer])
            for v, value in enumerate(self.values)
            if any(stage_of[c] > stage_of[value.producer] + 1 for c in value.consumers)
        ]

    def split(self, stage_of: Sequence[int]) -> GraphSplit:
        """The split that puts each node into the stage given, priced, as if it were the best."""
        received, held = self.received(stage_of), self.held(stage_of)
        stages = []
        for s, in_flight in enumerate(self.in_flight):
            members = tuple(i for i, stage in enumerate(stage_of) if stage == s)
            arriving = [v for v, stage in received if stage == s]
            nodes = [self.nodes[i] for i in members]
            cost = StageCost(
                time_s=sum(node.time_s for node in nodes),
                fixed_bytes=sum(node.fixed_bytes for node in nodes),
                activation_bytes=sum(node.activation_bytes for node in nodes),
                once_s=sum(node.once_s for node in nodes),
                temporary_bytes=max(node.temporary_bytes for node in nodes),
            )
            held_bytes = sum(self.values[v].n_bytes for v, stage in held if stage == s)
            stages.append(
                GraphStage(
                    nodes=members,
                    cost=cost,
                    receive_s=sum(self.transfer_s[v] for v in arriving),
                    received_bytes=sum(self.values[v].n_bytes for v in arriving),
                    held_bytes=held_bytes,
                    peak_bytes=cost.peak_bytes(in_flight) + in_flight * held_bytes,
                )
            )
        time_s = pipeline_time_s(
            [stage.time_s for stage in stages],
            self.n_microbatches,
            [stage.cost.once_s for stage in stages],
        )
        return GraphSplit(tuple(stages), time_s, time_s, None)


def _runs(nodes: Sequence[int]) -> str:
    """Ascending numbers, neighbours joined: 0-2 5."""
    runs: list[list[int]] = []
    for node in nodes:
        if runs and node == runs[-1][1] + 1:
            runs[-1][1] = node
        else:
            runs.append([node, node])
    return " ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
