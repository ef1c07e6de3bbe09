"""The program of a step without calls, short loops, typed keys, callbacks and dead code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from frontends.errors import UnsupportedStepError
from frontends.jax.base import _compat
from frontends.jax.base._compat import ClosedJaxpr, JaxprEqn
from frontends.jax.base.accumulated import adds_gradients, together
from frontends.jax.base.arguments import Outputs, numbers_of
from frontends.jax.base.loops import (
    unrolled,
    without_passed_on,
    without_positions,
    without_stacks,
)
from frontends.jax.base.picked import by_rows
from frontends.jax.rules.control_flow import KINDS
from frontends.jax.trace.effects import Callbacks, without_callbacks
from frontends.jax.trace.fused_attention import as_operator
from frontends.jax.trace.known_branches import with_known_branches
from frontends.jax.trace.prng import KEYS_AND_MORE, KeyExpansion

PASSED_ON = frozenset(
    (
        "device_put",
        "layout_constraint",
        "optimization_barrier",
        "reshard",
        "sharding_constraint",
        "with_memory_space_constraint",
    )
)
"""Primitives that say where arrays lie, or when they are computed: the plan overrules them."""


REDUCTIONS: Mapping[str, Callable[..., jax.Array]] = {
    "psum": jnp.sum,
    "pmax": jnp.max,
    "pmin": jnp.min,
}
"""Collectives over the name that `jax.vmap` gives to a dim: the dims of an array remain."""

WRITTEN_OUT = frozenset(("custom_linear_solve", "tile", *REDUCTIONS, *KEYS_AND_MORE))
"""Primitives that are replaced by others, which have rules."""


def flattened(
    closed: ClosedJaxpr, outputs: Outputs
) -> tuple[ClosedJaxpr, Outputs, tuple[Any, ...], Callbacks]:
    """The same program without calls, short loops, typed keys, callbacks and dead code.

    Returns:
        The program; the step's result, keys as their numbers; for each leaf of it the dtype of the
        typed keys that the user gets, or None; the callbacks, whose operands the program returns
        after the step's result.
    """
    numbers = list(map(numbers_of, outputs.leaves))
    keys = tuple(
        leaf.dtype if leaf.dtype != plain.dtype else None
        for leaf, plain in zip(outputs.leaves, numbers, strict=True)
    )
    expand_keys = KeyExpansion()

    def expand(equation: JaxprEqn) -> tuple[ClosedJaxpr, bool] | None:
        if equation.primitive.name == "shard_map":
            raise UnsupportedStepError(
                "a step is written for one device, and the plan decides which device runs what; "
                f"{_compat.line_of(equation)} maps over a mesh of its own: call the function "
                "without shard_map"
            )
        attention = as_operator(equation)
        if attention is not None:
            return attention, True
        loop = at_once(equation) if adds_gradients(equation) else None
        if loop is None:
            loop = unrolled(equation)
        return expand_inside(equation) if loop is None else (loop, True)

    def at_once(equation: JaxprEqn) -> ClosedJaxpr | None:
        """A loop that accumulates gradients, with all its iterations at once."""
        flat = _compat.with_flat_bodies(equation, expand_inside)
        return together(flat.jaxpr.eqns[0], equation.invars)

    def expand_inside(equation: JaxprEqn) -> tuple[ClosedJaxpr, bool] | None:
        """The same within loops and branches that stay one operator."""
        if equation.primitive.name in PASSED_ON:
            return _passed_on(equation), True
        if equation.primitive.name == "custom_linear_solve":
            return _solution(equation), True
        if equation.primitive.name == "tile":
            return _tiled(equation), True
        if equation.primitive.name in REDUCTIONS and (reduced := _reduced(equation)):
            return reduced, True
        if equation.primitive.name == "scan" and (passed := without_passed_on(equation)):
            return passed, True
        if equation.primitive.name in KINDS:
            flat = _compat.with_flat_bodies(equation, expand_inside)
            alone = without_positions(flat.jaxpr.eqns[0])
            return (flat, False) if alone is None else (alone, True)
        return expand_keys(equation)

    inlined = with_known_branches(_compat.inline_calls(closed, expand), expand)
    flat, callbacks = without_callbacks(inlined)
    flat = by_rows(without_stacks(flat))
    live = _compat.eliminate_dead_code(flat)
    gradients = list(filter(_compat.is_backward, flat.jaxpr.eqns))
    if gradients and not any(map(_compat.is_backward, live.jaxpr.eqns)):
        raise UnsupportedStepError(
            "what a step computes is lost unless something that it returns depends on it; this one "
            f"returns nothing of the gradient of {_compat.line_of(gradients[-1])}: return the new "
            "parameters, give it as nnx.jit(step) if it updates modules of flax.nnx in place, or "
            "call the loss without its gradient"
        )
    return live, Outputs(outputs.tree, numbers), keys, callbacks


def _passed_on(equation: JaxprEqn) -> ClosedJaxpr:
    avals = map(_compat.aval, equation.invars)
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    return jax.make_jaxpr(lambda *values: values)(*shapes)


def _solution(equation: JaxprEqn) -> ClosedJaxpr:
    """The solver of a linear equation, as `jnp.linalg.solve` and `inv` call one.

    Gradients are in the program already, so the matrix itself is not needed.
    """
    lengths, solve = equation.params["const_lengths"], equation.params["jaxprs"].solve
    first = lengths.matvec + lengths.vecmat
    b = first + lengths.solve + lengths.transpose_solve

    def solved(*operands: Any) -> Sequence[Any]:
        read = operands[first : first + lengths.solve]
        return _compat.as_function(solve)(*read, *operands[b:])

    return jax.make_jaxpr(solved)(
        *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in map(_compat.aval, equation.invars))
    )


def _reduced(equation: JaxprEqn) -> ClosedJaxpr | None:
    """The reduction over dims of arrays; None if it is over devices."""
    axes, groups = equation.params["axes"], equation.params.get("axis_index_groups")
    if groups is not None or not all(isinstance(axis, int) for axis in axes):
        return None
    reduce = REDUCTIONS[equation.primitive.name]

    def reduced(*operands: Any) -> Sequence[Any]:
        return [reduce(x, axes).astype(x.dtype) for x in operands]

    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in map(_compat.aval, equation.invars)]
    return jax.make_jaxpr(reduced)(*shapes)


def _tiled(equation: JaxprEqn) -> ClosedJaxpr:
    """The copies in dims of their own, which are then made flat: a reshape says where they are."""
    (operand,), reps = (_compat.aval(v) for v in equation.invars), equation.params["reps"]

    def tile(x: Any) -> Any:
        apart = [size for pair in zip(reps, x.shape, strict=True) for size in pair]
        wide = lax.broadcast_in_dim(x, apart, range(1, len(apart), 2))
        return lax.reshape(wide, [r * n for r, n in zip(reps, x.shape, strict=True)])

    return jax.make_jaxpr(tile)(jax.ShapeDtypeStruct(operand.shape, operand.dtype))
