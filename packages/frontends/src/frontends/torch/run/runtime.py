"""Runs a plan on virtual devices of one process, or on one device in each of several processes.

All calls of a step are bound once. A step is a loop over the bound calls, in an order that is the
same in all processes; each process has the calls of its own stages. Between steps, state stays on
the devices in the layouts of the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from costmodel import Cluster
from torch.profiler import record_function

from frontends.answer.plan import Plan
from frontends.base.heartbeat import Watched
from frontends.base.present import present
from frontends.errors import BatchError, InternalError, StepError
from frontends.layers.layers import LayeredStep
from frontends.plan.plan_fields import Stored
from frontends.program.instructions import Instruction, Key
from frontends.program.program import build_program
from frontends.program.register_allocation import Binder, Registers, find_dying
from frontends.program.state_locations import find_results
from frontends.program.transfers import plan_transfers
from frontends.step.step import PHASE_NAMES
from frontends.torch.base.blame import failure
from frontends.torch.base.calls import Tensor
from frontends.torch.base.compat.profiling import is_profiling
from frontends.torch.lower.lower import values_of
from frontends.torch.lower.nodes import Compute
from frontends.torch.run.compiled import N_ROUNDS, Tell, compile_all
from frontends.torch.run.engine import Executed, TorchEngine
from frontends.torch.run.kept_state import KeptState
from frontends.torch.run.operator_error import OperatorError
from frontends.torch.run.processes import gather
from frontends.torch.run.ranges import name_of
from frontends.torch.run.shared import SharedState, write
from frontends.torch.run.team import Team
from frontends.torch.trace.trace import Trace


class Runtime(KeptState):
    """A plan, ready to run in this process.

    Args:
        trace: The step.
        layered: The same step in layers, for which the plan was made.
        plan: The plan to run.
        cluster: Tells which devices share a host.
        state: Whole tensors to begin with, by name; they are copied. Those on the meta device need
            values before the first step: see `load` and `take`.
        rank: The rank of this process, which is also its device; None if all devices are virtual
            ones of this process.
        deadline_s: With several processes, how long a step may make no progress before they end
            and name the process at fault.
        shared: Where the state stays if it is not copied from `state`: a step writes its new
            values there. Only if all devices are virtual ones.
        is_kept: Whether the old state must not be overwritten before all has been computed.
        tell: Reports the progress of compiling; None to run operators one by one.

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
        tell: Tell | None = None,
    ) -> None:
        if rank is not None and shared is not None:
            raise InternalError(
                f"one of several processes does not share the whole state; got rank={rank}"
            )
        self._trace, self.program = trace, build_program(layered.step, plan)
        program = self.program
        engine = TorchEngine(program, trace, rank, is_compiled=tell is not None)
        self._tell, self._rounds = tell, N_ROUNDS
        planned = plan_transfers(program, cluster)
        results = find_results(program)
        team = None
        if rank is not None:
            returned = {name: result for name, result in results.items() if result.is_whole}
            team = Team(plan, program, trace, engine, planned, returned, deadline_s)
        super().__init__(trace, plan, engine, team, layered.updated, state, shared)
        mail = None if team is None else team.courier
        self._arguments = {a.name: a for a in trace.arguments}
        self._rows = {name: torch.tensor(rows) for name, rows in trace.rows.items()}
        is_local = {stage: engine.is_local(stage) for stage in range(len(plan.stages))}
        updated = {key for key in self._placers if key[1].value in layered.updated}
        dying = find_dying(program, updated)
        read_early = trace.read_early
        sent = {(t.source, Stored(t.value, t.src_spec)) for t in plan.transfers}  # some time later
        overwritable = {key[:2] for key in updated if key[1].value not in read_early} - sent
        overwritable = set() if is_kept else overwritable
        engine.given = {
            index: [i for i in places if (chunk.stage, chunk.reads[i]) in overwritable]
            for index, chunk in enumerate(program.chunks)
            for places in [dying.get(index, ())]
        }
        binder = Binder(program, engine, dying, planned, mail)
        self._registers = {key: binder.register(key) for key in self._placers}
        self._calls = binder.bind_all(is_local)
        self._batches = {
            key[1]: register
            for key, register in binder.registers.items()
            if isinstance(key, tuple) and key[0] == "batch"
        }
        self._results: dict[str, int] = {}
        """By name, the register of each result for the user that this process computes."""

        self._updates: dict[int, Key] = {}
        """By register of each update that this process computes, the state that it replaces."""

        aliases = {output.value: output.alias for output in layered.step.graph.outputs}
        for name, result in results.items():
            stage, slot, _ = result.key
            if not is_local[stage]:
                continue
            register = binder.register(result.key)
            if result.is_whole:
                self._results[name] = register
                continue
            alias = present(aliases[name], "a result that is not whole is state")
            self._updates[register] = stage, Stored(alias, slot.spec), None
        self._n_registers = len(binder.registers)

    @torch.no_grad()
    def __call__(
        self,
        values: Mapping[str, Tensor],
        check: Callable[[Mapping[str, Tensor]], None] | None = None,
    ) -> dict[str, Tensor]:
        """Run one training step.

        Args:
            values: All arguments that are not state, by name.
            check: Called with the results before the state is written; if it raises, the state
                stays as it was. Only if the state is shared, and `is_kept`.

        Returns:
            The results for the user as whole tensors, by name.

        Raises:
            BatchError: An argument has another shape or type than the step was planned for.
            PlanError: Some state has no values.
            StepError: An operator fails.
        """
        self._check(values)
        if self._team is None:
            results = self._step(values, None, check)
        else:
            with self._team.step() as at:
                results = self._team.share(self._step(values, at))
        if self._tell is not None and self._rounds:
            self._rounds -= 1
            compile_all(present(self.engine.runners, "there are regions"), self._tell)
            if self._team is not None:
                gather("compiled")  # so that none waits for another's compiler within a step
        return results

    def _step(
        self,
        values: Mapping[str, Tensor],
        at: Watched | None,
        check: Callable[[Mapping[str, Tensor]], None] | None = None,
    ) -> dict[str, Tensor]:
        """Run a step; return the results for the user that this process computes."""
        registers: Registers = [None] * self._n_registers
        if self._shared is not None:
            self._look_again(self._shared)
        for key, register in self._registers.items():
            kept = self._kept.get(key)
            registers[register] = self._placers[key](values[key[1].value]) if kept is None else kept
        for name, register in self._batches.items():
            rows = self._rows.get(name)
            registers[register] = values[name] if rows is None else values[name][rows]
        if self._shared is not None:
            return self._step_on_shared(self._shared, registers, check)
        self._release(self._updates.values())  # so that old state is freed after its last read
        try:
            self._run(registers, at)
        except BaseException:
            self._take_back(registers)
            raise
        for register, key in self._updates.items():
            self._kept[key] = registers[register]
        return {name: registers[register][0] for name, register in self._results.items()}

    def _run(self, registers: Registers, at: Watched | None) -> None:
        """Make all calls of this process, in their order."""
        place, instructions = 0, self.program.instructions
        is_named = is_profiling()
        try:
            for place, call in self._calls:
                if at is not None:
                    at.place = place
                if is_named and (name := name_of(instructions[place], self.program)):
                    with record_function(name):
                        call(registers)
                else:
                    call(registers)
        except OperatorError as error:
            cause = error.cause
            raise self._failure(error.node, instructions[place], cause) from cause

    def _failure(self, node: Compute, item: Instruction, error: Exception) -> StepError:
        """Return the error to raise when an operator fails."""
        graph = self.program.step.graph
        operator = next((op for op in graph.operators if op.name == node.name), None)
        if operator is None:  # a slice, which can only lack memory
            stage = item.stage
            return failure("a slice", None, [node.name], f"in stage {stage}", error, stage)
        call = self._trace.calls.get(node.name)
        where = f"in {PHASE_NAMES[operator.phase]} of stage {item.stage}"
        if item.microbatch is not None and self.plan.microbatches > 1:
            where += f", microbatch {item.microbatch} of 0 to {self.plan.microbatches - 1}"
        return failure(
            "a sum over replicas" if call is None else str(call.target),
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
        """Run a step on shared state, which is written when all has been computed."""
        self._run(registers, None)
        results = {name: registers[register][0] for name, register in self._results.items()}
        updates = {
            register: [
                new if new is old else shared.apart(new)  # it was overwritten by the step
                for old, new in zip(self._kept[key], registers[register], strict=True)
            ]
            for register, key in self._updates.items()
        }
        results = {name: shared.apart(tensor) for name, tensor in results.items()}
        if check is not None:
            check(results)
        for register, key in self._updates.items():
            write(zip(self._kept[key], updates[register], strict=True))
        return results

    def _take_back(self, registers: Registers) -> None:
        """Restore the state that a failed step has not overwritten: all, if no update began."""
        for key in self._updates.values():
            held = registers[self._registers[key]]
            if held is not None:
                self._kept[key] = held

    @contextmanager
    def recording(self) -> Iterator[dict[tuple[int, int], Counter[Executed]]]:
        """Inside, count the collectives that run, by stage and phase."""
        executed = self.engine.executed = {}
        self.engine.is_recording = True
        try:
            yield executed
        finally:
            self.engine.is_recording = False

    def _check(self, values: Mapping[str, Tensor]) -> None:
        self.check_there()
        for name, value in values.items():
            expected = self._arguments[name]
            if tuple(value.shape) != expected.shape or value.dtype != expected.dtype:
                raise BatchError(
                    "arguments must have the shapes and types that the step was planned for; got "
                    f"{name} of {value.dtype}{list(value.shape)} instead of "
                    f"{expected.dtype}{list(expected.shape)}: plan again with parallelize"
                )
            if value.device.type != "cpu":
                raise BatchError(
                    f"steps run on CPUs; got {name} on the device {value.device}: make it there, "
                    "or move it"
                )
