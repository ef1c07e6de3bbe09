"""Loops over layers, unrolled: each iteration becomes equations that can be sharded and staged.

A scan over stacked weights is one operator, which nobody but XLA sees into: it would run whole, on
one microbatch and one stage. Written out, iteration by iteration, it is the program that a loop of
Python would have made. What a loop stacks only for another to take apart again (what forward saves
for backward) is then handed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import jax
from jax import lax

from frontends.jax.base import _compat
from frontends.jax.base._compat import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, aval

MOST_EQUATIONS = 100_000
"""Of all iterations together: above the largest step that is planned (Rhino's has 76,000)."""

MOST_ITERATIONS = 128
"""More are time, not layers: GPT-3 has 96, and a recurrence over tokens may have thousands."""


def unrolled(equation: JaxprEqn) -> ClosedJaxpr | None:
    """A scan as calls of its body on slices, one after another; None for what is not unrolled."""
    if equation.primitive.name != "scan":
        return None
    params = equation.params
    length, body = params["length"], params["jaxpr"]
    if not 0 < length <= MOST_ITERATIONS or length * n_equations(body.jaxpr) > MOST_EQUATIONS:
        return None
    n_consts, n_carry = params["num_consts"], params["num_carry"]
    call = jax.jit(_compat.as_function(body))

    def run(*operands: Any) -> list[Any]:
        consts, carry = operands[:n_consts], list(operands[n_consts : n_consts + n_carry])
        stacked = operands[n_consts + n_carry :]
        made: list[list[Any]] = [[]] * length
        for i in reversed(range(length)) if params["reverse"] else range(length):
            xs = (lax.index_in_dim(x, i, 0, keepdims=False) for x in stacked)
            results = call(*consts, *carry, *xs)
            carry, made[i] = list(results[:n_carry]), list(results[n_carry:])
        return carry + [
            lax.concatenate([lax.expand_dims(y, (0,)) for y in ys], 0)
            for ys in zip(*made, strict=True)
        ]

    return jax.make_jaxpr(run)(*(v.aval for v in equation.invars))


def n_equations(jaxpr: Jaxpr) -> int:
    """With those of bodies, each iteration of a loop counted."""
    total = 0
    for equation in jaxpr.eqns:
        bodies = [body.jaxpr for body in bodies_of(equation)]
        total += equation.params.get("length", 1) * sum(map(n_equations, bodies)) if bodies else 1
    return total


def bodies_of(equation: JaxprEqn) -> list[ClosedJaxpr]:
    """The programs that an equation runs: a call's, a loop's, each branch's."""
    found: list[ClosedJaxpr] = []
    for value in equation.params.values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, ClosedJaxpr):
                found.append(part)
            elif isinstance(part, Jaxpr):
                found.append(ClosedJaxpr(part, ()))
    return found


def without_stacks(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same, but what takes one piece out of a stack reads the piece instead.

    Stacks that nobody reads then are dead code.
    """
    jaxpr = closed.jaxpr
    made_by: dict[Var, JaxprEqn] = {}
    instead: dict[Var, Var] = {}
    equations = []
    for equation in jaxpr.eqns:
        equation = _reading(equation, instead)
        piece = _piece(equation, made_by)
        if piece is not None:
            instead[equation.outvars[0]] = piece
            continue
        made_by.update(dict.fromkeys(equation.outvars, equation))
        equations.append(equation)
    outputs = [v if isinstance(v, Literal) else instead.get(v, v) for v in jaxpr.outvars]
    return ClosedJaxpr(jaxpr.replace(eqns=equations, outvars=outputs), closed.consts)


def _reading(equation: JaxprEqn, instead: Mapping[Var, Var]) -> JaxprEqn:
    if not any(isinstance(v, Var) and v in instead for v in equation.invars):
        return equation
    operands = [v if isinstance(v, Literal) else instead.get(v, v) for v in equation.invars]
    return cast("JaxprEqn", equation.replace(invars=operands))


def _piece(equation: JaxprEqn, made_by: Mapping[Var, JaxprEqn]) -> Var | None:
    """What `squeeze(slice(concatenate(..., expand_dims(y), ...)))` returns: y."""
    if equation.primitive.name != "squeeze" or tuple(equation.params["dimensions"]) != (0,):
        return None
    taken = _maker(equation.invars[0], "slice", made_by)
    stack = taken and _maker(taken.invars[0], "concatenate", made_by)
    if taken is None or stack is None or stack.params["dimension"] != 0:
        return None
    whole, start = aval(taken.invars[0]).shape, taken.params["start_indices"]
    limit, strides = taken.params["limit_indices"], taken.params["strides"] or (1,)
    if (*start[1:], *limit[1:]) != (*(0,) * len(start[1:]), *whole[1:]) or set(strides) != {1}:
        return None
    if len(stack.invars) != whole[0]:
        return None
    row = _maker(stack.invars[start[0]], "broadcast_in_dim", made_by)
    if row is None or aval(row.invars[0]).shape != whole[1:]:
        return None
    y, places = row.invars[0], tuple(row.params["broadcast_dimensions"])
    return y if places == tuple(range(1, len(whole))) and isinstance(y, Var) else None


def _maker(atom: Atom, primitive: str, made_by: Mapping[Var, JaxprEqn]) -> JaxprEqn | None:
    found = made_by.get(atom) if isinstance(atom, Var) else None
    return found if found is not None and found.primitive.name == primitive else None
