"""The price of running some layers on some devices: autoshard's best sharding of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import autoshard
from autoshard import Graph, Sharding
from costmodel import Cluster, Link
from shardspec import Mesh
from stagecut import StageCost, Submesh

from frontends.layers import LayeredStep, crossings
from frontends.step import APPLY

AXIS_NAMES = ("x", "y")
"""Of the meshes of stages, which have one or two axes."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A run of layers, sharded over one logical mesh."""

    graph: Graph
    sharding: Sharding
    cost: StageCost


class Pricer:
    """Prices runs of layers; equal runs on equal submeshes are priced once.

    Args:
        layered: The step.
        cluster: Where it is to run.
        memory_bytes: Limit of one device.
        in_flight: Microbatches whose activations a sharding must have room for. The fastest
            sharding for one may be too large for the number that a stage turns out to hold.
    """

    def __init__(
        self, layered: LayeredStep, cluster: Cluster, memory_bytes: int, in_flight: int = 1
    ) -> None:
        self.layered, self.cluster, self.memory_bytes = layered, cluster, memory_bytes
        self.in_flight = in_flight
        self.microbatches = layered.step.microbatches
        self._graphs: dict[tuple[int, int], tuple[Graph, str]] = {}
        self._found: dict[tuple[str, Submesh], tuple[Graph, Sharding] | None] = {}

    def graph(self, first: int, last: int) -> Graph:
        """The program of layers `first` to `last`, both included."""
        return self._described(first, last)[0]

    def price(self, first: int, last: int, submesh: Submesh) -> Priced | None:
        """The best sharding of layers `first` to `last`; None if none fits the memory."""
        graph, structure = self._described(first, last)
        if self.state_bytes(graph) > self.memory_bytes * math.prod(submesh):
            return None
        if (structure, submesh) not in self._found:
            self._found[structure, submesh] = self._search(graph, submesh)
        found = self._found[structure, submesh]
        if found is None:
            return None
        sharding = _renamed(found[1], found[0], graph)
        return Priced(graph, sharding, stage_cost(graph, sharding, self.in_flight))

    def bound_s(self, first: int, last: int, submesh: Submesh) -> float:
        """Time of one microbatch that no sharding beats: all work split evenly, nothing sent."""
        work_s, launch_s = self._work_s(self.graph(first, last))
        total_s = work_s / math.prod(submesh) + launch_s
        return total_s / self.microbatches * (1 - 1e-9)  # sums may round differently

    def step_bound_s(self) -> float:
        """Time of one step that no plan beats: the devices are never idle and nothing is sent."""
        return sum(self._work_s(self.layered.step.graph)) / self.cluster.n_devices

    def state_bytes(self, graph: Graph) -> int:
        """Bytes of parameters and optimizer state, which the devices hold between steps."""
        state = ("parameter", "optimizer_state")
        values = (graph.value(name) for name in graph.inputs)
        return sum(value.n_bytes for value in values if value.role in state)

    def _work_s(self, graph: Graph) -> tuple[float, float]:
        """Seconds that one device needs for all that a graph computes in a step, and launches."""
        device = self.cluster.device
        fastest = max(rate for _, rate in device.flops_per_s)
        work_s = launch_s = 0.0
        for op in graph.operators:
            repeats = graph.phases[op.phase].repeats
            n_bytes = sum(graph.value(name).n_bytes for name in (*op.inputs, *op.outputs))
            one_s = max(op.flops / fastest, n_bytes / device.memory_bandwidth_bytes_per_s)
            work_s += one_s * repeats
            launch_s += device.launch_s * repeats
        return work_s, launch_s

    def boundary_s(self, layer: int) -> float:
        """Time to bring one microbatch into a stage that begins at `layer`, and its gradient back.

        Counted as if it were not overlapped, over the slowest link that the cluster has between
        stages. Alpa leaves it out (§5.2), since its clusters have fast networks.
        """
        graph = self.layered.step.graph
        side = {name: int(at >= layer) for name, at in self.layered.layer_of.items()}
        link = self.link_between_stages()
        seconds = 0.0
        for name in crossings(graph, side):
            producer, _ = graph.producers[name]
            if graph.operators[producer].phase != APPLY:
                seconds += link.latency_s + graph.value(name).n_bytes / link.bandwidth_bytes_per_s
        return seconds

    def link_between_stages(self) -> Link:
        """The link that a transfer between stages has to take at worst."""
        return self.cluster.inter_host if self.cluster.n_hosts > 1 else self.cluster.intra_host

    def _described(self, first: int, last: int) -> tuple[Graph, str]:
        if (first, last) not in self._graphs:
            graph = self.layered.stage(first, last)
            self._graphs[first, last] = (graph, autoshard.structural_hash(graph))
        return self._graphs[first, last]

    def _search(self, graph: Graph, submesh: Submesh) -> tuple[Graph, Sharding] | None:
        found = []
        for mesh in logical_meshes(submesh, self.cluster):
            try:
                found.append(
                    autoshard.shard(
                        graph,
                        mesh,
                        self.cluster,
                        memory_bytes=self.memory_bytes,
                        in_flight=self.in_flight,
                        compare=False,
                    )
                )
            except autoshard.InfeasibleError:
                continue
        if not found:
            return None
        return graph, min(found, key=lambda sharding: sharding.objective_s)


def stage_cost(graph: Graph, sharding: Sharding, in_flight: int = 1) -> StageCost:
    """What stagecut needs to know; apply is spread over the microbatches.

    Args:
        graph: What the stage runs.
        sharding: How.
        in_flight: Microbatches whose activations are in the sharding's peak.
    """
    microbatches = graph.phases[0].repeats
    total_s = sum(sharding.compute_s) + sum(sharding.communication_s)
    return StageCost(
        time_s=total_s / microbatches,
        fixed_bytes=max(0, math.ceil(sharding.peak_bytes - in_flight * sharding.activation_bytes)),
        activation_bytes=math.ceil(sharding.activation_bytes),
    )


def logical_meshes(submesh: Submesh, cluster: Cluster) -> list[Mesh]:
    """The meshes that a submesh is tried as: flat, hosts by devices, and a host cut in two."""
    n_hosts, per_host = submesh
    size = n_hosts * per_host
    shapes: list[tuple[int, ...]] = [(size,)]
    if n_hosts > 1 and per_host > 1:
        shapes.append((n_hosts, per_host))
    elif n_hosts == 1 and size >= 4 and size % 2 == 0:
        shapes.append((2, size // 2))
    devices = tuple(
        host * cluster.devices_per_host + i for host in range(n_hosts) for i in range(per_host)
    )
    return [Mesh(shape, AXIS_NAMES[: len(shape)], devices) for shape in shapes]


def _renamed(sharding: Sharding, old: Graph, new: Graph) -> Sharding:
    """The sharding of `old` for a graph that differs in names only."""
    name = dict(zip(_names(old), _names(new), strict=True))
    return replace(
        sharding,
        graph=new,
        input_specs=tuple((name[value], spec) for value, spec in sharding.input_specs),
        conversions=tuple(replace(c, value=name[c.value]) for c in sharding.conversions),
    )


def _names(graph: Graph) -> list[str]:
    return [*graph.inputs, *(name for op in graph.operators for name in op.outputs)]
