"""Cut a program to the size of a microbatch, and take out what is computed before the first one.

One trace is enough: the step's own constants stay those of the whole batch, so that a mean divides
by the number of all examples, and shapes shrink as those of shards do, since a microbatch is a
shard in time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from frontends.base.cache_keys import cache_key
from frontends.base.present import present
from frontends.errors import AccumulationError
from frontends.jax.base import _compat
from frontends.jax.base._compat import Atom, ClosedJaxpr, JaxprEqn, Literal, Var, aval
from frontends.jax.base.arguments import Argument
from frontends.jax.rules.rules import parameters_of_part
from frontends.step.step import APPLY


@dataclass(frozen=True, slots=True)
class Flat:
    """A program without calls, each equation in its phase."""

    closed: ClosedJaxpr
    phases: tuple[int, ...]

    def live(self) -> Flat:
        """The same without equations that no output needs."""
        jaxpr = self.closed.jaxpr
        needed = {v for v in jaxpr.outvars if isinstance(v, Var)}
        kept = []
        for equation, phase in zip(reversed(jaxpr.eqns), reversed(self.phases), strict=True):
            if not needed.isdisjoint(equation.outvars):
                needed.update(v for v in equation.invars if isinstance(v, Var))
                kept.append((equation, phase))
        kept.reverse()
        closed = self.closed
        constants = [
            (v, c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True) if v in needed
        ]
        closed = _compat.program(
            [v for v, _ in constants],
            jaxpr.invars,
            jaxpr.outvars,
            [equation for equation, _ in kept],
            [c for _, c in constants],
            closed,
        )
        return Flat(closed, tuple(phase for _, phase in kept))


@dataclass(frozen=True)
class Early:
    """What is computed once a step, on the whole batch, before the first microbatch."""

    reads: tuple[str, ...]
    """Names of arguments."""

    makes: tuple[Argument, ...]
    """New arguments of the step."""

    function: Callable[..., Sequence[Any]]
    """From values of `reads` to those of `makes`."""


def compute_early(
    flat: Flat,
    arguments: Sequence[Argument],
    wanted: Mapping[Var, Collection[int] | None],
    batch_dim: Mapping[Var, int],
) -> tuple[Flat, Early]:
    """Turn values into arguments that are computed beforehand.

    Args:
        flat: The step.
        arguments: Those that it has, one for each input.
        wanted: The values, and the equations that read them so; None for all.
        batch_dim: Where values hold examples, if they do.
    """
    jaxpr = flat.closed.jaxpr
    made_by = {v: equation for equation in jaxpr.eqns for v in equation.outvars}
    alike: dict[Any, Var] = {}
    fresh: dict[Var, Var] = {}
    everywhere: dict[Var, Var] = {}
    at: dict[int, dict[Var, Var]] = {}
    outputs: list[Var] = []
    for variable, readers in wanted.items():
        if batch_dim.get(variable, 0):
            made = made_by.get(variable)
            whose = "that the step is given" if made is None else f"that {made.primitive} makes"
            raise AccumulationError(
                "what is computed on the whole batch holds the examples in its leading dim; one "
                f"of shape {aval(variable).shape} {whose} holds them in dim "
                f"{batch_dim[variable]}: let it lead, or use microbatches=1"
            )
        equation = made_by.get(variable)
        fresh[variable] = _compat.variable_like(variable)
        if equation is not None and not equation.invars:  # such as positions, often the same
            with suppress(TypeError):  # a parameter that cannot be hashed is like no other
                key = (equation.primitive, cache_key(equation.params), variable in batch_dim)
                fresh[variable] = alike.setdefault(key, fresh[variable])
        if fresh[variable] not in [fresh[v] for v in outputs]:
            outputs.append(variable)
        if readers is None:
            everywhere[variable] = fresh[variable]
        else:
            for index in readers:
                at.setdefault(index, {})[variable] = fresh[variable]

    def instead(atom: Atom, here: Mapping[Var, Var]) -> Atom:
        return atom if isinstance(atom, Literal) else here.get(atom, everywhere.get(atom, atom))

    equations = []
    for index, equation in enumerate(jaxpr.eqns):
        here = at.get(index, {})
        if any(
            not isinstance(v, Literal) and (v in here or v in everywhere) for v in equation.invars
        ):
            equation = equation.replace(invars=[instead(v, here) for v in equation.invars])
        equations.append(equation)
    inputs = [*jaxpr.invars, *(fresh[v] for v in outputs)]
    results = [instead(v, {}) for v in jaxpr.outvars]
    closed = flat.closed
    rest = _compat.program(jaxpr.constvars, inputs, results, equations, closed.consts, closed)
    first = len(arguments)
    makes = tuple(
        Argument(f"early.{first + k}", aval(v).shape, aval(v).dtype, False, v in batch_dim)
        for k, v in enumerate(outputs)
    )
    before = _compat.program(
        jaxpr.constvars, jaxpr.invars, outputs, jaxpr.eqns, closed.consts, closed
    )
    return Flat(rest, flat.phases).live(), _early(before, arguments, makes)


def _early(
    before: ClosedJaxpr, arguments: Sequence[Argument], makes: tuple[Argument, ...]
) -> Early:
    jaxpr = Flat(before, (0,) * len(before.jaxpr.eqns)).live().closed.jaxpr
    read = {v for equation in jaxpr.eqns for v in equation.invars if isinstance(v, Var)}
    read.update(v for v in jaxpr.outvars if isinstance(v, Var))
    used = [(v, a) for v, a in zip(jaxpr.invars, arguments, strict=True) if v in read]
    constants = dict(zip(before.jaxpr.constvars, before.consts, strict=True))
    program = _compat.program(
        jaxpr.constvars,
        [v for v, _ in used],
        jaxpr.outvars,
        jaxpr.eqns,
        [constants[v] for v in jaxpr.constvars],
        before,
    )
    function = jax.jit(_compat.as_function(program))
    return Early(tuple(a.name for _, a in used), makes, function)


def cut(
    flat: Flat,
    batch_dim: Mapping[Var, int],
    parts: Sequence[Var],
    microbatches: int,
    positions: Var | None = None,
) -> tuple[Flat, dict[Var, Var]]:
    """The program of one microbatch.

    Args:
        flat: The program of the whole batch.
        batch_dim: Where values hold examples, if they do.
        parts: Values that apply needs whole.
        microbatches: How many parts the batch is cut into.
        positions: The input that numbers the examples, if there are parts.

    Returns:
        The program, and the values that sum up to each of `parts`.
    """
    jaxpr = flat.closed.jaxpr
    local: dict[Any, Var] = {}
    for variable, dim in batch_dim.items():
        shape = list(aval(variable).shape)
        shape[dim] //= microbatches
        local[variable] = _compat.variable_like(variable, tuple(shape))

    def here(atom: Atom) -> Atom:
        return atom if isinstance(atom, Literal) else local.get(atom, atom)

    n_examples = 0 if positions is None else aval(positions).shape[0] // microbatches
    whole: dict[Var, Var] = {}
    total: dict[Var, Var] = {}
    put: list[tuple[JaxprEqn, int]] = []
    phase_of = dict.fromkeys(jaxpr.invars, 0)
    for equation, phase in zip(jaxpr.eqns, flat.phases, strict=True):
        phase_of.update(dict.fromkeys(equation.outvars, phase))
    for part in parts:
        place = local[present(positions, "what is put together has places")]
        made, read = _put_together(part, batch_dim[part], local[part], place, n_examples)
        put += [(equation, phase_of[part]) for equation in made]
        put += [(equation, APPLY) for equation in read]
        total[part] = made[-1].outvars[0]
        whole[part] = (read or made)[-1].outvars[0]
    equations: list[tuple[JaxprEqn, int]] = []
    for equation, phase in zip(jaxpr.eqns, flat.phases, strict=True):
        if phase == APPLY:
            if any(isinstance(v, Var) and v in whole for v in equation.invars):
                operands = [
                    v if isinstance(v, Literal) else whole.get(v, v) for v in equation.invars
                ]
                equation = equation.replace(invars=operands)
        elif any(isinstance(v, Var) and v in local for v in (*equation.invars, *equation.outvars)):
            operands = [here(v) for v in equation.invars]
            results = [local.get(v, v) for v in equation.outvars]
            params = dict(equation.params) | parameters_of_part(
                equation,
                [aval(v).shape for v in operands],
                [aval(v).shape for v in results],
            )
            equation = equation.replace(invars=operands, outvars=results, params=params)
        equations.append((equation, phase))
    equations += put
    inputs = [local.get(v, v) for v in jaxpr.invars]
    outputs = [v if isinstance(v, Literal) else whole.get(v, v) for v in jaxpr.outvars]
    closed = _compat.program(
        jaxpr.constvars,
        inputs,
        outputs,
        [equation for equation, _ in equations],
        flat.closed.consts,
        flat.closed,
    )
    return Flat(closed, tuple(phase for _, phase in equations)), total


def _put_together(
    part: Var, dim: int, local: Var, positions: Var, n_examples: int
) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """Equations that put a part at its place among zeros, and those that read the sum of all."""
    shape, dtype = aval(part).shape, aval(part).dtype
    size = aval(local).shape[dim]
    is_bool = dtype == jnp.bool_

    def place(x: Any, positions: Any) -> Any:
        start = [jnp.int32(0)] * len(shape)
        start[dim] = lax.index_in_dim(positions, 0, keepdims=False) // n_examples * size
        zeros = jnp.zeros(shape, jnp.uint8 if is_bool else dtype)
        return lax.dynamic_update_slice(zeros, x.astype(zeros.dtype), start)

    def splice(function: Any, operands: Sequence[Any]) -> list[JaxprEqn]:
        shapes = [jax.ShapeDtypeStruct(aval(v).shape, aval(v).dtype) for v in operands]
        body = _compat.inline_calls(jax.make_jaxpr(function)(*shapes))
        names = dict(zip(body.jaxpr.invars, operands, strict=True))
        return [
            e.replace(invars=[v if isinstance(v, Literal) else names.get(v, v) for v in e.invars])
            for e in body.jaxpr.eqns
        ]

    made = splice(place, (local, positions))
    return made, splice(lambda x: x != 0, made[-1].outvars) if is_bool else []
