"""Reads the attention kernels of a traced step as one operator, which all devices can run."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from frontends.jax.base import cudnn
from frontends.jax.base._compat import JaxprEqn, aval, written_at
from frontends.jax.rules.attention import meshwright_attention, meshwright_attention_gradient

Array = Any


def as_operator(equation: JaxprEqn) -> ClosedJaxpr | None:
    """The program of an equation that calls cuDNN's attention; None for any other."""
    is_forward = equation.primitive.name == cudnn.FORWARD
    if not is_forward and equation.primitive.name != cudnn.BACKWARD:
        return None
    found = cudnn.read(equation.params, len(equation.invars))
    shapes = [jax.ShapeDtypeStruct(aval(v).shape, aval(v).dtype) for v in equation.invars]
    if found is None or shapes[6].shape != (0,) or shapes[8].shape != (0,):  # packed, paged
        return None
    how, places, heads_first = found

    def turned(array: Array) -> Array:
        return jnp.swapaxes(array, 1, 2) if heads_first else array

    def run(*arrays: Array) -> list[Array]:
        given = [arrays[place] for place in places]
        given[:3] = map(turned, given[:3])
        if is_forward:
            result, statistics = meshwright_attention(*given, how=how)
            return [turned(result), statistics][: len(equation.outvars)]
        given[-2:] = map(turned, given[-2:])
        made = meshwright_attention_gradient(*given, how=how)
        return [*map(turned, made[:3]), *made[3:]]

    return written_at(jax.make_jaxpr(run)(*shapes), equation)
