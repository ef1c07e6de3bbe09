"""Run a plan on the devices that JAX has.

Everything that a step does is bound once, to functions that are called in every step. A step is one
loop over these calls, in an order that is the same in all processes; each process has the calls of
its own stages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from costmodel import Cluster
from jax.sharding import NamedSharding

from frontends.answer.plan import Plan
from frontends.base.heartbeat import Watched
from frontends.errors import BatchError, DeviceError
from frontends.jax.base import _compat
from frontends.jax.base.arguments import check_kept
from frontends.jax.lower.compile import Submeshes, compile_chunks
from frontends.jax.run.blame import Blame
from frontends.jax.run.engine import JaxEngine
from frontends.jax.run.team import Team
from frontends.jax.trace.trace import Trace
from frontends.layers.layers import LayeredStep
from frontends.program.instructions import Key
from frontends.program.program import build_program
from frontends.program.register_allocation import Binder, Registers, find_dying
from frontends.program.state_locations import Result, find_placed, find_results
from frontends.program.transfers import plan_transfers
from frontends.search.plan_options import Progress

_FEW = 4
"""A step returns leaves of state of at most this many numbers whole, even if stages have different
devices: counters, keys, scales, metrics."""


class Runtime:
    """A plan, compiled for the devices of this process.

    Args:
        trace: The step.
        layered: The same step in layers, from which the plan was made.
        plan: The plan to run.
        cluster: Says which devices share a host.
        progress: Called as chunks are compiled.
        donate: Whether a step may write over the state in its arguments, as `jax.jit` does with
            `donate_argnums`. The caller's arrays are deleted then, also those that the step first
            had to move to another sharding.
        deadline_s: In a run of several processes, how long a step may stand still before the
            processes end and say which one is at fault.

    Raises:
        DeviceError: JAX has fewer devices than the plan uses, or processes that MPI does not join.
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
        progress: Progress | None = None,
        *,
        donate: bool = False,
        deadline_s: float = 60.0,
    ) -> None:
        self._trace, self.plan, self.donate = trace, plan, donate
        self.program = program = build_program(layered.step, plan)
        self.submeshes = Submeshes(plan, layered.step.graph)
        is_local = {stage: self.submeshes.is_local(stage) for stage in range(len(plan.stages))}
        self._argument = {a.name: i for i, a in enumerate(trace.arguments)}
        self._dtypes = [a.dtype for a in trace.arguments]
        self._rows = {self._argument[name]: np.asarray(r) for name, r in trace.rows.items()}
        state = {a.name for a in trace.arguments if not a.is_batch}
        self.placed = placed = [
            key for key in find_placed(plan, trace.constants, state) if is_local[key[0]]
        ]
        donated = {key for key in placed if key[1].value in layered.updated} if donate else set()
        self._donated = donated
        planned = plan_transfers(program, cluster)
        result_of = find_results(program)
        results = [r if isinstance(r, np.ndarray) else result_of[r] for r in trace.results]
        if jax.process_count() == 1 and len(plan.stages) > 1:
            results = [r if isinstance(r, np.ndarray) else self._usable(r) for r in results]
        self._team = None
        if jax.process_count() > 1:
            whole = [r for r in results if not isinstance(r, np.ndarray) and r.is_whole]
            tensors = {r.key[1].value: (r.key[0], self._abstract(r.key)) for r in whole}
            self._team = Team(plan, program, trace, self.submeshes, planned, tensors, deadline_s)
        dying = find_dying(program, donated)
        self.programs = compile_chunks(program, trace, self.submeshes, dying, progress)
        mail = None if self._team is None else self._team.courier
        blame = Blame(program, trace, self.submeshes)
        engine = JaxEngine(program, self.submeshes, self.programs, blame)
        binder = Binder(program, engine, dying, planned, mail)
        self._placed = [
            (binder.register(key), key, self.submeshes.sharding(key[0], key[1].spec))
            for key in placed
        ]
        self._constants = {
            key: self.submeshes.put(np.asarray(trace.constants[key[1].value]), sharding)
            for _, key, sharding in self._placed
            if key[1].value in trace.constants
        }
        self._calls = binder.bind_all(is_local)
        self._batches = {
            register: self._argument[key[1]]
            for key, register in binder.registers.items()
            if isinstance(key, tuple) and key[0] == "batch"
        }
        self._results = [
            (binder.register(r.key), r) if isinstance(r, Result) else r for r in results
        ]
        self._n_registers = len(binder.registers)
        if self._team is not None:
            self._team.wait_for_all()

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run one training step.

        Args:
            arguments: The flattened arguments; state that a step returned is used where it lies.

        Returns:
            The flattened results. State lies on the devices of its stage, except, in a run of one
            process, for leaves of a few numbers. Everything else is whole on one device of each
            process, and may be combined with any other array of the process.

        Raises:
            BatchError: An argument has another shape or dtype than the step was planned for.
        """
        self._check(arguments)
        if self._team is None:
            return self._step(arguments, None)
        with self._team.step() as at:
            return self._step(arguments, at)

    def _step(self, arguments: Sequence[Any], at: Watched | None) -> list[Any]:
        values: Registers = [None] * self._n_registers
        for register, key, sharding in self._placed:
            values[register] = self._place(key, sharding, arguments)
        if self._donated:
            self._separate(values)
        for register, index in self._batches.items():
            values[register] = self._numbers(arguments[index], index)
        self._let_go(values, arguments)
        if at is None:
            for _, call in self._calls:
                call(values)
        else:
            for place, call in self._calls:
                at.place = place
                call(values)
        shared = {} if self._team is None else self._share(self._team, values)
        return [
            r if isinstance(r, np.ndarray) else self._result(*r, values, shared)
            for r in self._results
        ]

    def _share(self, team: Team, values: Registers) -> dict[str, Any]:
        """By name, the results that are returned whole, on a device of this process."""
        local = {
            result.key[1].value: self.submeshes.shards(values[register])
            if self.submeshes.is_local(result.key[0])
            else {}
            for register, result in (r for r in self._results if not isinstance(r, np.ndarray))
            if result.is_whole
        }
        return team.share(local)

    def _result(
        self, register: int, result: Result, values: Registers, shared: Mapping[str, Any]
    ) -> Any:
        if result.key[1].value in shared:
            return shared[result.key[1].value]
        if values[register] is not None:
            return _compat.free(values[register]) if result.is_whole else values[register]
        elsewhere = self._abstract(result.key)  # a handle without data
        return jax.make_array_from_single_device_arrays(
            elsewhere.shape, elsewhere.sharding, [], dtype=elsewhere.dtype
        )

    def _usable(self, result: Result) -> Result:
        """The result, whole if it is state of a few numbers: training loops read and combine it."""
        n = math.prod(self.program.step.graph.value(result.key[1].value).shape)
        return replace(result, is_whole=result.is_whole or n <= _FEW)

    def _abstract(self, key: Key) -> jax.ShapeDtypeStruct:
        return self.submeshes.abstract(key[0], key[1])

    def _place(self, key: Key, sharding: NamedSharding, arguments: Sequence[Any]) -> Any:
        """An argument or constant in the plan's layout; state of the last step has it already."""
        if key in self._constants:
            return self._constants[key]
        index = self._argument[key[1].value]
        array = arguments[index]
        if isinstance(array, jax.Array):
            check_kept(key[1].value, array)
            if array.sharding.is_equivalent_to(sharding, array.ndim):
                return array
            if not array.is_fully_addressable:
                return self._from_others(key[1].value, array, sharding)
            if array.size <= _FEW and self._team is None:  # without waiting for the step before
                return jax.device_put(jnp.copy(array), sharding)
        # A copy: JAX may use a numpy array's memory in place, and the caller may change it later.
        return self.submeshes.put(np.array(array, self._dtypes[index]), sharding)

    def _numbers(self, array: Any, index: int) -> np.ndarray[Any, Any]:
        """The numbers of a batch, copied if the caller could fill the same array again."""
        if isinstance(array, jax.Array):
            numbers = np.asarray(array, self._dtypes[index])
        else:
            numbers = np.array(array, self._dtypes[index])
        rows = self._rows.get(index)
        return numbers if rows is None else numbers[rows]

    def _from_others(self, name: str, array: jax.Array, sharding: NamedSharding) -> jax.Array:
        """State that lies in several processes, moved to another layout."""
        try:
            moved: jax.Array = jax.device_put(array, sharding)
            return moved
        except Exception as error:
            raise DeviceError(
                "state that lies in several processes stays where the first plan keeps it; this "
                f"step needs {name} as {sharding}, and has it as {array.sharding}: save a "
                "checkpoint, and restore it into the abstract_state of a step that is planned for "
                "this call"
            ) from error

    def _separate(self, values: Registers) -> None:
        """Let no two registers of state share an array, as one of them may be written over."""
        seen: set[int] = set()
        for register, _, _ in self._placed:
            if id(values[register]) in seen:
                values[register] = jnp.copy(values[register])
            seen.add(id(values[register]))

    def _let_go(self, values: Registers, arguments: Sequence[Any]) -> None:
        """Delete donated arrays that were moved to another sharding; XLA deletes all others."""
        in_place = {id(values[register]) for register, _, _ in self._placed}
        for key in self._donated:
            array = arguments[self._argument[key[1].value]]
            if isinstance(array, jax.Array) and id(array) not in in_place:
                array.delete()

    def _check(self, arguments: Sequence[Any]) -> None:
        for argument, expected in zip(arguments, self._trace.arguments, strict=True):
            aval = jax.typeof(argument)
            shape, dtype = aval.shape, aval.dtype
            if shape != expected.shape or dtype != expected.dtype:
                raise BatchError(
                    "arguments must have the shapes and types that the step was planned for; got "
                    f"{expected.name} of {dtype}{list(shape)} instead of "
                    f"{expected.dtype}{list(expected.shape)}: plan again with parallelize"
                )
