"""Random keys as plain numbers, and random bits as functions of their positions.

A typed key has no shape and no bytes that a plan could lay out, so every equation on keys is
replaced by equations on their numbers. Threefry, JAX's default generator, hashes the key and the
position of each element: its bits become elementwise operators on positions, and every device and
every microbatch computes those of its own part. The numbers are the same as on one device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frontends.base.cache_keys import cache_key
from frontends.jax.base import _compat
from frontends.jax.base._compat import ClosedJaxpr, JaxprEqn, Var, is_key, prng
from frontends.jax.base.arguments import numbers_of
from frontends.step.step import APPLY

_Body = Callable[..., Any]
_ALWAYS = ("iota_2x32_shape", "stack", "unstack")
"""Primitives without rules that random functions use. They are replaced by primitives with rules:
arithmetic on positions, a concatenation, slices."""

KEYS_AND_MORE = (
    *_ALWAYS,
    *("random_bits", "random_clone", "random_fold_in", "random_seed", "random_split"),
    *("random_unwrap", "random_wrap"),
)
"""What `KeyExpansion` replaces by other primitives."""

_MOST = 2**32
"""Positions below this fit in one 32-bit word."""


class KeyExpansion:
    """Replaces equations on keys by equations on their numbers, for `_compat.inline_calls`."""

    def __init__(self) -> None:
        self._programs: dict[Any, tuple[ClosedJaxpr, bool]] = {}

    def __call__(self, equation: JaxprEqn) -> tuple[ClosedJaxpr, bool] | None:
        """The program on numbers, and whether to inline calls in it; None to keep the equation."""
        name = equation.primitive.name
        touches = any(map(is_key, (*equation.invars, *equation.outvars)))
        if not touches and name not in _ALWAYS:
            return None
        avals = tuple(v.aval for v in (*equation.invars, *equation.outvars))
        try:
            key = (name, avals, cache_key(equation.params))
            program = self._programs.get(key)
        except TypeError:  # a parameter that cannot be hashed
            return _program_of(equation)
        if program is None:
            program = self._programs[key] = _program_of(equation)
        return program


def _program_of(equation: JaxprEqn) -> tuple[ClosedJaxpr, bool]:
    body, is_inlined = _body_of(equation)
    avals = map(_compat.aval, equation.invars)
    shapes = [numbers_of(jax.ShapeDtypeStruct(aval.shape, aval.dtype)) for aval in avals]
    return jax.make_jaxpr(body)(*shapes), is_inlined


def _body_of(equation: JaxprEqn) -> tuple[_Body, bool]:
    """What an equation does to the numbers of keys, and whether to inline calls in that."""
    params = dict(equation.params)
    operands, name = equation.invars, equation.primitive.name
    if name == "iota_2x32_shape":
        return lambda: positions(params["shape"]), True
    if name == "stack":
        return lambda *xs: lax.concatenate(
            [lax.expand_dims(x, (params["axis"],)) for x in xs], params["axis"]
        ), True
    if name == "unstack":
        axis = params["axis"]
        n = _compat.aval(operands[0]).shape[axis]
        return lambda x: [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(n)], True
    if name in ("random_wrap", "random_unwrap", "random_clone"):
        return lambda x: x, True
    if name == "random_seed":
        return lambda seeds: prng.random_seed_impl_base(seeds, impl=params["impl"]), True
    rank = len(_compat.aval(operands[0]).shape) if operands else 0
    if operands and is_key(operands[0]):
        impl = _compat.implementation_of_keys(_compat.aval(operands[0]).dtype)
        if name == "random_bits":
            return lambda x: prng.random_bits_impl_base(impl, x, rank, **params), True
        if name == "random_split":
            return lambda x: prng.random_split_impl_base(impl, x, rank, **params), True
        if name == "random_fold_in":
            shape = _compat.aval(operands[0]).shape
            return lambda x, y: prng.random_fold_in_impl_base(impl, x, y, shape), True
    if name in _MOVES:  # it moves whole keys, so it moves each of their words alike
        return jax.vmap(
            lambda *xs: _compat.bind(equation, xs, params)[0],
            in_axes=tuple(-1 if is_key(v) else None for v in operands),
            out_axes=-1,
        ), True
    return _wrapped(equation), False


_MOVES = frozenset(
    (
        "broadcast_in_dim",
        "concatenate",
        "copy",
        "dynamic_slice",
        "gather",
        "reshape",
        "rev",
        "select_n",
        "slice",
        "squeeze",
        "transpose",
    )
)
"""Primitives that move elements without computing with them."""


def _wrapped(equation: JaxprEqn) -> _Body:
    """A call that makes typed keys of the numbers, runs the equation, and takes numbers again."""

    def call(*operands: Any) -> list[Any]:
        typed = [
            _compat.wrap_keys(x, _compat.aval(v).dtype) if is_key(v) else x
            for v, x in zip(equation.invars, operands, strict=True)
        ]
        results = _compat.bind(equation, typed, dict(equation.params))
        return [
            _compat.key_data(x) if is_key(v) else x
            for v, x in zip(equation.outvars, results, strict=True)
        ]

    call.__name__ = equation.primitive.name
    return jax.jit(call)


def positions(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The row-major position of each element of an array, as high and low 32-bit words."""
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    high = low = jnp.zeros(shape, jnp.uint32)
    for d, (n, stride) in enumerate(zip(shape, strides, strict=True)):
        if n == 1:
            continue
        if n * stride < _MOST:
            index = lax.iota(jnp.uint32, n) * np.uint32(stride)
            added = lax.broadcast_in_dim(index, shape, (d,))
        else:
            exact = np.arange(n, dtype=np.uint64) * np.uint64(stride)
            words = ((exact >> np.uint64(32)).astype(np.uint32), exact.astype(np.uint32))
            above, added = (lax.broadcast_in_dim(jnp.asarray(w), shape, (d,)) for w in words)
            high = high + above
        total = low + added
        if math.prod(shape) > _MOST:
            high = high + (total < added).astype(jnp.uint32)
        low = total
    return high, low


_PARTS_OF_KEYS = ("slice", "squeeze", "reshape", "gather", "convert_element_type")


def keys_of_draws(jaxpr: Any, phases: Sequence[int], free: Sequence[Var]) -> list[Var]:
    """The keys with which forward and backward draw random numbers, to be computed early.

    They depend on `free` inputs only, not on weights. A key from which others of them are derived
    is left out: once the others are computed early, it is not needed.

    Args:
        jaxpr: The flat program.
        phases: The phase of each equation.
        free: The inputs that early computation may read.
    """
    made_by = {v: equation for equation in jaxpr.eqns for v in equation.outvars}
    known = set(free)
    for equation, phase in zip(jaxpr.eqns, phases, strict=True):
        if phase != APPLY and known.issuperset(v for v in equation.invars if isinstance(v, Var)):
            known.update(equation.outvars)
    hashes = [
        equation
        for equation, phase in zip(jaxpr.eqns, phases, strict=True)
        if equation.primitive.name == "threefry2x32" and phase != APPLY
    ]
    used: dict[Var, None] = {}
    for equation in hashes:
        for atom in equation.invars[:2]:
            while atom in made_by and made_by[atom].primitive.name in _PARTS_OF_KEYS:
                (atom, *_) = made_by[atom].invars
            if atom in known and atom in made_by:
                used[atom] = None
    ancestors = set()
    for variable in used:
        work = [variable]
        while work:
            equation = made_by.get(work.pop())
            for v in equation.invars if equation is not None else ():
                if isinstance(v, Var) and v not in ancestors:
                    ancestors.add(v)
                    work.append(v)
    return [v for v in used if v not in ancestors]
