"""Every private corner of JAX that we need, in one place.

Tried with jax 0.10.2. `jax.extend.core` exposes the jaxpr types but neither fresh variables nor
dead-code elimination, and no public call inlines nested calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core as _core
from jax._src import distributed, xla_bridge
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.interpreters import partial_eval

_BODY_OF_CALL = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
"""Calls that only wrap a body: primitive name -> parameter that holds the body."""

Atom = Var | Literal


class Shaped(Protocol):
    """What is known of an array before it exists; every value of a step has one."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...


def aval(atom: Atom) -> Shaped:
    """Shape and type of an operand or result."""
    return cast("Shaped", atom.aval)


def _body(equation: JaxprEqn) -> ClosedJaxpr | None:
    parameter = _BODY_OF_CALL.get(equation.primitive.name)
    body = equation.params.get(parameter) if parameter else None
    if body is None or isinstance(body, ClosedJaxpr):
        return body
    return ClosedJaxpr(body, ())


def inline_calls(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program without nested calls; name stacks of call and body are joined.

    The joined stack matters: inside a called function the marks of forward and backward
    (`jvp`, `transpose`) stand on the call alone.
    """
    equations: list[JaxprEqn] = []
    constants: dict[Var, Any] = {}

    def walk(closed: ClosedJaxpr, arguments: Sequence[Atom], outer: Any) -> list[Atom]:
        jaxpr = closed.jaxpr
        environment: dict[Var, Atom] = dict(zip(jaxpr.invars, arguments, strict=True))
        for variable, value in zip(jaxpr.constvars, closed.consts, strict=True):
            fresh = _core.Var(variable.aval)
            constants[fresh] = value
            environment[variable] = fresh

        def read(atom: Atom) -> Atom:
            return atom if isinstance(atom, Literal) else environment[atom]

        for equation in jaxpr.eqns:
            stack = equation.source_info.name_stack
            stack = stack if outer is None else outer + stack
            inputs = [read(atom) for atom in equation.invars]
            body = _body(equation)
            if body is not None:
                results = walk(body, inputs, stack)
                environment.update(zip(equation.outvars, results, strict=True))
                continue
            outputs = [_core.Var(v.aval) for v in equation.outvars]
            environment.update(zip(equation.outvars, outputs, strict=True))
            info = equation.source_info.replace(name_stack=stack)
            equations.append(equation.replace(invars=inputs, outvars=outputs, source_info=info))
        return [read(atom) for atom in jaxpr.outvars]

    inputs = [_core.Var(v.aval) for v in closed.jaxpr.invars]
    outputs = walk(closed, inputs, None)
    jaxpr = closed.jaxpr.replace(
        constvars=list(constants),
        invars=inputs,
        outvars=outputs,
        eqns=equations,
        debug_info=closed.jaxpr.debug_info.with_unknown_names(),
    )
    return ClosedJaxpr(jaxpr, list(constants.values()))


def eliminate_dead_code(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program without equations that no output needs; all inputs stay."""
    jaxpr, _ = partial_eval.dce_jaxpr(
        closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True
    )
    return ClosedJaxpr(jaxpr, closed.consts)


def repeated_equations(closed: ClosedJaxpr, phases: Sequence[int]) -> dict[int, int]:
    """Equations that compute again what an earlier one of the same phase has: index -> index.

    XLA would merge them in any case, and then the program would communicate less than its plan.
    Across phases they stay apart: rematerialisation means to compute twice. So do constants (masks,
    zeros): each layer makes its own, instead of getting it from the first layer that needs one.
    """
    first: dict[Any, int] = {}
    canonical: dict[Var, Var] = {}
    repeated: dict[int, int] = {}
    varying = set(closed.jaxpr.invars)
    for index, (equation, phase) in enumerate(zip(closed.jaxpr.eqns, phases, strict=True)):
        if not any(isinstance(v, Var) and v in varying for v in equation.invars):
            continue
        varying.update(equation.outvars)
        operands = tuple(
            (str(atom.aval), np.asarray(atom.val).tobytes())
            if isinstance(atom, Literal)
            else canonical.get(atom, atom)
            for atom in equation.invars
        )
        params = tuple(sorted(equation.params.items(), key=lambda item: item[0]))
        key = (phase, equation.primitive, operands, params)
        try:
            earlier = first.setdefault(key, index)
        except TypeError:  # a parameter that cannot be hashed
            continue
        if earlier != index:
            repeated[index] = earlier
            kept = closed.jaxpr.eqns[earlier].outvars
            canonical.update(zip(equation.outvars, kept, strict=True))
    return repeated


def without_repeated(closed: ClosedJaxpr, repeated: Mapping[int, int]) -> ClosedJaxpr:
    """The same program, with the results of the equations that `repeated` points to."""
    instead: dict[Var, Var] = {}
    equations = []
    for index, equation in enumerate(closed.jaxpr.eqns):
        if index in repeated:
            kept = closed.jaxpr.eqns[repeated[index]].outvars
            instead.update(zip(equation.outvars, kept, strict=True))
            continue
        operands = [v if isinstance(v, Literal) else instead.get(v, v) for v in equation.invars]
        equations.append(equation.replace(invars=operands))
    outputs = [v if isinstance(v, Literal) else instead.get(v, v) for v in closed.jaxpr.outvars]
    return ClosedJaxpr(closed.jaxpr.replace(eqns=equations, outvars=outputs), closed.consts)


def without_keys(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program with the numbers of random keys in place of typed keys.

    A typed key has no shape and no bytes of its own that a plan could lay out. What touches one
    becomes a call that wraps the numbers, does the same, and unwraps.
    """
    numbers: dict[Any, Var] = {}

    def raw(atom: Atom) -> Atom:
        if isinstance(atom, Literal) or not _is_key(atom):
            return atom
        if atom not in numbers:
            aval = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(*_type_of(atom)))
            numbers[atom] = _core.Var(_core.ShapedArray(aval.shape, aval.dtype))
        return numbers[atom]

    def unkeyed(equation: Any) -> Any:
        if not any(map(_is_key, (*equation.invars, *equation.outvars))):
            return equation

        def call(*operands: Any) -> list[Any]:
            typed = [
                jax.random.wrap_key_data(x, impl=v.aval.dtype._impl) if _is_key(v) else x
                for v, x in zip(equation.invars, operands, strict=True)
            ]
            results = bind(equation, typed, dict(equation.params))
            return [
                jax.random.key_data(x) if _is_key(v) else x
                for v, x in zip(equation.outvars, results, strict=True)
            ]

        operands = [raw(atom) for atom in equation.invars]
        call.__name__ = equation.primitive.name
        shapes = [jax.ShapeDtypeStruct(*_type_of(v)) for v in operands]
        (wrapped,) = jax.make_jaxpr(jax.jit(call))(*shapes).jaxpr.eqns
        results = [raw(v) for v in equation.outvars]
        return wrapped.replace(invars=operands, outvars=results, source_info=equation.source_info)

    equations = [unkeyed(equation) for equation in closed.jaxpr.eqns]
    return ClosedJaxpr(closed.jaxpr.replace(eqns=equations), closed.consts)


def _type_of(atom: Any) -> tuple[Any, Any]:
    return atom.aval.shape, atom.aval.dtype


def _is_key(atom: Any) -> bool:
    return bool(jnp.issubdtype(atom.aval.dtype, jax.dtypes.prng_key))


def bind(equation: JaxprEqn, operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Run one equation's primitive on `operands`, with `params` in place of its own."""
    bound = equation.primitive.get_bind_params(params)
    functions, bound = bound if isinstance(bound, tuple) else ((), bound)
    with equation.ctx.manager:
        results = equation.primitive.bind(*functions, *operands, **bound)
    return list(results) if equation.primitive.multiple_results else [results]


def is_backward(equation: JaxprEqn) -> bool:
    """Whether reverse-mode differentiation made this equation."""
    return "transpose(" in str(equation.source_info.name_stack)


def is_differentiated(equation: JaxprEqn) -> bool:
    """Whether this equation belongs to a differentiated function, forward or backward."""
    return "jvp(" in str(equation.source_info.name_stack) or is_backward(equation)


def is_initialized() -> bool:
    """Whether JAX has started its devices, so that their number is fixed."""
    return bool(xla_bridge.backends_are_initialized())


def n_cpu_devices() -> int:
    """How many virtual CPU devices JAX was asked for; -1 for none in particular."""
    return int(getattr(jax.config, "jax_num_cpu_devices"))  # noqa: B009  it is not declared


def coordination_client() -> Any:
    """What `jax.distributed` shares keys and values with between processes; None if it is off."""
    return distributed.global_state.client


def is_scalar_literal(atom: Atom) -> bool:
    """Whether `atom` is a constant number written into the program."""
    return isinstance(atom, Literal) and np.shape(atom.val) == ()


__all__ = [
    "Atom",
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Shaped",
    "Var",
    "aval",
    "bind",
    "coordination_client",
    "eliminate_dead_code",
    "inline_calls",
    "is_backward",
    "is_differentiated",
    "is_initialized",
    "is_scalar_literal",
    "n_cpu_devices",
    "repeated_equations",
    "without_keys",
    "without_repeated",
]
