"""Reads the attention kernels of a traced step as one operator, which all devices can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from frontends.errors import UnsupportedStepError
from frontends.jax.base import _compat, cudnn
from frontends.jax.base._compat import JaxprEqn, aval, written_at
from frontends.jax.base.attention import Attention
from frontends.jax.rules.attention import meshwright_attention, meshwright_attention_gradient

Array = Any


def as_operator(equation: JaxprEqn) -> ClosedJaxpr | None:
    """The program of an equation that calls cuDNN's attention.

    None for any other equation, and for one that packs several sequences into an example, reads
    pages of keys, or drops some of the scores.
    """
    run = _RUN.get(equation.primitive.name)
    shapes = [jax.ShapeDtypeStruct(aval(v).shape, aval(v).dtype) for v in equation.invars]
    if run is None or cudnn.read(equation.params, shapes) is None:
        return None
    program = jax.make_jaxpr(partial(run, **equation.params))(*shapes)
    return written_at(program, equation)


def _forward(*arrays: Array, **params: Any) -> list[Array]:
    how, given, turned = _read(arrays, params)
    result, statistics = meshwright_attention(*given, how=how)
    return [turned(result), statistics][: 1 + params["is_training"]]


def _backward(*arrays: Array, **params: Any) -> list[Array]:
    how, given, turned = _read(arrays, params)
    given[-2:] = map(turned, given[-2:])
    made = meshwright_attention_gradient(*given, how=how)
    return [*map(turned, made[:3]), *made[3:]]


def _read(
    arrays: Sequence[Array], params: Mapping[str, Any]
) -> tuple[Attention, list[Array], Callable[[Array], Array]]:
    """What is computed, of which arrays with rows before heads, and what turns these around.

    Raises:
        UnsupportedStepError: Only cuDNN computes this.
    """
    found = cudnn.read(params, arrays)
    if found is None:
        raise UnsupportedStepError(
            "attention without cuDNN has one sequence an example, keys in order and no dropout; "
            "this call packs sequences, reads pages or drops scores: run it on a GPU, or call "
            'jax.nn.dot_product_attention with implementation="xla"'
        )
    how, places, heads_first = found

    def turned(array: Array) -> Array:
        return jnp.swapaxes(array, 1, 2) if heads_first else array

    given = [arrays[place] for place in places]
    given[:3] = map(turned, given[:3])
    return how, given, turned


_RUN = {cudnn.FORWARD: _forward, cudnn.BACKWARD: _backward}

for _name, _run in _RUN.items():  # so that loops with cuDNN in them run on CPUs, and verifications
    _compat.lower_on_cpu(cudnn.primitive(_name), _run)
