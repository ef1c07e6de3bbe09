"""What users see of a program that failed: the stage, the operator, where it is written, on what.

XLA runs a chunk as one program, and says of it as a whole what was wrong. Numbers that are none are
looked for by running the chunk once more, which then tells of each value whether it has some. A
callback's error names those that the chunk calls; lack of memory, the largest values.
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
from frontends.program.program import Program
from frontends.program.register_allocation import Shards

_LARGEST = 3
"""How many values a message about memory names."""


class Blame:
    """Finds what is at fault in the chunks of a step.

    Args:
        program: What runs.
        trace: Where the operators' equations are.
        submeshes: Where they run.
    """

    def __init__(self, program: Program, trace: Trace, submeshes: Submeshes) -> None:
        self._trace, self._graph, self._submeshes = trace, program.step.graph, submeshes

    def keep(self, operands: Sequence[jax.Array]) -> list[Shards] | None:
        """Copies of what a chunk is given, where JAX is asked to look for numbers that are none."""
        if _compat.checks_numbers() is None:
            return None
        return [
            {device: shard.copy() for device, shard in self._submeshes.shards(operand).items()}
            for operand in operands
        ]

    def failure(
        self, chunk: Chunk, given: Sequence[Shards] | None, error: Exception
    ) -> FrontendsError:
        """What a chunk's error is to the user.

        Args:
            chunk: That ran.
            given: What `keep` kept of its operands.
            error: That it raised: JAX was asked to look for numbers that are none, and there are
                some, or the device has no memory for it, or a callback of the user's failed.
        """
        if isinstance(error, FrontendsError):
            return error
        if _compat.is_of_numbers(error):
            found = "" if given is None else self._not_finite(chunk, given)
            return NotFiniteError(
                f"{chunk} made numbers that are not finite, which jax_debug_nans or "
                f"jax_debug_infs looks for ({first_line(error)}){found}"
            )
        said = f"{chunk} failed: {type(error).__name__}: {first_line(error)}"
        if is_of_memory(error):
            return RunError(f"{said}; the largest values that it makes: {self._largest(chunk)}")
        callbacks = self.callbacks(chunk)
        if callbacks and "callback" in str(error).lower():
            said = f"{chunk} failed in {' or '.join(callbacks)}: {_last_line(error)}"
        return RunError(said)

    def _not_finite(self, chunk: Chunk, given: Sequence[Shards]) -> str:
        """The first value that has such a number."""
        stage, kinds = chunk.stage, _compat.checks_numbers()
        mesh, jmesh = self._submeshes.meshes[stage], self._submeshes.jax_meshes[stage]
        taken = (*chunk.totals, *chunk.reads)
        targets = [self._submeshes.abstract(stage, slot) for slot in taken]
        with _compat.not_checking_numbers():
            operands = [
                self._submeshes.assemble(target, shards)
                for target, shards in zip(targets, given, strict=True)
            ]
            watch = lower_chunk(chunk, self._trace, self._graph, mesh, jmesh, watched=kinds)
            (flags,) = jax.jit(watch)(*operands)
            parts = [np.asarray(shard.data) for shard in flags.addressable_shards]
        bad = np.any(np.concatenate(parts), axis=0)
        if not bad.any():
            return ""
        first = int(bad.argmax())
        if first < len(chunk.reads):
            return f": they are in {self._described(chunk.reads[first])}, which it was given"
        slots = [slot for action in chunk.actions for slot in made_by(action, self._graph)]
        slot = slots[first - len(chunk.reads)]
        return f": the first is in {self._described(slot)}, of {self._maker(slot)}"

    def _described(self, slot: Stored) -> str:
        value = self._graph.value(slot.value)
        return f"{value.name} {value.dtype}{list(value.shape)}"

    def _maker(self, slot: Stored) -> str:
        """What makes a value, and of what."""
        operator = next(op for op in self._graph.operators if slot.value in op.outputs)
        reads = ", ".join(operator.inputs) or "nothing"
        equation = self._trace.equations.get(operator.name)
        if equation is None:
            return f"{operator.kind} on {reads}"
        return f"{equation.primitive.name}, at {_compat.line_of(equation)}, on {reads}"

    def _largest(self, chunk: Chunk) -> str:
        slots = [slot for action in chunk.actions for slot in made_by(action, self._graph)]

        def n_bytes(slot: Stored) -> int:
            local = self._submeshes.abstract(chunk.stage, slot)
            shape: tuple[int, ...] = local.sharding.shard_shape(local.shape)
            return int(math.prod(shape) * np.dtype(local.dtype).itemsize)

        largest = sorted(set(slots), key=lambda slot: (-n_bytes(slot), slot.value))[:_LARGEST]
        return "; ".join(
            f"{self._described(slot)} ({n_bytes(slot):,} bytes a device), of {self._maker(slot)}"
            for slot in largest
        )

    def callbacks(self, chunk: Chunk) -> list[str]:
        """The user's functions that a chunk calls."""
        operators = {op.name: op for op in self._graph.operators}
        found = []
        for action in chunk.actions:
            name = getattr(action, "operator", "")
            equation = self._trace.equations.get(name)
            if equation is not None and "callback" in equation.primitive.name:
                reads = ", ".join(operators[name].inputs)
                where = _compat.line_of(equation)
                found.append(f"{equation.primitive.name}, at {where}, on {reads}")
        return found


def _last_line(error: Exception) -> str:
    """What a traceback ends with, which is the text of XLA's error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".")
