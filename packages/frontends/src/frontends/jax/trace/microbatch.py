"""Cut a program to the size of a microbatch, and separate what is computed before the first one.

One trace is enough. Constants in the step stay those of the whole batch, so that a mean divides by
the number of all examples; and shapes shrink like those of shards, since a microbatch is a shard in
time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frontends.base.cache_keys import cache_key
from frontends.base.present import present
from frontends.jax.base import _compat
from frontends.jax.base._compat import ClosedJaxpr, JaxprEqn, Var, aval
from frontends.jax.base.arguments import Argument
from frontends.jax.rules.rules import parameters_of_part
from frontends.jax.trace.splice import spliced
from frontends.step.step import APPLY, FORWARD

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlatProgram:
    """A program without calls, and the phase of each equation."""

    closed: ClosedJaxpr
    phases: tuple[int, ...]

    def live(self) -> FlatProgram:
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
        return FlatProgram(closed, tuple(phase for _, phase in kept))


@dataclass(frozen=True)
class Early:
    """What is computed once a step, on the whole batch, before the first microbatch."""

    reads: tuple[str, ...]
    """Names of the arguments from which it is computed."""

    makes: tuple[Argument, ...]
    """The results, which are further arguments of the step."""

    function: Callable[..., Sequence[Any]]
    """Computes the values of `makes` from those of `reads`."""

    is_first_pass: bool = False
    """Whether it reads weights and runs on the devices, as `frontends.step.two_passes` says."""


def compute_early(
    flat: FlatProgram,
    arguments: Sequence[Argument],
    wanted: Mapping[Var, Collection[int] | None],
    batch_dim: Mapping[Var, int],
    *,
    is_first_pass: bool = False,
) -> tuple[FlatProgram, Early]:
    """Turn values into arguments that are computed before the first microbatch.

    Args:
        flat: The step.
        arguments: Its arguments, one for each input.
        wanted: The values, and for each the indices of the equations that read it as an argument;
            None for all that read it.
        batch_dim: The dim that holds the examples, of every value that has one.
        is_first_pass: See `Early`.

    Returns:
        The step with more inputs, and how they are computed.
    """
    jaxpr = flat.closed.jaxpr
    made_by = {v: equation for equation in jaxpr.eqns for v in equation.outvars}
    alike: dict[Any, Var] = {}
    fresh: dict[Var, Var] = {}
    everywhere: dict[Var, Var] = {}
    at: dict[int, dict[Var, Var]] = {}
    backs: dict[Var, JaxprEqn] = {}
    outputs: list[Var] = []
    for variable, readers in wanted.items():
        equation = made_by.get(variable)
        shape, dim = aval(variable).shape, batch_dim.get(variable, 0)
        fresh[variable] = _compat.variable_like(variable, _exchanged(shape, dim))
        if equation is not None and not equation.invars:  # such as positions, often the same
            with suppress(TypeError):  # a parameter that cannot be hashed is like no other
                key = (equation.primitive, cache_key(equation.params), batch_dim.get(variable))
                fresh[variable] = alike.setdefault(key, fresh[variable])
        if fresh[variable] not in [fresh[v] for v in outputs]:
            outputs.append(variable)
        instead = fresh[variable]
        if dim:
            instead = backs.setdefault(instead, _exchange(instead, dim)).outvars[0]
        if readers is None:
            everywhere[variable] = instead
        else:
            for index in readers:
                at.setdefault(index, {})[variable] = instead
    equations = [
        _compat.reading(equation, everywhere | at[index] if index in at else everywhere)
        for index, equation in enumerate(jaxpr.eqns)
    ]
    inputs = [*jaxpr.invars, *(fresh[v] for v in outputs)]
    results = _compat.replaced(jaxpr.outvars, everywhere)
    closed, phases = flat.closed, list(flat.phases)
    for made in backs.values():
        reads = [
            phase for e, phase in zip(equations, phases, strict=True) if made.outvars[0] in e.invars
        ]
        equations.insert(0, made)
        phases.insert(0, min(reads, default=FORWARD))
    rest = _compat.program(jaxpr.constvars, inputs, results, equations, closed.consts, closed)
    first = len(arguments)
    makes = tuple(
        Argument(f"early.{first + k}", aval(fresh[v]).shape, aval(v).dtype, False, v in batch_dim)
        for k, v in enumerate(outputs)
    )
    fronts = {v: _exchange(v, batch_dim[v]) for v in outputs if batch_dim.get(v, 0)}
    before = _compat.program(
        jaxpr.constvars,
        jaxpr.invars,
        [fronts[v].outvars[0] if v in fronts else v for v in outputs],
        [*jaxpr.eqns, *fronts.values()],
        closed.consts,
        closed,
    )
    return FlatProgram(rest, tuple(phases)).live(), _early(before, arguments, makes, is_first_pass)


def _exchanged(shape: Shape, dim: int) -> Shape:
    """The shape with its leading dim and another one exchanged; microbatches are cut from dim 0."""
    return (shape[dim], *shape[1:dim], shape[0], *shape[dim + 1 :]) if dim else shape


def _exchange(variable: Var, dim: int) -> JaxprEqn:
    """The equation that exchanges the leading dim of a variable and another one."""
    (equation,) = spliced(lambda x: jnp.swapaxes(x, 0, dim), (variable,))
    return equation


def _early(
    before: ClosedJaxpr,
    arguments: Sequence[Argument],
    makes: tuple[Argument, ...],
    is_first_pass: bool,
) -> Early:
    jaxpr = FlatProgram(before, (0,) * len(before.jaxpr.eqns)).live().closed.jaxpr
    read = {v for equation in jaxpr.eqns for v in equation.invars if isinstance(v, Var)}
    read.update(v for v in jaxpr.outvars if isinstance(v, Var))
    used = [(v, a) for v, a in zip(jaxpr.invars, arguments, strict=True) if v in read]
    constants = dict(zip(before.jaxpr.constvars, before.consts, strict=True))
    program = _compat.program(
        jaxpr.constvars,
        [v for v, _ in used],
        jaxpr.outvars,
        [*map(_compat.as_forward, jaxpr.eqns)] if is_first_pass else jaxpr.eqns,
        [constants[v] for v in jaxpr.constvars],
        before,
    )
    function = _compat.as_function(program)
    reads = tuple(a.name for _, a in used)
    return Early(reads, makes, function if is_first_pass else jax.jit(function), is_first_pass)


def cut(
    flat: FlatProgram,
    batch_dim: Mapping[Var, int],
    parts: Sequence[Var],
    microbatches: int,
    positions: Var | None,
    of_parts: Set[Var],
    late: Set[Var],
    scales: Mapping[int, Mapping[Var, float]],
    averaged: Sequence[Var],
) -> tuple[FlatProgram, dict[Var, Var]]:
    """The program of one microbatch.

    Args:
        flat: The program of the whole batch.
        batch_dim: The dim that holds the examples, of every value that has one.
        parts: Values with such a dim that apply or the user needs whole.
        microbatches: How many parts the batch is cut into.
        positions: The input that numbers the examples, if there are `parts`.
        of_parts: Values of forward that apply computes instead, from parts.
        late: All values of forward and backward that apply computes instead.
        scales: By index of an equation, the values that it reads times a factor.
        averaged: Statistics of microbatches of which apply reads the mean.

    Returns:
        The program, and for each of `parts` and `averaged` the value whose sum over all
        microbatches it is.
    """
    jaxpr = flat.closed.jaxpr
    local: dict[Any, Var] = {}
    for variable, dim in batch_dim.items():
        shape = list(aval(variable).shape)
        shape[dim] //= microbatches
        local[variable] = _compat.variable_like(variable, tuple(shape))
    n_examples = 0 if positions is None else aval(positions).shape[0] // microbatches
    whole: dict[Var, Var] = {}
    total: dict[Var, Var] = {}
    put: list[tuple[JaxprEqn, int]] = []
    phase_of = dict.fromkeys(jaxpr.invars, 0)
    for equation, phase in zip(jaxpr.eqns, flat.phases, strict=True):
        phase_of.update(dict.fromkeys(equation.outvars, phase))
    for part in parts:
        numbers = local[present(positions, "parts are put together by the numbers of examples")]
        placing, converting = _put_together(part, batch_dim[part], local[part], numbers, n_examples)
        put += [(equation, phase_of[part]) for equation in placing]
        put += [(equation, APPLY) for equation in converting]
        total[part] = placing[-1].outvars[0]
        whole[part] = (converting or placing)[-1].outvars[0]
    shares: dict[Var, JaxprEqn] = {}
    for value in averaged:
        (shares[value],) = _times(local.get(value, value), 1 / microbatches)
        total[value] = whole[value] = shares[value].outvars[0]
    equations: list[tuple[JaxprEqn, int]] = []
    scaled: dict[tuple[Var, float], Var] = {}
    for index, (equation, phase) in enumerate(zip(jaxpr.eqns, flat.phases, strict=True)):
        instead: dict[Var, Var] = {}
        for value, factor in scales.get(index, {}).items():
            if (value, factor) not in scaled:
                (scaling,) = _times(local.get(value, value), factor)
                equations.append((scaling, phase_of[value]))
                scaled[value, factor] = scaling.outvars[0]
            instead[value] = scaled[value, factor]
        equation = _compat.reading(equation, instead)
        if phase != APPLY and not late.isdisjoint(equation.outvars):
            equation = _compat.reading(equation, {v: whole[v] for v in averaged})
        if phase == APPLY or not of_parts.isdisjoint(equation.outvars):
            phase = APPLY
            equation = _compat.reading(equation, whole)
        elif any(isinstance(v, Var) and v in local for v in (*equation.invars, *equation.outvars)):
            operands = _compat.replaced(equation.invars, local)
            results = [local.get(v, v) for v in equation.outvars]
            params = dict(equation.params) | parameters_of_part(
                equation,
                [aval(v).shape for v in operands],
                [aval(v).shape for v in results],
            )
            equation = equation.replace(invars=operands, outvars=results, params=params)
        equations.append((equation, phase))
        equations += [(shares[v], phase) for v in equation.outvars if v in shares]
    if of_parts:  # what is put together is read by equations that were before it
        apply = [(equation, phase) for equation, phase in equations if phase == APPLY]
        equations = [(equation, phase) for equation, phase in equations if phase != APPLY]
        equations += put + apply
    else:
        equations += put
    inputs = [local.get(v, v) for v in jaxpr.invars]
    outputs = _compat.replaced(jaxpr.outvars, whole)
    closed = _compat.program(
        jaxpr.constvars,
        inputs,
        outputs,
        [equation for equation, _ in equations],
        flat.closed.consts,
        flat.closed,
    )
    return FlatProgram(closed, tuple(phase for _, phase in equations)), total


def _times(value: Var, factor: float) -> list[JaxprEqn]:
    """The equation that multiplies a value by a number, in its own type."""
    return spliced(lambda x: x * np.asarray(factor, x.dtype), (value,))


def _put_together(
    part: Var, dim: int, local: Var, positions: Var, n_examples: int
) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """The equations that make a whole value of the parts of all microbatches.

    Returns:
        Equations that put a microbatch's part at its position among zeros, and those that make the
        whole value of the sum over all microbatches: a conversion for booleans, else none.
    """
    shape, dtype = aval(part).shape, aval(part).dtype
    size = aval(local).shape[dim]
    is_bool = dtype == jnp.bool_

    def place(x: Any, positions: Any) -> Any:
        start = [jnp.int32(0)] * len(shape)
        start[dim] = lax.index_in_dim(positions, 0, keepdims=False) // n_examples * size
        zeros = jnp.zeros(shape, jnp.uint8 if is_bool else dtype)
        return lax.dynamic_update_slice(zeros, x.astype(zeros.dtype), start)

    placing = spliced(place, (local, positions))
    return placing, spliced(lambda x: x != 0, placing[-1].outvars) if is_bool else []
