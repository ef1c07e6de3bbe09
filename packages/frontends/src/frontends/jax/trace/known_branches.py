"""Takes the branch of a conditional whose condition is known when the step is traced.

Layers in a scan are often of two kinds, by a flag of each layer: windows of attention in every
second one, experts in some. When the scan is written out, each flag is a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from frontends.jax.base import _compat
from frontends.jax.base._compat import ClosedJaxpr, Expand, JaxprEqn, Literal, Var, aval
from frontends.jax.base.loops import bodies_of

_MOST_ELEMENTS = 4096
"""The largest array that is computed to find a condition [chosen]; of flags, each layer has one."""


def with_known_branches(closed: ClosedJaxpr, expand: Expand) -> ClosedJaxpr:
    """The program without conditionals that always take the same branch.

    Args:
        closed: A program without calls.
        expand: Replaces other equations, those inside of branches, too.
    """
    while known := _known_conditions(closed):

        def expand_all(
            equation: JaxprEqn, known: Mapping[int, int] = known
        ) -> tuple[ClosedJaxpr, bool] | None:
            number = known.get(id(equation))
            return expand(equation) if number is None else (_branch(equation, number), True)

        closed = _compat.inline_calls(closed, expand_all)
    return closed


def _known_conditions(closed: ClosedJaxpr) -> dict[int, int]:
    """By the `id` of a conditional, the number of its branch, for those that are known."""
    conditionals = [e for e in closed.jaxpr.eqns if e.primitive.name == "cond"]
    if not conditionals:
        return {}
    made_by = {v: equation for equation in closed.jaxpr.eqns for v in equation.outvars}
    constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values: dict[Any, Any] = {
        v: c for v, c in constants.items() if math.prod(aval(v).shape) <= _MOST_ELEMENTS
    }
    known = {}
    for conditional in conditionals:
        value = _value(conditional.invars[0], made_by, values)
        if value is not None:
            last = len(conditional.params["branches"]) - 1
            known[id(conditional)] = int(np.clip(int(value), 0, last))
    return known


def _value(atom: Any, made_by: Mapping[Var, JaxprEqn], values: dict[Any, Any]) -> Any:
    """The number that an atom always is; None if it depends on an input, or is made of much.

    Args:
        atom: The atom.
        made_by: By variable, the equation that makes it.
        values: What is known, to which this function adds; None for what is not known.
    """
    work = [atom]
    while work:
        v = work[-1]
        if isinstance(v, Literal) or v in values:
            work.pop()
            continue
        equation = made_by.get(v)
        if equation is None or not _is_small(equation):
            values[v] = None
            continue
        operands = [w for w in equation.invars if isinstance(w, Var)]
        waiting = [w for w in operands if w not in values]
        if waiting:
            work += waiting
            continue
        results: list[Any] = [None] * len(equation.outvars)
        if all(values[w] is not None for w in operands):
            read = [w.val if isinstance(w, Literal) else values[w] for w in equation.invars]
            with jax.ensure_compile_time_eval():
                results = _compat.bind(equation, read, dict(equation.params))
        values.update(zip(equation.outvars, results, strict=True))
    return atom.val if isinstance(atom, Literal) else values[atom]


def _is_small(equation: JaxprEqn) -> bool:
    sizes = (math.prod(aval(v).shape) for v in (*equation.invars, *equation.outvars))
    is_plain = not (equation.effects or bodies_of(equation))
    return is_plain and max(sizes, default=0) <= _MOST_ELEMENTS


def _branch(equation: JaxprEqn, number: int) -> ClosedJaxpr:
    """A branch as a program of all operands of its conditional."""
    body = equation.params["branches"][number]
    jaxpr = body.jaxpr
    inputs = [_compat.variable_like(equation.invars[0]), *jaxpr.invars]
    return _compat.program(jaxpr.constvars, inputs, jaxpr.outvars, jaxpr.eqns, body.consts, body)
