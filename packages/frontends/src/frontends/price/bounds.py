"""What no sharding of some layers beats: bounds of time and memory, quick to ask for.

They let a search skip most stages without a sharding of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate

import autoshard
from autoshard import Operator
from costmodel import Cluster, Link
from stagecut import Submesh

from frontends.layers.layers import LayeredStep
from frontends.step.step import APPLY


class Bounds:
    """Bounds of runs of layers.

    Args:
        layered: The step.
        cluster: Where it is to run.
        memory_bytes: Limit of one device.
    """

    def __init__(self, layered: LayeredStep, cluster: Cluster, memory_bytes: int) -> None:
        self.layered, self.cluster, self.memory_bytes = layered, cluster, memory_bytes

    def bound_s(self, first: int, last: int, submesh: Submesh) -> float:
        """Time of one microbatch that no sharding beats: all work split evenly, nothing sent."""
        if self.least_bytes(first, last) > self.memory_bytes * math.prod(submesh):
            return math.inf
        work, launch = self._work_before
        work_s, launch_s = work[last + 1] - work[first], launch[last + 1] - launch[first]
        total_s = work_s / math.prod(submesh) + launch_s
        # sums may round differently
        return max(0.0, total_s / self.layered.step.microbatches * (1 - 1e-9))

    def step_bound_s(self) -> float:
        """Time of one step that no plan beats: the devices are never idle and nothing is sent."""
        return self._all_work_s / self.cluster.n_devices

    def boundary_s(self, layer: int) -> float:
        """Time to bring one microbatch into a stage that begins at `layer`, and its gradient back.

        Counted as if it were not overlapped, over the slowest link that the cluster has between
        stages. Alpa leaves it out (§5.2), since its clusters have fast networks.
        """
        return self._boundaries_s[layer]

    def state_bytes(self) -> int:
        """Bytes that the devices hold of all layers together, whatever the sharding."""
        return self._state_before[-1]

    def least_bytes(self, first: int, last: int) -> int:
        """The same of layers `first` to `last`, over all devices of their stage."""
        return self._state_before[last + 1] - self._state_before[first]

    def held_bytes(self, first: int, last: int, held: int) -> int:
        """Bytes that the devices of a stage hold together when its last forward ends.

        No sharding of layers `first` to `last` takes less: all inputs are there, and what forward
        saves of each of `held` microbatches, and some device has each part of it.
        """
        graph = self.layered.stage(first, last)
        saved = set(graph.saved)
        saved -= {output.value for output in graph.outputs if output.alias is not None}
        always = sum(graph.value(name).n_bytes for name in graph.inputs if name not in saved)
        return always + held * sum(graph.value(name).n_bytes for name in saved)

    def _link(self) -> Link:
        """The link that a transfer between stages has to take at worst."""
        return self.cluster.inter_host if self.cluster.n_hosts > 1 else self.cluster.intra_host

    @cached_property
    def _all_work_s(self) -> float:
        """Seconds that one device needs for the whole step."""
        return sum(self._work_s(self.layered.step.graph.operators))

    @cached_property
    def _boundaries_s(self) -> list[float]:
        """Per layer, and one past the last."""
        graph, link = self.layered.step.graph, self._link()
        change = [0.0] * (self.layered.n_layers + 2)
        for op in graph.operators:
            if op.phase == APPLY:
                continue
            made = self.layered.layer_of[op.name]
            for name in op.outputs:
                layers = [made, *self.layered.readers_of.get(name, ())]
                seconds = link.latency_s + graph.value(name).n_bytes / link.bandwidth_bytes_per_s
                change[min(layers) + 1] += seconds  # crosses each cut between the two
                change[max(layers) + 1] -= seconds
        return [max(0.0, total) for total in accumulate(change)]

    @cached_property
    def _work_before(self) -> tuple[list[float], list[float]]:
        """Seconds of work and of launches for microbatches, of all layers before each one."""
        work, launch = [0.0], [0.0]
        graph = self.layered.step.graph
        for operators in self.layered.operators_of:
            inside = map(graph.operators.__getitem__, operators)
            every = (op for op in inside if op.phase != APPLY)
            its_work, its_launch = self._work_s(every)
            work.append(work[-1] + its_work)
            launch.append(launch[-1] + its_launch)
        return work, launch

    def _work_s(self, operators: Iterable[Operator]) -> tuple[float, float]:
        """Seconds that one device needs for all that operators compute in a step, and launches."""
        graph = self.layered.step.graph
        device = self.cluster.device
        work_s = launch_s = 0.0
        for op in operators:
            repeats = graph.phases[op.phase].repeats
            values = [graph.value(name) for name in (*op.inputs, *op.outputs)]
            memory_s = sum(v.n_bytes for v in values) / device.memory_bandwidth_bytes_per_s
            dtype = autoshard.arithmetic_dtype(op.rule, tuple(value.dtype for value in values))
            one_s = max(op.flops / device.peak(dtype), memory_s)
            work_s += one_s * repeats
            launch_s += device.launch_s * repeats
        return work_s, launch_s

    @cached_property
    def _state_before(self) -> list[int]:
        """Bytes of state, and of sums of gradients, that the layers before each one hold.

        Sums are there when the last backward has ended and apply begins.
        """
        graph, found = self.layered.step.graph, [0]
        summed = set(self.layered.step.summed)
        for names, operators in zip(self.layered.kept_in, self.layered.operators_of, strict=True):
            made = (name for i in operators for name in graph.operators[i].outputs)
            held = (*names, *(name for name in made if name in summed))
            found.append(found[-1] + sum(graph.value(name).n_bytes for name in held))
        return found
