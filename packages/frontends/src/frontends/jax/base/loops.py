"""Unrolls loops over layers, so that the equations of each iteration can be sharded and staged.

A scan over stacked weights is one operator, which only XLA sees into: it would run unsharded, in
one microbatch and on one stage. Written out iteration by iteration, it is the program that a Python
loop would have made. One loop may stack values only for another loop to take them apart, such as
those that forward saves for backward; such values are then passed on without the stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax import lax

from frontends.jax.base import _compat
from frontends.jax.base._compat import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Var, aval

MOST_EQUATIONS = 100_000
"""Most equations of all iterations together. The largest step that is planned (Rhino's) has
76,000."""

MOST_ITERATIONS = 128
"""Most iterations. Longer loops run over time, not layers: GPT-3 has 96 layers, and a recurrence
over tokens may have thousands of iterations."""


def unrolled(equation: JaxprEqn) -> ClosedJaxpr | None:
    """A scan as successive calls of its body on slices; None if the equation is not unrolled."""
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
        outputs: list[list[Any]] = [[]] * length
        for i in reversed(range(length)) if params["reverse"] else range(length):
            xs = (lax.index_in_dim(x, i, 0, keepdims=False) for x in stacked)
            results = call(*consts, *carry, *xs)
            carry, outputs[i] = list(results[:n_carry]), list(results[n_carry:])
        return carry + [
            lax.concatenate([lax.expand_dims(y, (0,)) for y in ys], 0)
            for ys in zip(*outputs, strict=True)
        ]

    return jax.make_jaxpr(run)(*(v.aval for v in equation.invars))


def without_passed_on(equation: JaxprEqn) -> ClosedJaxpr | None:
    """A scan without the carries that its body only passes on; None if it has none.

    Such a carry is a constant, and the result is the operand.
    """
    params = equation.params
    body, n, n_carry = params["jaxpr"], params["num_consts"], params["num_carry"]
    carries = range(n, n + n_carry)
    passed = [i for i in carries if body.jaxpr.outvars[i - n] is body.jaxpr.invars[i]]
    if not passed:
        return None
    order = [*range(n), *passed, *(i for i in carries if i not in passed)]
    order += range(n + n_carry, len(equation.invars))
    kept = [k for k in range(len(equation.outvars)) if k + n not in passed]
    inner = body.jaxpr.replace(
        invars=[body.jaxpr.invars[i] for i in order],
        outvars=[body.jaxpr.outvars[k] for k in kept],
        debug_info=body.jaxpr.debug_info.with_unknown_names(),
    )
    inputs = [_compat.variable_like(v) for v in equation.invars]
    outputs = [_compat.variable_like(v) for v in equation.outvars]
    changed = {
        "jaxpr": ClosedJaxpr(inner, body.consts),
        "num_consts": n + len(passed),
        "num_carry": n_carry - len(passed),
    }
    scan = equation.replace(
        invars=[inputs[i] for i in order],
        outvars=[outputs[k] for k in kept],
        params={**params, **changed},
    )
    results = [inputs[k + n] if k + n in passed else v for k, v in enumerate(outputs)]
    return _compat.program((), inputs, results, [scan], (), body)


def without_positions(equation: JaxprEqn) -> ClosedJaxpr | None:
    """A loop that reads positions which its body would make, such as those of a dropout's draws.

    Outside of the loop, a device or a microbatch makes those of its own part. The program is None
    if the body makes none.

    Args:
        equation: A scan or a `while_loop` whose body has no calls.
    """
    params, name = equation.params, equation.primitive.name
    if name not in _BODY_AND_CONSTANTS:
        return None
    key, *counts = _BODY_AND_CONSTANTS[name]
    body, at = params[key], sum(params[count] for count in counts)
    n = params[counts[-1]]
    made, positions = set[Var](), set[Var]()
    for inner in body.jaxpr.eqns:
        variables = [v for v in inner.invars if isinstance(v, Var)]
        if made.issuperset(variables) and not inner.effects:
            made.update(inner.outvars)
            if inner.primitive.name == "iota" or not positions.isdisjoint(variables):
                positions.update(inner.outvars)
    readers = [e for e in body.jaxpr.eqns if made.isdisjoint(e.outvars)]
    reads = [v for e in readers for v in e.invars if isinstance(v, Var)]
    wanted = [v for v in dict.fromkeys(reads) if v in positions and aval(v).shape]
    if not wanted:
        return None
    inputs = [_compat.variable_like(v) for v in equation.invars]
    outside = [e for e in body.jaxpr.eqns if made.issuperset(e.outvars)]
    before = _compat.eliminate_dead_code(
        _compat.program((), inputs, wanted, outside, (), body)
    ).jaxpr
    read = {v: _compat.variable_like(v) for v in wanted}
    inner_inputs = [*body.jaxpr.invars[:n], *read.values(), *body.jaxpr.invars[n:]]
    changed = body.jaxpr.replace(
        invars=inner_inputs,
        eqns=[_compat.reading(e, read) for e in body.jaxpr.eqns],
        debug_info=body.jaxpr.debug_info.with_unknown_names(),
    )
    rest = _compat.eliminate_dead_code(ClosedJaxpr(changed, body.consts))
    outputs = [_compat.variable_like(v) for v in equation.outvars]
    loop = equation.replace(
        invars=[*inputs[:at], *before.outvars, *inputs[at:]],
        outvars=outputs,
        params={**params, key: rest, counts[-1]: n + len(wanted)},
    )
    return _compat.program((), before.invars, outputs, [*before.eqns, loop], (), body)


_BODY_AND_CONSTANTS = {
    "scan": ("jaxpr", "num_consts"),
    "while": ("body_jaxpr", "cond_nconsts", "body_nconsts"),
}
"""Parameters of a loop: its body, and how many operands come before the body's carry."""


def n_equations(jaxpr: Jaxpr) -> int:
    """The number of equations, with those of bodies; a loop's body counts once per iteration."""
    total = 0
    for equation in jaxpr.eqns:
        bodies = [body.jaxpr for body in bodies_of(equation)]
        total += equation.params.get("length", 1) * sum(map(n_equations, bodies)) if bodies else 1
    return total


def bodies_of(equation: JaxprEqn) -> list[ClosedJaxpr]:
    """The programs that an equation runs: the body of a call or loop, or that of each branch."""
    bodies: list[ClosedJaxpr] = []
    for value in equation.params.values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, ClosedJaxpr):
                bodies.append(part)
            elif isinstance(part, Jaxpr):
                bodies.append(ClosedJaxpr(part, ()))
    return bodies


def without_stacks(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program, but whatever takes one piece out of a stack reads the piece itself.

    Stacks that are no longer read remain as dead code.
    """
    jaxpr = closed.jaxpr
    made_by: dict[Var, JaxprEqn] = {}
    pieces: dict[Var, Var] = {}
    equations = []
    for equation in jaxpr.eqns:
        equation = _compat.reading(equation, pieces)
        piece = _piece(equation, made_by)
        if piece is not None:
            pieces[equation.outvars[0]] = piece
            continue
        made_by.update(dict.fromkeys(equation.outvars, equation))
        equations.append(equation)
    outputs = _compat.replaced(jaxpr.outvars, pieces)
    return ClosedJaxpr(jaxpr.replace(eqns=equations, outvars=outputs), closed.consts)


def _piece(equation: JaxprEqn, made_by: Mapping[Var, JaxprEqn]) -> Var | None:
    """For `squeeze(slice(concatenate(..., expand_dims(y), ...)))`, y; else None."""
    if equation.primitive.name != "squeeze" or tuple(equation.params["dimensions"]) != (0,):
        return None
    row_of_stack = _maker(equation.invars[0], "slice", made_by)
    stack = row_of_stack and _maker(row_of_stack.invars[0], "concatenate", made_by)
    if row_of_stack is None or stack is None or stack.params["dimension"] != 0:
        return None
    params = row_of_stack.params
    whole, start = aval(row_of_stack.invars[0]).shape, params["start_indices"]
    limit, strides = params["limit_indices"], params["strides"] or (1,)
    if (*start[1:], *limit[1:]) != (*(0,) * len(start[1:]), *whole[1:]) or set(strides) != {1}:
        return None
    if len(stack.invars) != whole[0]:
        return None
    row = _maker(stack.invars[start[0]], "broadcast_in_dim", made_by)
    if row is None or aval(row.invars[0]).shape != whole[1:]:
        return None
    y, dims = row.invars[0], tuple(row.params["broadcast_dimensions"])
    return y if dims == tuple(range(1, len(whole))) and isinstance(y, Var) else None


def _maker(atom: Atom, primitive: str, made_by: Mapping[Var, JaxprEqn]) -> JaxprEqn | None:
    """The equation that makes a value, if it is one of this primitive."""
    maker = made_by.get(atom) if isinstance(atom, Var) else None
    return maker if maker is not None and maker.primitive.name == primitive else None
