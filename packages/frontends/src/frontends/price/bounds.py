"""Lower bounds of the time and memory of a run of layers, for any sharding; quick to compute.

They let a search skip most stages without sharding them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import copy
from functools import cached_property
from itertools import accumulate

import autoshard
from autoshard import Accesses, Operator
from costmodel import Device, operator_bound
from stagecut import Submesh

from frontends.layers.expand import product_of
from frontends.layers.layers import LayeredStep
from frontends.price.device_pool import DevicePool
from frontends.step.step import APPLY


class Bounds:
    """Lower bounds for the runs of layers of a step.

    Args:
        layered: The step.
        pool: The devices to plan for.
    """

    def __init__(self, layered: LayeredStep, pool: DevicePool) -> None:
        self.layered, self.pool = layered, pool
        self._work_before: dict[Submesh, tuple[list[float], list[float]]] = {}
        self._work_of: dict[Device, tuple[list[float], list[float]]] = {}

    def sharing(self, pool: DevicePool) -> Bounds:
        """The same bounds with other limits; what does not depend on them is computed once."""
        self._state_before, self._boundaries_s  # noqa: B018 (keeps them)
        other = copy(self)
        other.pool = pool
        return other

    def bound_s(self, first: int, last: int, submesh: Submesh) -> float:
        """Lower bound of the time of one microbatch: all work split evenly, no communication.

        Infinity if the state of the layers does not fit the memory of the submesh.
        """
        if self.least_bytes(first, last) > self.pool.limit(submesh) * math.prod(submesh):
            return math.inf
        return self.least_s(first, last, submesh)

    def least_s(self, first: int, last: int, submesh: Submesh) -> float:
        """The lower bound of `bound_s`, whether or not the state of the layers fits."""
        work, launch = self._work_on(submesh)
        work_s, launch_s = work[last + 1] - work[first], launch[last + 1] - launch[first]
        total_s = work_s / math.prod(submesh) + launch_s
        # sums may round differently
        return max(0.0, total_s / self.layered.step.microbatches * (1 - 1e-9))

    def step_bound_s(self) -> float:
        """Lower bound of the time of one step: no device is ever idle, and no communication.

        Let operator `o` take `t_ok` on a device of kind `k`, of which there are `n_k`. If weights
        `w_k` make `sum n_k w_k = 1`, a step takes at least `sum over o of min over k of w_k t_ok`:
        by linear programming duality, for any division of operators among devices. The weights are
        the kinds' rates of the whole step, with which the bound is exact for equal kinds.
        """
        return self._step_bound_s

    @cached_property
    def _step_bound_s(self) -> float:
        kinds, operators = self.pool.kinds, self.layered.step.graph.operators
        all_s = [sum(self._work_s(operators, device)) for device in kinds]
        if len(kinds) == 1 or not all(all_s):
            return min(all_s) / self.pool.n_devices
        rate = sum(n / seconds for n, seconds in zip(kinds.values(), all_s, strict=True))
        weights = [1 / seconds / rate for seconds in all_s]
        return sum(
            min(w * sum(self._work_s((op,), k)) for k, w in zip(kinds, weights, strict=True))
            for op in operators
        )

    def boundary_s(self, layer: int) -> float:
        """Time to send one microbatch into a stage that begins at `layer`, and its gradient back.

        It is counted as if it did not overlap with compute, over the slowest link that may be
        between stages. Alpa leaves it out (§5.2), since its clusters have fast networks.
        """
        return self._boundaries_s[layer]

    def state_bytes(self) -> int:
        """Lower bound of the bytes of state and sums of gradients on all devices together."""
        return self._state_before[-1]

    def least_bytes(self, first: int, last: int) -> int:
        """The lower bound of `state_bytes` for layers `first` to `last` and their submesh."""
        return self._state_before[last + 1] - self._state_before[first]

    def held_bytes(self, first: int, last: int, held: int) -> int:
        """Lower bound of the bytes on all devices of a stage when its last forward ends.

        In any sharding of layers `first` to `last`, the devices then hold, at least once, every
        element of all inputs, of sums of gradients, and of the values that forward saves for each
        of `held` microbatches.
        """
        always, saved = self.held_parts(first, last)
        return always + held * saved

    def held_parts(self, first: int, last: int) -> tuple[int, int]:
        """What `held_bytes` is the sum of: the bytes held anyway, and those of each microbatch."""
        graph, step = self.layered.stage(first, last), self.layered.step
        saved = set(graph.saved)
        saved -= {output.value for output in graph.outputs if output.alias is not None}
        always = {name for name in graph.inputs if name not in saved}
        if step.microbatches > 1:
            always |= {name for name in step.summed if name in graph.producers}
        return (
            sum(graph.value(name).n_bytes for name in always),
            sum(graph.value(name).n_bytes for name in saved),
        )

    @cached_property
    def _boundaries_s(self) -> list[float]:
        """By layer, and for the cut after the last one, the time of `boundary_s`."""
        graph, link = self.layered.step.graph, self.pool.network
        change = [0.0] * (self.layered.n_layers + 2)
        for op in graph.operators:
            if op.phase == APPLY:
                continue
            source = self.layered.layer_of[op.name]
            for name in op.outputs:
                layers = [source, *self.layered.readers_of.get(name, ())]
                seconds = link.latency_s + graph.value(name).n_bytes / link.bandwidth_bytes_per_s
                change[min(layers) + 1] += seconds  # crosses each cut between the two
                change[max(layers) + 1] -= seconds
        return [max(0.0, total) for total in accumulate(change)]

    def _work_on(self, submesh: Submesh) -> tuple[list[float], list[float]]:
        """Prefix sums over the layers of both parts of `_work_s`, for all microbatches."""
        if submesh not in self._work_before:
            device = self.pool.device(submesh)
            if device not in self._work_of:
                self._work_of[device] = self._work_by(device)
            self._work_before[submesh] = self._work_of[device]
        return self._work_before[submesh]

    def _work_by(self, device: Device) -> tuple[list[float], list[float]]:
        work, launch = [0.0], [0.0]
        graph = self.layered.step.graph
        for operators in self.layered.operators_of:
            inside = map(graph.operators.__getitem__, operators)
            compute = (op for op in inside if op.phase != APPLY)
            work_s, launch_s = self._work_s(compute, device)
            work.append(work[-1] + work_s)
            launch.append(launch[-1] + launch_s)
        return work, launch

    def _work_s(self, operators: Iterable[Operator], device: Device) -> tuple[float, float]:
        """Time that one device needs in a step for operators' work, and that all need to begin it.

        The latter are launches, and the fill of products.
        """
        graph = self.layered.step.graph
        work_s = launch_s = 0.0
        for op in operators:
            if op.name in self.layered.local:  # another layer of the stage may have made it
                continue
            repeats = graph.phases[op.phase].repeats
            values = [graph.value(name) for name in (*op.inputs, *op.outputs)]
            accesses = op.accesses or Accesses((1.0,) * len(values))
            n_bytes = sum(v.n_bytes * n for v, n in zip(values, accesses.times, strict=True))
            dtype = autoshard.arithmetic_dtype(op.rule, tuple(value.dtype for value in values))
            product, fill_s = None, 0.0
            if device.products is not None:
                product = product_of(op.rule, op.flops, values[-1].itemsize)
                fill_s = device.products.fill_s * (product is not None and op.flops > 0)
            work_s += operator_bound(op.flops, n_bytes, device, dtype, product) * repeats
            launch_s += (device.launch_s * accesses.launches + fill_s) * repeats
        return work_s, launch_s

    @cached_property
    def _state_before(self) -> list[int]:
        """Prefix sums over the layers of the bytes of state and of sums of gradients.

        All sums are held when the last backward has ended and apply begins.
        """
        graph, before = self.layered.step.graph, [0]
        summed = set(self.layered.step.summed)
        for names, operators in zip(self.layered.kept_in, self.layered.operators_of, strict=True):
            produced = (name for i in operators for name in graph.operators[i].outputs)
            held = (*names, *(name for name in produced if name in summed))
            before.append(before[-1] + sum(graph.value(name).n_bytes for name in held))
        return before
