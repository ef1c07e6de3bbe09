"""Compare the results of a parallel step with those of one device, and programs with the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frontends.base.boundary import first_line
from frontends.errors import VerificationError
from frontends.jax.api.first_pass import FirstPass
from frontends.jax.base import _compat, cudnn
from frontends.jax.run.runtime import Runtime
from frontends.jax.run.verify import check_collectives
from frontends.jax.state.whole import whole
from frontends.jax.trace.trace import Trace
from frontends.run.verify import (
    Verified,
    check_comparable,
    check_results,
    state_difference,
    tolerance_of,
)


def verify(
    runtime: Runtime,
    trace: Trace,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    n_steps: int,
    first_pass: FirstPass | None = None,
) -> Verified:
    """Run the same steps in parallel and on one device; the arguments are not changed.

    Args:
        runtime: Runs the parallel step.
        trace: Says which results replace which arguments in the next step.
        function: The step for one device, as it was traced.
        arguments: Trees of arrays; in a run of several processes, the same in all of them.
        n_steps: The number of steps to run both ways.
        first_pass: Runs before each step, if it has two passes.

    Raises:
        VerificationError: Numbers that the step returns differ by more than the rounding of the
            dtypes that it computes in, or the collectives differ from the plan.
    """
    check_comparable(runtime.program.step)
    start, graph = whole(tuple(arguments)), runtime.program.step.graph
    aliases = {output.value: output.alias for output in graph.outputs}
    leaf_of = {
        trace.arguments[i].name: leaf for leaf, place in enumerate(trace.places) for i in place
    }
    firsts = [trace.results[place.start] for place in trace.result_places]
    updates = {
        place: leaf_of[old]
        for place, name in enumerate(firsts)
        if isinstance(name, str) and (old := aliases.get(name) or name) in leaf_of
    }

    def parallel(*arguments: Any) -> Any:
        return trace.unflatten(runtime(trace.flatten(arguments, first_pass)))

    with cudnn.presumed(), _on_one_device():
        expected, expected_state = _run(jax.jit(function), start, updates, n_steps)
    actual, state = _run(parallel, start, updates, n_steps)
    tolerance = tolerance_of(value.dtype for value in graph.values)
    results = check_results(actual, expected, tolerance)
    names = {i: trace.leaves[i].name for i in updates.values()}
    state_off = state_difference(_differences(names, state, expected_state))
    runtimes = [runtime] if first_pass is None else [first_pass.runtime, runtime]
    n_collectives = sum(map(check_collectives, runtimes))
    return Verified(n_steps, "plain ones", results, tolerance, state_off, n_collectives)


@contextmanager
def _on_one_device() -> Iterator[None]:
    """Context in which the step runs as it is written.

    Raises:
        VerificationError: It fails there, as a kernel for accelerators does on CPUs.
    """
    try:
        yield
    except Exception as error:
        raise VerificationError(
            "a parallel step is compared with the same step on one device, as it is written; there "
            f"it fails: {type(error).__name__}: {first_line(error)}: verify where it runs, or give "
            "a Pallas kernel interpret=True"
        ) from error


def _run(
    step: Callable[..., Any], arguments: Any, updates: Mapping[int, int], n_steps: int
) -> tuple[list[list[float]], dict[int, Any]]:
    """The numbers that each step returns, and the state after the last step as whole arrays."""
    leaves, tree = jax.tree.flatten(arguments)
    numbers = []
    for _ in range(n_steps):
        results = jax.tree.leaves(step(*jax.tree.unflatten(tree, leaves)))
        for place, i in updates.items():
            leaves[i] = results[place]
        others = [result for place, result in enumerate(results) if place not in updates]
        numbers.append([float(r) for r in others if r.size == 1 and _is_real(r)])
    return numbers, whole({i: leaves[i] for i in updates.values()})


def _is_real(array: Any) -> bool:
    return any(jnp.issubdtype(array.dtype, kind) for kind in (np.floating, np.integer, np.bool_))


def _differences(
    names: Mapping[int, str], actual: Mapping[int, Any], expected: Mapping[int, Any]
) -> Iterator[tuple[str, float, float]]:
    """For each leaf: its argument's name, and the squared norms of the difference and of the leaf.

    Args:
        names: By number of a leaf, its name.
        actual: The leaves of the parallel run.
        expected: The leaves of the run on one device.
    """
    for i, name in names.items():
        ours, theirs = (_as_numbers(state[i]) for state in (actual, expected))
        off = np.square(np.abs(ours - theirs)).sum()
        yield name.partition("[")[0].partition(".")[0], off, np.square(np.abs(theirs)).sum()


def _as_numbers(leaf: Any) -> np.ndarray[Any, Any]:
    if _compat.holds_keys(leaf):
        leaf = _compat.key_data(leaf)
    numbers = np.asarray(leaf)
    return numbers.astype(np.complex128 if np.iscomplexobj(numbers) else np.float64)
