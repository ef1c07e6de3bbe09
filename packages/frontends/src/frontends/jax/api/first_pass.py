"""Run the first of the two passes of a step whose loss compares examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from frontends.jax.run.runtime import Runtime
from frontends.jax.state.whole import whole
from frontends.jax.trace.trace import Trace


class FirstPass:
    """Computes what the second pass reads of all examples, by a plan that follows that of the step.

    Args:
        step: The step, of which this is the first pass.
        trace: The first pass; its arguments are the state that it reads, and the batch.
        runtime: Runs it.
    """

    def __init__(self, step: Trace, trace: Trace, runtime: Runtime) -> None:
        self._state, self._batch = step.first_pass_arguments
        self._trace, self.runtime = trace, runtime

    def __call__(self, values: Mapping[str, Any]) -> list[Any]:
        """The values of `makes` of `Trace.first_pass`, as whole arrays in each process.

        Args:
            values: The arguments of the step by name.
        """
        state, batch = ([values[name] for name in names] for names in (self._state, self._batch))
        arguments = self._trace.flatten((tuple(state), tuple(batch)))
        made: list[Any] = whole(self._trace.unflatten(self.runtime(arguments)))
        return made
