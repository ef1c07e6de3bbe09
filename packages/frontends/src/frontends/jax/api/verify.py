"""Compare steps with those of one device, and programs with the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frontends.jax.base import _compat
from frontends.jax.run.runtime import Runtime
from frontends.jax.run.verify import check_collectives
from frontends.jax.state.whole import whole
from frontends.jax.trace.trace import Trace
from frontends.run.verify import Verified, check_results, state_difference, tolerance_of


def verify(
    runtime: Runtime,
    trace: Trace,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    n_steps: int,
) -> Verified:
    """Run steps both ways from the same arguments, which stay what they are.

    Args:
        runtime: What runs in parallel.
        trace: Which results take the place of which arguments.
        function: The step of one device, as it was traced.
        arguments: Trees of arrays; where there are several processes, all give the same.
        n_steps: How many of each.

    Raises:
        VerificationError: Numbers that the step returns differ by more than rounding in the types
            that it computes in, or collectives do.
    """
    begin, graph = jax.tree.map(whole, tuple(arguments)), runtime.program.step.graph
    aliases = {output.value: output.alias for output in graph.outputs}
    number = {argument.name: i for i, argument in enumerate(trace.arguments)}
    updates = {
        place: number[old]
        for place, name in enumerate(trace.results)
        if isinstance(name, str) and (old := aliases.get(name) or name) in number
    }

    def parallel(*given: Any) -> Any:
        return trace.unflatten(runtime(trace.flatten(given)))

    expected, wanted = _run(jax.jit(function), begin, updates, n_steps)
    found, state = _run(parallel, begin, updates, n_steps)
    tolerance = tolerance_of(value.dtype for value in graph.values)
    results = check_results(found, expected, tolerance)
    names = {i: trace.arguments[i].name for i in updates.values()}
    state_off = state_difference(_differences(names, state, wanted))
    return Verified(
        n_steps, "plain ones", results, tolerance, state_off, check_collectives(runtime)
    )


def _run(
    step: Callable[..., Any], arguments: Any, updates: Mapping[int, int], n_steps: int
) -> tuple[list[list[float]], dict[int, Any]]:
    """By step the numbers that it returns, and the state that the last one leaves, whole."""
    leaves, tree = jax.tree.flatten(arguments)
    numbers = []
    for _ in range(n_steps):
        results = jax.tree.leaves(step(*jax.tree.unflatten(tree, leaves)))
        for place, i in updates.items():
            leaves[i] = results[place]
        others = [result for place, result in enumerate(results) if place not in updates]
        numbers.append([float(r) for r in others if r.size == 1 and _is_real(r)])
    return numbers, {i: whole(leaves[i]) for i in updates.values()}


def _is_real(array: Any) -> bool:
    return any(jnp.issubdtype(array.dtype, kind) for kind in (np.floating, np.integer, np.bool_))


def _differences(
    names: Mapping[int, str], ours: Mapping[int, Any], theirs: Mapping[int, Any]
) -> Iterator[tuple[str, float, float]]:
    for i, name in names.items():
        mine, wanted = (_as_numbers(state[i]) for state in (ours, theirs))
        off = np.square(np.abs(mine - wanted)).sum()
        yield name.partition("[")[0].partition(".")[0], off, np.square(np.abs(wanted)).sum()


def _as_numbers(leaf: Any) -> np.ndarray[Any, Any]:
    if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = _compat.key_data(leaf)
    numbers = np.asarray(leaf)
    return numbers.astype(np.complex128 if np.iscomplexobj(numbers) else np.float64)
