"""Writes conditional updates as selections, so that each piece of state is updated in its place.

`optax.MultiSteps` updates all state in one `lax.cond`. As one operator, it would have to be where
all state is, whole. What its branches compute is cheap, so both are computed, and a selection for
each result takes that of the branch that the condition chooses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from frontends.jax.base import _compat
from frontends.jax.base._compat import ClosedJaxpr, JaxprEqn, aval
from frontends.jax.base.loops import bodies_of
from frontends.jax.rules.rules import entry_of, flops_of
from frontends.step.step import APPLY

_MOST_FLOPS = 16
"""The most operations of all branches for each element that they read or return [chosen]. AdamW has
5; the orthogonalization of Muon has hundreds, and such a branch is only computed if it is taken."""


def with_selections(closed: ClosedJaxpr, phases: Sequence[int]) -> ClosedJaxpr:
    """The program with cheap conditionals of apply as selections.

    Args:
        closed: A program without calls.
        phases: The phase of each of its equations.
    """
    kept = {
        id(equation)
        for equation, phase in zip(closed.jaxpr.eqns, phases, strict=True)
        if phase != APPLY or not _is_cheap(equation)
    }

    def expand(equation: JaxprEqn) -> tuple[ClosedJaxpr, bool] | None:
        is_expanded = equation.primitive.name == "cond" and id(equation) not in kept
        return (_selecting(equation), True) if is_expanded else None

    return closed if len(kept) == len(phases) else _compat.inline_calls(closed, expand)


def _is_cheap(equation: JaxprEqn) -> bool:
    """Whether a conditional may compute all its branches, and those of conditionals in them."""
    if equation.primitive.name != "cond" or equation.effects:
        return False
    inside = _inside(equation)
    if any(bodies_of(e) or entry_of(e.primitive) is None for e in inside):
        return False
    touched = sum(math.prod(aval(v).shape) for v in (*equation.invars, *equation.outvars))
    return sum(map(flops_of, inside)) <= _MOST_FLOPS * touched


def _inside(equation: JaxprEqn) -> list[JaxprEqn]:
    """All equations of the branches of a conditional."""
    found: list[JaxprEqn] = []
    for body in equation.params["branches"]:
        for inner in _compat.inline_calls(body).jaxpr.eqns:
            found += _inside(inner) if inner.primitive.name == "cond" else [inner]
    return found


def _selecting(equation: JaxprEqn) -> ClosedJaxpr:
    """A conditional as a program that computes all branches."""
    branches = [_compat.as_function(body) for body in equation.params["branches"]]

    def run(index: Any, *operands: Any) -> list[Any]:
        each = [branch(*operands) for branch in branches]
        if len(branches) == 1:
            return list(each[0])
        which = index > 0 if len(branches) == 2 else lax.clamp(0, index, len(branches) - 1)
        return [lax.select_n(which, *values) for values in zip(*each, strict=True)]

    return jax.make_jaxpr(run)(*(aval(v) for v in equation.invars))
