"""A training step computed in float64, to measure the rounding of its run on one device.

The step is traced in its own types, and its program is then evaluated with wider numbers. So random
bits and constants stay those of the step; a step that is traced with 64 bits draws others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from frontends.jax.base import _compat
from frontends.jax.base._compat import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, aval
from frontends.jax.trace.prng import KeyExpansion

Array = Any


def precise(step: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Any]:
    """The same step with every floating-point number in float64.

    Args:
        step: A function that JAX can trace.
        arguments: Its arguments or their shapes, in the types that it is written for.

    Returns:
        A function of the same arguments, whose numbers may have any precision. The numbers of its
        results are float64; a random key among them is returned as its words.
    """
    closed, shapes = jax.make_jaxpr(step, return_shape=True)(*arguments)
    structure = jax.tree.structure(shapes)

    @jax.jit
    def run(*leaves: Array) -> list[Array]:
        return _evaluate(_compat.inline_calls(closed, KeyExpansion()), leaves)

    def wide_step(*arguments: Any) -> Any:
        with jax.enable_x64(True):
            return jax.tree.unflatten(structure, run(*map(_wide, jax.tree.leaves(arguments))))

    return wide_step


def _is_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def _wide(x: Array) -> Array:
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(x)
    return x.astype(jnp.float64) if _is_float(x.dtype) else x


def _evaluate(closed: ClosedJaxpr, arguments: Sequence[Array]) -> list[Array]:
    jaxpr = closed.jaxpr
    known: dict[Any, Array] = dict(zip(jaxpr.invars, arguments, strict=True))
    known.update(zip(jaxpr.constvars, map(_wide, closed.consts), strict=True))

    def read(atom: _compat.Atom) -> Array:
        if isinstance(atom, Literal):  # a Python number carries no type; the equation has it
            return _wide(np.asarray(atom.val, aval(atom).dtype))
        return known[atom]

    for equation in jaxpr.eqns:
        results = _run(equation, [read(atom) for atom in equation.invars])
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _run(equation: JaxprEqn, operands: list[Array]) -> list[Array]:
    name = equation.primitive.name
    if name == "reduce_precision":  # it only rounds
        return operands
    if name == "bitcast_convert_type":  # the bits must be those of the step's type
        operands = [operands[0].astype(aval(equation.invars[0]).dtype)]
        return [_wide(x) for x in _compat.bind(equation, operands, dict(equation.params))]
    params = {name: _wide_parameter(name, value) for name, value in equation.params.items()}
    return _compat.bind(equation, operands, params)


def _wide_parameter(name: str, value: Any) -> Any:
    if isinstance(value, ClosedJaxpr):
        return _wide_program(value)
    if isinstance(value, Jaxpr):
        return _wide_program(ClosedJaxpr(value, ())).jaxpr
    if name == "branches":
        return tuple(map(_wide_program, value))
    is_type = name.endswith(("dtype", "element_type")) and value is not None
    return np.dtype(np.float64) if is_type and _is_float(value) else value


def _wide_program(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program of a loop's body, a branch or a reduction, with float64 in place of floats."""
    flat = _compat.inline_calls(closed, KeyExpansion())
    shapes = [
        jax.ShapeDtypeStruct(v.shape, np.float64 if _is_float(v.dtype) else v.dtype)
        for v in map(aval, flat.jaxpr.invars)
    ]
    return jax.make_jaxpr(lambda *operands: _evaluate(flat, operands))(*shapes)
