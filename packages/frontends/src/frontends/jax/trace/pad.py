"""Pad the examples of a program, as `frontends.step.padding` decides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frontends.jax.base import _compat
from frontends.jax.base._compat import JaxprEqn, Literal, Var, aval
from frontends.jax.base.loops import bodies_of
from frontends.jax.rules.rules import parameters_of_part
from frontends.jax.trace.microbatch import FlatProgram
from frontends.jax.trace.splice import spliced
from frontends.step.padding import Padding, Shape
from frontends.step.step import FORWARD

Array = Any


def runs_on(equation: JaxprEqn, operands: Sequence[Shape], results: Sequence[Shape]) -> bool:
    """Whether an equation makes results of these shapes from operands of these shapes.

    A loop until an example has converged does not, as one that was added may never do so.

    Args:
        equation: The equation on arrays of other shapes.
        operands: Shapes of its operands that are not literals.
        results: Shapes of its results.
    """
    if _has_while(equation):
        return False
    shapes = iter(operands)
    atoms = [
        atom.val
        if isinstance(atom, Literal)
        else jax.ShapeDtypeStruct(next(shapes), aval(atom).dtype)
        for atom in equation.invars
    ]
    variables = [atom for atom in atoms if isinstance(atom, jax.ShapeDtypeStruct)]

    def run(*arrays: Array) -> Sequence[Array]:
        given = iter(arrays)
        every = [next(given) if isinstance(a, jax.ShapeDtypeStruct) else a for a in atoms]
        params = parameters_of_part(equation, [np.shape(a) for a in every], results)
        return _compat.bind(equation, every, {**equation.params, **params})

    try:
        made = jax.eval_shape(run, *variables)
    except Exception:  # each primitive says in its own way that it takes no such shapes
        return False
    return [array.shape for array in made] == [*results]


def _has_while(equation: JaxprEqn) -> bool:
    inside = (e for body in bodies_of(equation) for e in body.jaxpr.eqns)
    return equation.primitive.name == "while" or any(map(_has_while, inside))


def padded(
    flat: FlatProgram, names: Mapping[Var, str], batch: Collection[Var], padding: Padding
) -> FlatProgram:
    """The program of a microbatch with more examples.

    Variables keep their shapes and their names; those with more examples are made beside them.

    Args:
        flat: The program of a microbatch.
        names: The names of its variables in the graph that `padding` was made from.
        batch: Its inputs that have more examples when it is called.
        padding: What happens to each operator.
    """
    return _Padder(flat, names, batch, padding).program()


class _Padder:
    """Makes the equations of a padded program, in order."""

    def __init__(
        self,
        flat: FlatProgram,
        names: Mapping[Var, str],
        batch: Collection[Var],
        padding: Padding,
    ) -> None:
        self._flat, self._names, self._padding = flat, names, padding
        jaxpr = flat.closed.jaxpr
        self._phase = dict.fromkeys((*jaxpr.invars, *jaxpr.constvars), FORWARD)
        self._made = {*jaxpr.invars, *jaxpr.constvars}.difference(batch)
        """Variables that exist without padding."""

        self._wide = {v: self._wide_like(v) for v in batch}
        """By variable: itself with padding, if that exists."""

        self._inputs = [self._wide.get(v, v) for v in jaxpr.invars]

        self._equations: list[tuple[JaxprEqn, int]] = []

    def program(self) -> FlatProgram:
        """The whole program."""
        jaxpr = self._flat.closed.jaxpr
        for index, (equation, phase) in enumerate(zip(jaxpr.eqns, self._flat.phases, strict=True)):
            self._phase.update(dict.fromkeys(equation.outvars, phase))
            name = f"{equation.primitive.name}.{index}"
            if name in self._padding.grown:
                self._grow(name, equation, phase)
            else:
                for atom in equation.invars:
                    self._narrowed(atom, equation)
                self._equations.append((equation, phase))
                self._made.update(equation.outvars)
        for atom in jaxpr.outvars:
            self._narrowed(atom, None)
        closed = self._flat.closed
        closed = _compat.program(
            jaxpr.constvars,
            self._inputs,
            jaxpr.outvars,
            [equation for equation, _ in self._equations],
            closed.consts,
            closed,
        )
        return FlatProgram(closed, tuple(phase for _, phase in self._equations))

    def _grow(self, name: str, equation: JaxprEqn, phase: int) -> None:
        operands = [self._widened(atom, equation) for atom in equation.invars]
        variables = [(i, atom) for i, atom in enumerate(equation.invars) if isinstance(atom, Var)]
        for place in self._padding.zeroed_operands.get(name, ()):
            at, variable = variables[place]
            operands[at] = self._zeroed(operands[at], variable, equation, phase)
        results = [self._wide_like(v) for v in equation.outvars]
        params = parameters_of_part(
            equation, [aval(v).shape for v in operands], [aval(v).shape for v in results]
        )
        self._equations.append(
            (
                equation.replace(
                    invars=operands, outvars=results, params={**equation.params, **params}
                ),
                phase,
            )
        )
        for variable, result in zip(equation.outvars, results, strict=True):
            if result is variable:
                self._made.add(variable)
            elif name in self._padding.zeroed_results:
                self._wide[variable] = self._zeroed(result, variable, equation, phase)
            else:
                self._wide[variable] = result

    def _has_examples(self, atom: Any) -> bool:
        return isinstance(atom, Var) and self._names.get(atom) in self._padding.dim

    def _dim(self, variable: Var) -> int:
        return self._padding.dim[self._names[variable]]

    def _wide_like(self, variable: Var) -> Var:
        """A fresh variable with padding; the variable itself if it has no examples."""
        if not self._has_examples(variable):
            return variable
        shape = self._padding.shape(self._names[variable], aval(variable).shape)
        return _compat.variable_like(variable, shape)

    def _widened(self, atom: Any, reader: JaxprEqn) -> Any:
        """An operand with padding, which repeats the last examples."""
        if not self._has_examples(atom):
            return atom
        if atom not in self._wide:
            dim, size = self._dim(atom), aval(atom).shape[self._dim(atom)]
            added = self._padding.size(size) - size

            def widen(x: Array) -> Array:
                last = lax.slice_in_dim(x, size - added, size, axis=dim)
                return lax.concatenate([x, last], dim)

            self._wide[atom] = self._put(widen, atom, reader, self._phase[atom])
        return self._wide[atom]

    def _narrowed(self, atom: Any, reader: JaxprEqn | None) -> None:
        """Let there be an operand without padding."""
        if isinstance(atom, Var) and atom not in self._made:
            dim, size = self._dim(atom), aval(atom).shape[self._dim(atom)]

            def narrow(x: Array) -> Array:
                return lax.slice_in_dim(x, 0, size, axis=dim)

            phase = self._phase[atom]
            self._put(narrow, self._wide[atom], reader, phase)
            equation, _ = self._equations.pop()
            self._equations.append((equation.replace(outvars=[atom]), phase))
            self._made.add(atom)

    def _zeroed(self, wide: Var, variable: Var, reader: JaxprEqn, phase: int) -> Var:
        """A variable with padding in which the examples that were added are zeros."""
        dim, size = self._dim(variable), aval(variable).shape[self._dim(variable)]

        def zero(x: Array) -> Array:
            counted = lax.broadcasted_iota(jnp.int32, x.shape, dim)
            return lax.select(counted < size, x, lax.full_like(x, 0))

        return self._put(zero, wide, reader, phase)

    def _put(
        self, function: Callable[[Array], Array], operand: Var, reader: Any, phase: int
    ) -> Var:
        """Add the equations of a function; returns its result."""
        for equation in spliced(function, (operand,)):
            if reader is not None:
                equation = equation.replace(source_info=reader.source_info)
            self._equations.append((equation, phase))
        (result,) = self._equations[-1][0].outvars
        return result
