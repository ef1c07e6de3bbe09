"""Make equations of a function, to be put between those of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from frontends.jax.base import _compat
from frontends.jax.base._compat import JaxprEqn, Var, aval


def spliced(function: Callable[..., Any], operands: Sequence[Var]) -> list[JaxprEqn]:
    """The equations of a function of some variables; the last one makes its result."""
    shapes = [jax.ShapeDtypeStruct(aval(v).shape, aval(v).dtype) for v in operands]
    body = _compat.inline_calls(jax.make_jaxpr(function)(*shapes))
    names = dict(zip(body.jaxpr.invars, operands, strict=True))
    return [_compat.reading(equation, names) for equation in body.jaxpr.eqns]
