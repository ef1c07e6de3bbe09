"""The values of `split_graph`: a graph to be cut into stages, and a split of it with its price."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shardspec.amounts import bytes_text, seconds_text

from stagecut.base.edges import Boundary
from stagecut.base.types import StageCost, pipeline_time_s


@dataclass(frozen=True, slots=True)
class GraphStage:
    """A stage: some nodes of a graph, and their cost together."""

    nodes: tuple[int, ...]
    """Indices of the nodes, ascending."""
    cost: StageCost
    """The cost without receiving. The temporary memory is that of one node at a time."""
    receive_s: float
    """Seconds to receive the values of one microbatch from earlier stages; nothing overlaps it."""
    received_bytes: int
    """Bytes that the stage receives for one microbatch."""
    held_bytes: int
    """Bytes of one microbatch for values that are produced here and read after the next stage."""
    peak_bytes: int
    """Peak memory with the microbatches that are in flight here."""

    @property
    def time_s(self) -> float:
        """Time of one microbatch, with receiving."""
        return self.cost.time_s + self.receive_s


@dataclass(frozen=True, slots=True)
class GraphSplit:
    """The stages in pipeline order, with a lower bound and the linear cut for comparison."""

    stages: tuple[GraphStage, ...]
    time_s: float
    """Time of one step."""
    lower_bound_s: float
    """No split takes less; equal to `time_s` if the search ran to its end."""
    linear_s: float | None
    """Time of a step with the best linear cut, that of the nodes in the order of the input; None if
    no linear cut keeps to the limits."""

    @property
    def gap(self) -> float:
        """How far `time_s` is above the lower bound, as a fraction of it."""
        if self.time_s <= self.lower_bound_s:
            return 0.0
        return self.time_s / self.lower_bound_s - 1 if self.lower_bound_s else math.inf

    @property
    def order(self) -> tuple[int, ...]:
        """The nodes stage by stage; each node comes after those that it reads from."""
        return tuple(node for stage in self.stages for node in stage.nodes)

    def reordered(self, values: Sequence[Boundary]) -> tuple[Boundary, ...]:
        """The same values with the nodes numbered in `order`, as `slice_stages` needs them."""
        at = {node: position for position, node in enumerate(self.order)}
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
    """The arguments of `split_graph`, in the form that its searches need."""

    nodes: tuple[StageCost, ...]
    values: tuple[Boundary, ...]
    transfer_s: tuple[float, ...]
    """For each value, seconds to receive it."""
    n_microbatches: int
    in_flight: tuple[int, ...]
    """Microbatches in flight on each stage. Its length is the number of stages; none is empty."""
    limit_s: float
    """The most that a stage may compute for one microbatch."""
    memory_bytes: int | None

    @property
    def compute_s(self) -> float:
        """Computation of all nodes together, for one microbatch."""
        return sum(node.time_s for node in self.nodes)

    @property
    def slowest_s(self) -> float:
        """A lower bound of what the slowest stage computes for one microbatch."""
        return max(self.compute_s / len(self.in_flight), max(node.time_s for node in self.nodes))

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Every pair of a node and one that reads from it, once, ascending."""
        return sorted({(value.producer, c) for value in self.values for c in value.consumers})

    def received(self, stage_of: Sequence[int]) -> list[tuple[int, int]]:
        """Every pair of a value (its index) and a stage that receives it, in one split."""
        return [
            (v, s)
            for v, value in enumerate(self.values)
            for s in sorted({stage_of[c] for c in value.consumers} - {stage_of[value.producer]})
        ]

    def held(self, stage_of: Sequence[int]) -> list[tuple[int, int]]:
        """Every value (its index) that is read after the next stage, and the stage holding it."""
        return [
            (v, stage_of[value.producer])
            for v, value in enumerate(self.values)
            if any(stage_of[c] > stage_of[value.producer] + 1 for c in value.consumers)
        ]

    def split(self, stage_of: Sequence[int]) -> GraphSplit:
        """The split that puts each node into its stage of `stage_of`, with its price.

        Its lower bound is its time.
        """
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
    """Ascending numbers as text, with consecutive ones joined: 0-2 5."""
    runs: list[list[int]] = []
    for node in nodes:
        if runs and node == runs[-1][1] + 1:
            runs[-1][1] = node
        else:
            runs.append([node, node])
    return " ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
