"""Run a plan in one process, on the devices that JAX has.

One loop goes through the stages' instruction lists. Each stage runs until it waits for a value
that has not arrived; if all of them wait, the lists are wrong and `DeadlockError` says who waits
for whom. Values live in slots, by name, layout and microbatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from costmodel import Cluster
from shardspec import Spec

from frontends.chunks import build_chunks, stages_of_operators
from frontends.errors import BatchError, DeadlockError
from frontends.instructions import (
    Accumulate,
    Free,
    Instruction,
    Load,
    Receive,
    Run,
    Send,
    build_instructions,
)
from frontends.jax.compile import (
    Progress,
    Submeshes,
    compile_chunks,
    make_adder,
    make_transports,
)
from frontends.jax.trace import Trace
from frontends.layers import LayeredStep
from frontends.plan import Plan, Stored

Shards = dict[int, np.ndarray[Any, Any]]
"""By device id."""


@dataclass(slots=True)
class _State:
    """All that lives during one step."""

    arguments: Sequence[Any]
    slots: list[dict[tuple[Stored, int | None], Any]]
    """Per stage; the microbatch is None for what lives all step."""

    mail: dict[tuple[int, int | None], Shards] = field(default_factory=dict)
    """Sent and not yet received, by transfer and microbatch."""


class Runtime:
    """A plan, compiled for the devices of this process.

    Args:
        trace: The step.
        layered: The same step in layers, from which the plan was made.
        plan: What to run.
        cluster: Tells which devices share a host.
        progress: Called as chunks are compiled.

    Raises:
        DeviceError: JAX has fewer devices than the plan uses.
        PlanError: The plan is for another step.
    """

    def __init__(
        self,
        trace: Trace,
        layered: LayeredStep,
        plan: Plan,
        cluster: Cluster,
        progress: Progress | None = None,
    ) -> None:
        self._trace, self.plan = trace, plan
        graph = layered.step.graph
        self._submeshes = Submeshes(plan, graph)
        self.chunks = build_chunks(graph, plan)
        self.instructions = build_instructions(layered.step, plan, self.chunks)
        self._transports = make_transports(plan, graph, cluster)
        self._adders = [
            make_adder(
                stage, next(i.summed for i in rank if isinstance(i, Accumulate)), self._submeshes
            )
            for stage, rank in enumerate(self.instructions)
        ]
        self._argument = {a.name: i for i, a in enumerate(trace.arguments)}
        copies = {(t.destination, t.value) for t in plan.transfers if t.phase == "state"}
        self._placed = [
            [
                stored
                for stored in stage.inputs
                if stored.value in trace.constants
                or (
                    stored.value in self._argument
                    and not trace.arguments[self._argument[stored.value]].is_batch
                    and (index, stored.value) not in copies
                )
            ]
            for index, stage in enumerate(plan.stages)
        ]
        self._constants = {
            (stage, stored): jax.device_put(
                trace.constants[stored.value], self._submeshes.sharding(stage, stored.spec)
            )
            for stage, placed in enumerate(self._placed)
            for stored in placed
            if stored.value in trace.constants
        }
        self._results = _find_results(trace, layered, plan)
        self.programs = compile_chunks(self.chunks, trace, graph, self._submeshes, progress)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """One training step.

        Args:
            arguments: The flattened arguments; state that a step returned is taken as it lies.

        Returns:
            The flattened results, each on the devices of the stage that made it.

        Raises:
            BatchError: An argument has another shape or type than the step was planned for.
        """
        self._check(arguments)
        state = _State(arguments, [{} for _ in self.instructions])
        for stage, placed in enumerate(self._placed):
            for stored in placed:
                state.slots[stage][stored, None] = self._place(stage, stored, arguments)
        position = [0] * len(self.instructions)
        while any(p < len(rank) for p, rank in zip(position, self.instructions, strict=True)):
            before = list(position)
            for stage, rank in enumerate(self.instructions):
                while position[stage] < len(rank) and _is_ready(rank[position[stage]], state):
                    self._execute(rank[position[stage]], stage, state)
                    position[stage] += 1
            if position == before:
                raise DeadlockError(self._who_waits(position))
        return [
            where if isinstance(where, np.ndarray) else state.slots[where[0]][where[1], None]
            for where in self._results
        ]

    def _execute(self, item: Instruction, stage: int, state: _State) -> None:
        slots = state.slots[stage]
        match item:
            case Load(slot, microbatch):
                slots[slot, microbatch] = self._load(stage, slot, microbatch, state.arguments)
            case Run(index, microbatch):
                chunk = self.chunks[index]
                reads = [
                    slots[slot, microbatch] if (slot, microbatch) in slots else slots[slot, None]
                    for slot in chunk.reads
                ]
                # XLA:CPU aborts if programs with collectives queue up for more threads than it has.
                results = jax.block_until_ready(self.programs[index](*reads))
                for slot, result in zip(chunk.writes, results, strict=True):
                    slots[slot, microbatch] = result
            case Send(index, microbatch):
                transfer = self.plan.transfers[index]
                array = slots[Stored(transfer.value, transfer.src_spec), microbatch]
                state.mail[index, microbatch] = self._transports[index](self._shards(array))
            case Receive(index, microbatch):
                transfer = self.plan.transfers[index]
                slot = Stored(transfer.value, transfer.dst_spec)
                shards = state.mail.pop((index, microbatch))
                slots[slot, microbatch] = self._assemble(stage, slot, shards)
            case Accumulate(summed, kept, microbatch):
                parts = [slots.pop((slot, microbatch)) for slot in summed]
                if summed and (summed[0], None) in slots:
                    totals = [slots[slot, None] for slot in summed]
                    parts = jax.block_until_ready(self._adders[stage](totals, parts))
                slots.update(((slot, None), part) for slot, part in zip(summed, parts, strict=True))
                slots.update({(slot, None): slots.pop((slot, microbatch)) for slot in kept})
            case Free(freed, microbatch):
                for slot in freed:
                    del slots[slot, microbatch]

    def _place(self, stage: int, stored: Stored, arguments: Sequence[Any]) -> Any:
        """An argument or constant in the layout of the plan; state of the last step already is."""
        if (stage, stored) in self._constants:
            return self._constants[stage, stored]
        where = self._submeshes.sharding(stage, stored.spec)
        array = arguments[self._argument[stored.value]]
        if isinstance(array, jax.Array) and array.sharding.is_equivalent_to(where, array.ndim):
            return array
        # JAX may use a numpy array's memory in place, and the caller may change it later.
        return jax.device_put(np.array(array), where)

    def _load(self, stage: int, slot: Stored, microbatch: int, arguments: Sequence[Any]) -> Any:
        batch = np.asarray(arguments[self._argument[slot.value]])
        size = len(batch) // self.plan.microbatches
        part = batch[microbatch * size : (microbatch + 1) * size]
        return jax.device_put(part, self._submeshes.sharding(stage, slot.spec))

    def _shards(self, array: jax.Array) -> Shards:
        """The shards by device id, without a copy."""
        ids = {device: i for i, device in enumerate(self._submeshes.devices)}
        return {ids[s.device]: np.asarray(s.data) for s in array.addressable_shards}

    def _assemble(self, stage: int, slot: Stored, shards: Shards) -> jax.Array:
        target = self._submeshes.abstract(stage, slot)
        devices = self._submeshes.devices
        parts = [jax.device_put(shard, devices[device]) for device, shard in shards.items()]
        return jax.make_array_from_single_device_arrays(target.shape, target.sharding, parts)

    def _check(self, arguments: Sequence[Any]) -> None:
        for given, expected in zip(arguments, self._trace.arguments, strict=True):
            aval = jax.typeof(given)
            shape, dtype = aval.shape, aval.dtype
            if shape != expected.shape or dtype != expected.dtype:
                raise BatchError(
                    "arguments must have the shapes and types that the step was planned for; got "
                    f"{expected.name} of {dtype}{list(shape)} instead of "
                    f"{expected.dtype}{list(expected.shape)}: plan again with parallelize"
                )

    def _who_waits(self, position: Sequence[int]) -> str:
        waits = []
        for stage, (p, rank) in enumerate(zip(position, self.instructions, strict=True)):
            if p < len(rank) and isinstance(item := rank[p], Receive):
                transfer = self.plan.transfers[item.transfer]
                waits.append(
                    f"stage {stage} waits for {transfer.value} of microbatch {item.microbatch} "
                    f"from stage {transfer.source}"
                )
        return "every receive needs a send before it; " + ", ".join(waits)


def _is_ready(item: Instruction, state: _State) -> bool:
    return not isinstance(item, Receive) or (item.transfer, item.microbatch) in state.mail


def _find_results(
    trace: Trace, layered: LayeredStep, plan: Plan
) -> list[np.ndarray[Any, Any] | tuple[int, Stored]]:
    """For each result a constant, or the stage and slot that it ends up in."""
    graph, stage_of = layered.step.graph, stages_of_operators(plan)
    stored = [{s.value: s.spec for s in stage.inputs} for stage in plan.stages]
    found = {}
    for output in graph.outputs:
        stage = stage_of[graph.operators[graph.producers[output.value][0]].name]
        if output.alias is not None:
            spec = stored[stage][output.alias]
        else:
            spec = Spec.replicated(len(graph.value(output.value).shape))
        found[output.value] = (stage, Stored(output.value, spec))
    return [r if isinstance(r, np.ndarray) else found[r] for r in trace.results]
