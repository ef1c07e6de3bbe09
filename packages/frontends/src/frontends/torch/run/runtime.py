"""Run a plan on virtual devices of one process, or on the device of each of several processes.

All that a step does is bound once. A step is one loop over the bound calls, in an order that is the
same in all processes; each has the calls of its own stages. State stays on the devices between
steps, as the plan lays it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch
from costmodel import Cluster

from frontends.answer.plan import Plan
from frontends.base.heartbeat import Watched
from frontends.base.present import present
from frontends.errors import BatchError, InternalError, PlanError, StepError
from frontends.layers.layers import LayeredStep
from frontends.plan.plan_fields import Stored
from frontends.program.instructions import Instruction, Key
from frontends.program.program import build_program
from frontends.program.register_allocation import Binder, Registers, find_dying
from frontends.program.state_locations import find_placed, find_results
from frontends.program.transfers import plan_transfers
from frontends.step.step import PHASE_NAMES
from frontends.torch.base.blame import failure
from frontends.torch.base.calls import Tensor
from frontends.torch.lower.lower import Compute, values_of
from frontends.torch.run.dtensors import DTensors
from frontends.torch.run.engine import Executed, Sliceable, TorchEngine
from frontends.torch.run.execute import OperatorError
from frontends.torch.run.lockstep import Shards
from frontends.torch.run.shared import SharedState, write
from frontends.torch.run.team import Team
from frontends.torch.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Parts:
    """Values of some of a step's state, as a process keeps them."""

    shards: dict[Key, Shards] = field(default_factory=dict)
    whole: dict[str, Tensor] = field(default_factory=dict)
    """Of what each process keeps whole, by name."""

    names: set[str] = field(default_factory=set)
    """Of all that has these values, also in other processes."""


class Runtime:
    """A plan, ready to run in this process.

    Args:
        trace: The step.
        layered: The same step in layers, from which the plan was made.
        plan: What to run.
        cluster: Tells which devices share a host.
        state: Whole tensors to begin with, by name; they are copied. Those on the meta device are
            to be there before the first step: see `load` and `take`.
        rank: Of this process, which is its device; None if all devices are virtual ones of this
            process.
        deadline_s: Where there are several processes, how long a step may stand still before they
            end and say who is at fault.
        shared: Where the state stays, if it is not copied from `state`: a step writes its new
            values there. Only where all devices are virtual ones.
        is_kept: Whether the old state is not written over before all has been computed.

    Raises:
        DeviceError: There are fewer processes than devices.
        PlanError: The plan is for another step, or its schedule cannot run, or another process has
            another plan.
        DeadlockError: The plan's transfers wait for each other.
    """

    def __init__(
        self,
        trace: Trace,
        layered: LayeredStep,
        plan: Plan,
        cluster: Cluster,
        state: Mapping[str, Tensor],
        *,
        rank: int | None = None,
        deadline_s: float = 60.0,
        shared: SharedState | None = None,
        is_kept: bool = False,
    ) -> None:
        if rank is not None and shared is not None:
            raise InternalError(f"a process of several keeps parts; got all, and rank={rank}")
        self._trace, self.plan = trace, plan
        self.program = program = build_program(layered.step, plan)
        self.engine = TorchEngine(program, trace, rank)
        is_local = {stage: self.engine.is_local(stage) for stage in range(len(plan.stages))}
        planned = plan_transfers(program, cluster)
        found = find_results(program)
        self._team = None
        if rank is not None:
            asked = {name: result for name, result in found.items() if result.is_whole}
            self._team = Team(plan, program, self.engine, planned, asked, deadline_s)
        mail = None if self._team is None else self._team.courier
        self._arguments = {a.name: a for a in trace.arguments}
        other = {a.name for a in trace.arguments if not a.is_batch}
        self._places = find_placed(plan, trace.constants, other)
        keys = [key for key in self._places if is_local[key[0]]]
        given = {key for key in keys if key[1].value in layered.updated}
        dying = find_dying(program, given)
        read_early = {name for early in trace.early for name in early.reads}
        sent = {(t.source, Stored(t.value, t.src_spec)) for t in plan.transfers}  # some time later
        mine = {key[:2] for key in given if key[1].value not in read_early} - sent
        mine = set() if is_kept else mine
        self.engine.given = {
            index: [i for i in places if (chunk.stage, chunk.reads[i]) in mine]
            for index, chunk in enumerate(program.chunks)
            for places in [dying.get(index, ())]
        }
        binder = Binder(program, self.engine, dying, planned, mail)
        self._registers = {key: binder.register(key) for key in keys}
        self._calls = binder.bind_all(is_local)
        self._batches = {
            key[1]: register
            for key, register in binder.registers.items()
            if isinstance(key, tuple) and key[0] == "batch"
        }
        self._placers = {key: self.engine.placer(key[0], key[1].value, key[1].spec) for key in keys}
        self._results: dict[str, int] = {}
        """The register of each result that the user asks for, if it is here."""

        self._updates: dict[int, Key] = {}
        """The register of each update that is made here, and the state whose place it takes."""

        aliases = {output.value: output.alias for output in layered.step.graph.outputs}
        for name, result in found.items():
            stage, slot, _ = result.key
            if not is_local[stage]:
                continue
            register = binder.register(result.key)
            if result.is_whole:
                self._results[name] = register
                continue
            alias = present(aliases[name], "what is not whole is state")
            self._updates[register] = stage, Stored(alias, slot.spec), None
        self._n_registers = len(binder.registers)
        self._kept: dict[Key, Shards] = {}
        self.whole: dict[str, Tensor] = {}
        """State that each process has whole: no stage reads it, or it is read beforehand."""

        early = read_early - layered.updated
        placed = {key[1].value for key in self._places}
        self._is_whole = {name: name in early or name not in placed for name in state}
        self._missing = frozenset(state)

        self._shared: SharedState | None = None
        self._places_seen: dict[str, int] = {}
        self.load(trace.constants if shared is not None else {**trace.constants, **state})
        self._shared = shared

    @property
    def missing(self) -> frozenset[str]:
        """State that has no values yet, in no process."""
        return self._missing if self._shared is None else self._shared.missing

    @property
    def state_names(self) -> frozenset[str]:
        """All that is kept from step to step."""
        return frozenset(self._is_whole)

    def has(self, name: str) -> bool:
        """Whether this process keeps some of a tensor of the state."""
        return self._is_whole[name] or any(key[1].value == name for key in self._placers)

    def load(self, state: Mapping[str, Sliceable]) -> None:
        """Go on from other values of some of the state.

        Args:
            state: Whole tensors, or what reads parts of them, by name; they are copied.
        """
        parts = Parts()
        for name, whole in state.items():
            self.cut(name, whole, parts)
        self.take(parts)

    def cut(self, name: str, whole: Sliceable, parts: Parts) -> None:
        """Add to `parts` copies of what this process keeps of a tensor."""
        if not (isinstance(whole, Tensor) and whole.is_meta):
            parts.names.add(name)
        for key, place in self._placers.items():
            if key[1].value == name:
                copies: dict[int, Tensor] = {}
                parts.shards[key] = [copies.setdefault(id(t), _copy(t)) for t in place(whole)]
        if self._is_whole.get(name):
            parts.whole[name] = _copy(whole[...])

    def take(self, parts: Parts) -> None:
        """Go on from other values of some of the state, as `cut` or `empty` makes them."""
        if self._shared is not None:
            self._shared.make(parts.names)
            self._look_again(self._shared)
            for key, shards in parts.shards.items():
                if key[1].value in self._is_whole:
                    write(zip(self._kept[key], shards, strict=True))
            write((self._shared.tensors[name], whole) for name, whole in parts.whole.items())
            return
        self._kept.update(parts.shards)
        self.whole.update(parts.whole)
        self._missing = self._missing - parts.names

    def take_from(self, other: Runtime, names: Collection[str]) -> None:
        """Go on from the state of another runtime of this process; all processes do so together.

        What both keep alike is handed over; the rest is put together, tensor by tensor.

        Args:
            other: Of another plan for the same state.
            names: What to take.
        """
        alike = {
            name
            for name in names
            if self._homes(name) == other._homes(name)
            and self._is_whole[name] == other._is_whole[name]
        }
        for key in self._placers:
            if key[1].value in alike:
                self._kept[key] = other._kept[key]
        self.whole.update((name, other.whole[name]) for name in alike if name in other.whole)
        for name in names:
            if name not in alike:
                parts = Parts()
                self.cut(name, other.whole_of(name), parts)
                self.take(parts)
        self._missing = other.missing

    def _homes(self, name: str) -> list[tuple[tuple[int, ...], tuple[int, ...], Key]]:
        """Where a tensor is kept, in all processes."""
        meshes = [stage.mesh for stage in self.plan.stages]
        return [
            (tuple(meshes[key[0]].device_ids), meshes[key[0]].shape, key)
            for key in self._places
            if key[1].value == name
        ]

    def whole_of(self, name: str) -> Tensor:
        """One tensor of the state as a whole; where there are several processes, all call it."""
        if name in self.whole:
            return self.whole[name]
        key = next(key for key in self._places if key[1].value == name)
        shards = self._kept.get(key)
        if self._team is not None:
            return self._team.whole(key, shards)
        mine = present(shards, "all devices are in this process")
        return self.engine.whole(key[0], key[1], mine)

    def _look_again(self, shared: SharedState) -> None:
        """See the shards of shared state where it is now: somebody may have put it elsewhere."""
        shared.look()
        for name in self._is_whole:
            place = shared.place(name)
            if self._places_seen.get(name) == place:
                continue
            self._places_seen[name] = place
            tensor = shared.tensors[name]
            for key, put in self._placers.items():
                if key[1].value == name:
                    self._kept[key] = put(tensor)
            if self._is_whole[name]:
                self.whole[name] = tensor

    @cached_property
    def dtensors(self) -> DTensors:
        """Makes DTensors of shards; asked for by all processes together."""
        return DTensors(self.plan, self.program.step.graph)

    @property
    def shards(self) -> dict[Key, Shards]:
        """What this process has of the state that is not whole everywhere."""
        return {k: s for k, s in self._kept.items() if self._is_whole.get(k[1].value) is False}

    def empty(self) -> Parts:
        """New tensors for all that this process keeps of the state, to be filled."""
        parts = Parts(names=set(self._is_whole))
        for key in self._placers:
            if self._is_whole.get(key[1].value) is False:
                parts.shards[key] = self.engine.empty(key[0], key[1])
        for name, is_whole in self._is_whole.items():
            if is_whole and self._shared is not None:
                parts.whole[name] = torch.empty_like(self._shared.tensors[name], device="cpu")
            elif is_whole:
                parts.whole[name] = torch.empty_like(self.whole[name], device="cpu")
        return parts

    @torch.no_grad()
    def __call__(
        self,
        values: Mapping[str, Tensor],
        check: Callable[[Mapping[str, Tensor]], None] | None = None,
    ) -> dict[str, Tensor]:
        """One training step.

        Args:
            values: All arguments that are not state, by name.
            check: Is given what the step returns before the state is written; what it raises leaves
                the state as it was. Only where it is shared, and `is_kept`.

        Returns:
            What the step returns to the user, whole, by name.

        Raises:
            BatchError: An argument has another shape or type than the step was planned for.
            PlanError: The state is not there yet.
            StepError: An operator fails.
        """
        self._check(values)
        if self._team is None:
            return self._step(values, None, check)
        with self._team.step() as at:
            return self._team.share(self._step(values, at))

    def _step(
        self,
        values: Mapping[str, Tensor],
        at: Watched | None,
        check: Callable[[Mapping[str, Tensor]], None] | None = None,
    ) -> dict[str, Tensor]:
        """What is returned to the user and made in this process."""
        registers: Registers = [None] * self._n_registers
        if self._shared is not None:
            self._look_again(self._shared)
        for key, register in self._registers.items():
            kept = self._kept.get(key)
            registers[register] = self._placers[key](values[key[1].value]) if kept is None else kept
        for name, register in self._batches.items():
            registers[register] = values[name]
        if self._shared is not None:
            return self._step_on_shared(self._shared, registers, check)
        for key in self._updates.values():  # the old state goes as soon as nothing reads it
            del self._kept[key]
        try:
            self._run(registers, at)
        except BaseException:
            self._take_back(registers)
            raise
        for register, key in self._updates.items():
            self._kept[key] = registers[register]
        return {name: registers[register][0] for name, register in self._results.items()}

    def _run(self, registers: Registers, at: Watched | None) -> None:
        """All calls of this process, in their order."""
        place = 0
        try:
            for place, call in self._calls:
                if at is not None:
                    at.place = place
                call(registers)
        except OperatorError as error:
            cause = error.cause
            raise self._failure(error.node, self.program.instructions[place], cause) from cause

    def _failure(self, node: Compute, item: Instruction, error: Exception) -> StepError:
        """What an operator's error is to the user."""
        graph = self.program.step.graph
        operator = next(op for op in graph.operators if op.name == node.name)
        call = self._trace.calls.get(node.name)
        where = f"in {PHASE_NAMES[operator.phase]} of stage {item.stage}"
        if item.microbatch is not None and self.plan.microbatches > 1:
            where += f", microbatch {item.microbatch} of 0 to {self.plan.microbatches - 1}"
        return failure(
            "a sum over copies" if call is None else str(call.target),
            self._trace.origins.get(node.name),
            values_of(operator, graph, self._trace),
            where,
            error,
            item.stage,
        )

    def _step_on_shared(
        self,
        shared: SharedState,
        registers: Registers,
        check: Callable[[Mapping[str, Tensor]], None] | None,
    ) -> dict[str, Tensor]:
        """The same where the state stays where it is: it is written when all has been computed."""
        self._run(registers, None)
        results = {name: registers[register][0] for name, register in self._results.items()}
        made = {
            register: [shared.apart(tensor) for tensor in registers[register]]
            for register in self._updates
        }
        results = {name: shared.apart(tensor) for name, tensor in results.items()}
        if check is not None:
            check(results)
        for register, key in self._updates.items():
            write(zip(self._kept[key], made[register], strict=True))
        return results

    def _take_back(self, registers: Registers) -> None:
        """Keep what a step that failed has not updated yet: all, unless it was updating state."""
        for key in self._updates.values():
            held = registers[self._registers[key]]
            if held is not None:
                self._kept[key] = held

    def whole_state(self) -> dict[str, Tensor]:
        """All state as whole tensors, by name; where there are several processes, all call it.

        Raises:
            PlanError: Some of it has no values yet, or a step failed while it updated it.
        """
        self.check_there()
        if self._shared is not None:
            return {name: t.clone() for name, t in self._shared.tensors.items()}
        found = {name: tensor.clone() for name, tensor in self.whole.items()}
        for key in self._places:
            name = key[1].value
            if name not in found and name in self._is_whole:
                found[name] = self.whole_of(name).clone()
        return found

    def value(self, name: str) -> Tensor:
        """A tensor of the state that is whole on a device of this process."""
        if self._shared is not None:
            return self._shared.tensors[name]
        if name in self.whole:
            return self.whole[name]
        return next(shards[0] for (_, slot, _), shards in self._kept.items() if slot.value == name)

    @contextmanager
    def recording(self) -> Iterator[dict[tuple[int, int], Counter[Executed]]]:
        """Count the collectives that run meanwhile, by stage and phase."""
        executed = self.engine.executed = {}
        self.engine.is_recording = True
        try:
            yield executed
        finally:
            self.engine.is_recording = False

    def check_there(self) -> None:
        """`PlanError` if some of the state has no values, or lost them."""
        if self._shared is not None:
            self._look_again(self._shared)
        lost = [key[1].value for key in self._updates.values() if key not in self._kept]
        if lost:
            raise PlanError(
                "a step goes on from a state that is there; a step failed while it updated "
                f"{lost[0]} and {len(lost) - 1} others: load it, by load_state_dict or restore"
            )
        if self.missing:
            raise PlanError(
                "a step runs on weights that are there; "
                f"{min(self.missing)} and {len(self.missing) - 1} others are on the meta device: "
                "make them by init, or load them by load_state_dict or restore"
            )

    def _check(self, values: Mapping[str, Tensor]) -> None:
        self.check_there()
        for name, given in values.items():
            expected = self._arguments[name]
            if tuple(given.shape) != expected.shape or given.dtype != expected.dtype:
                raise BatchError(
                    "arguments must have the shapes and types that the step was planned for; got "
                    f"{name} of {given.dtype}{list(given.shape)} instead of "
                    f"{expected.dtype}{list(expected.shape)}: plan again with parallelize"
                )


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)
