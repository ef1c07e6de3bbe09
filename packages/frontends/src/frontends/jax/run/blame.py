"""Explains why a chunk failed: names its stage, the operator, the user's line and the operands.

XLA runs a chunk as one program, and its errors are about the whole program. To find where `nan` or
`inf` come from, the chunk is run once more in a form that says of each value whether it has some.
The error of a callback names the callbacks of the chunk; lack of memory, the largest values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import numpy as np

from frontends.base.boundary import first_line, is_of_memory
from frontends.errors import FrontendsError, NotFiniteError, RunError
from frontends.jax.base import _compat
from frontends.jax.lower.compile import Submeshes
from frontends.jax.lower.lower import lower_chunk, made_by
from frontends.jax.trace.trace import Trace
from frontends.plan.plan_fields import Stored
from frontends.program.chunks import Chunk
from frontends.program.program import LoweredPlan
from frontends.program.register_allocation import Shards

_LARGEST = 3
"""How many values a message about memory names."""


class Blame:
    """Explains the failures of a step's chunks.

    Args:
        program: The program of the plan.
        trace: Has the equations of the operators.
        submeshes: The devices of the stages.
    """

    def __init__(self, program: LoweredPlan, trace: Trace, submeshes: Submeshes) -> None:
        self._trace, self._graph, self._submeshes = trace, program.step.graph, submeshes

    def keep(self, operands: Sequence[jax.Array]) -> list[Shards] | None:
        """Copies of a chunk's operands if JAX is asked to look for `nan` or `inf`; else None."""
        if _compat.checks_numbers() is None:
            return None
        return [
            {device: shard.copy() for device, shard in self._submeshes.shards(operand).items()}
            for operand in operands
        ]

    def failure(
        self, chunk: Chunk, copies: Sequence[Shards] | None, error: Exception
    ) -> FrontendsError:
        """The error that the user gets if a chunk fails.

        Args:
            chunk: The chunk that ran.
            copies: What `keep` returned for its operands.
            error: What it raised: JAX was asked to look for `nan` or `inf` and found some, or the
                device has too little memory, or a callback of the user failed.
        """
        if isinstance(error, FrontendsError):
            return error
        if _compat.is_of_numbers(error):
            where = "" if copies is None else self._not_finite(chunk, copies)
            return NotFiniteError(
                f"{chunk} made numbers that are not finite, which jax_debug_nans or "
                f"jax_debug_infs looks for ({first_line(error)}){where}"
            )
        said = f"{chunk} failed: {type(error).__name__}: {first_line(error)}"
        if is_of_memory(error):
            return RunError(f"{said}; the largest values that it makes: {self._largest(chunk)}")
        callbacks = self.callbacks(chunk)
        if callbacks and "callback" in str(error).lower():
            said = f"{chunk} failed in {' or '.join(callbacks)}: {_last_line(error)}"
        return RunError(said)

    def _not_finite(self, chunk: Chunk, copies: Sequence[Shards]) -> str:
        """Says which value of the chunk is the first with such a number; empty if none has."""
        stage, kinds = chunk.stage, _compat.checks_numbers()
        mesh, jmesh = self._submeshes.meshes[stage], self._submeshes.jax_meshes[stage]
        inputs = (*chunk.totals, *chunk.reads)
        targets = [self._submeshes.abstract(stage, slot) for slot in inputs]
        with _compat.not_checking_numbers():
            operands = [
                self._submeshes.assemble(target, shards)
                for target, shards in zip(targets, copies, strict=True)
            ]
            watch = lower_chunk(chunk, self._trace, self._graph, mesh, jmesh, watched=kinds)
            (flags,) = jax.jit(watch)(*operands)
            parts = [np.asarray(shard.data) for shard in flags.addressable_shards]
        bad = np.any(np.concatenate(parts), axis=0)
        if not bad.any():
            return ""
        first = int(bad.argmax())
        if first < len(chunk.reads):
            return f": they are in {self._described(chunk.reads[first])}, which it reads"
        slot = self._values(chunk)[first - len(chunk.reads)]
        return f": the first is in {self._described(slot)}, the result of {self._maker(slot)}"

    def _values(self, chunk: Chunk) -> list[Stored]:
        """The values that a chunk computes, in order, each in its layout."""
        return [slot for action in chunk.actions for slot in made_by(action, self._graph)]

    def _described(self, slot: Stored) -> str:
        value = self._graph.value(slot.value)
        return f"{value.name} {value.dtype}{list(value.shape)}"

    def _maker(self, slot: Stored) -> str:
        """The operator that makes a value: its kind, its line and its operands."""
        operator = next(op for op in self._graph.operators if slot.value in op.outputs)
        reads = ", ".join(operator.inputs) or "nothing"
        equation = self._trace.equations.get(operator.name)
        if equation is None:
            return f"{operator.kind} on {reads}"
        return f"{equation.primitive.name}, at {_compat.line_of(equation)}, on {reads}"

    def _largest(self, chunk: Chunk) -> str:
        """The largest values that a chunk computes, with their bytes on each device."""

        def n_bytes(slot: Stored) -> int:
            local = self._submeshes.abstract(chunk.stage, slot)
            shape: tuple[int, ...] = local.sharding.shard_shape(local.shape)
            return int(math.prod(shape) * np.dtype(local.dtype).itemsize)

        slots = {*self._values(chunk)}
        largest = sorted(slots, key=lambda slot: (-n_bytes(slot), slot.value))[:_LARGEST]
        return "; ".join(
            f"{self._described(slot)} ({n_bytes(slot):,} bytes a device), the result of "
            f"{self._maker(slot)}"
            for slot in largest
        )

    def callbacks(self, chunk: Chunk) -> list[str]:
        """The callbacks of the user in a chunk: their kinds, lines and operands."""
        operators = {op.name: op for op in self._graph.operators}
        callbacks = []
        for action in chunk.actions:
            name = getattr(action, "operator", "")
            equation = self._trace.equations.get(name)
            if equation is not None and "callback" in equation.primitive.name:
                reads = ", ".join(operators[name].inputs)
                line = _compat.line_of(equation)
                callbacks.append(f"{equation.primitive.name}, at {line}, on {reads}")
        return callbacks


def _last_line(error: Exception) -> str:
    """The last line of the callback's traceback, which is the text of XLA's error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".")
