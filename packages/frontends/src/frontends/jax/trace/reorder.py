"""Puts the examples first where values interleave them, as `frontends.step.interleaved` decides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from jax import lax

from frontends.jax.base import _compat
from frontends.jax.base._compat import JaxprEqn, Literal, Var, aval
from frontends.jax.trace.microbatch import FlatProgram
from frontends.jax.trace.splice import spliced
from frontends.step.examples import Join
from frontends.step.interleaved import Reordering, Shape, Transposition, pieces_apart
from frontends.step.step import APPLY

Array = Any


def joins_of(equations: Mapping[str, JaxprEqn], names: Mapping[Var, str]) -> dict[str, Join]:
    """By operator that joins arrays along a dim, or cuts one: how.

    Args:
        equations: By operator, its equation.
        names: The names of all variables.
    """
    found = {name: _join_of(equation, names) for name, equation in equations.items()}
    return {name: join for name, join in found.items() if join is not None}


def _join_of(equation: JaxprEqn, names: Mapping[Var, str]) -> Join | None:
    params, kind = equation.params, equation.primitive.name
    operands = [v for v in equation.invars if isinstance(v, Var)]
    if kind == "concatenate" and len(operands) == len(equation.invars):
        return _run(params["dimension"], equation.outvars[0], operands, names)
    if kind == "split":
        return _run(params["axis"], operands[0], equation.outvars, names)
    if kind == "slice" and set(params["strides"] or (1,)) == {1}:
        whole, (part,) = operands[0], equation.outvars
        begins, ends = params["start_indices"], params["limit_indices"]
    elif (
        kind == "pad"
        and equation.invars[0] in names
        and all(
            low >= 0 and high >= 0 and not holes for low, high, holes in params["padding_config"]
        )
    ):
        (whole,), part = equation.outvars, operands[0]
        begins = [low for low, _, _ in params["padding_config"]]
        ends = [low + n for low, n in zip(begins, aval(part).shape, strict=True)]
    else:
        return None
    shape = aval(whole).shape
    cut = [d for d, n in enumerate(shape) if (begins[d], ends[d]) != (0, n)]
    if len(cut) != 1:
        return None
    (dim,) = cut
    return Join.of(dim, [names[whole]], shape[dim], [(names[part], begins[dim], ends[dim])])


def _run(dim: int, whole: Var, parts: Sequence[Var], names: Mapping[Var, str]) -> Join | None:
    """The join of parts that follow each other."""
    ends = accumulate((aval(part).shape[dim] for part in parts), initial=0)
    ranges = [(names[part], *span) for part, span in zip(parts, pairwise(ends), strict=True)]
    return Join.of(dim, [names[whole]], aval(whole).shape[dim], ranges)


def reordered(
    flat: FlatProgram,
    names: Mapping[Var, str],
    reordering: Reordering,
    equal: Mapping[str, Collection[int]],
) -> FlatProgram:
    """The program with values that interleave the examples in the new order.

    Args:
        flat: The program.
        names: The names of its variables in the graph that `reordering` was made from.
        reordering: What happens to each equation.
        equal: For values that are filled with copies: the dims along which all slices are equal.
    """
    return _Reorderer(flat, names, reordering, equal).program()


class _Reorderer:
    """Makes the equations of the program, in order."""

    def __init__(
        self,
        flat: FlatProgram,
        names: Mapping[Var, str],
        reordering: Reordering,
        equal: Mapping[str, Collection[int]],
    ) -> None:
        self._flat, self._names, self._how, self._equal = flat, names, reordering, equal
        jaxpr = flat.closed.jaxpr
        self._old = {v: v for v in (*jaxpr.invars, *jaxpr.constvars)}
        """By variable: the one in the old order, if that exists."""

        self._new: dict[Var, Var] = {}
        """By variable: the one in the new order, if that exists."""

        self._equations: list[tuple[JaxprEqn, int]] = []

    def program(self) -> FlatProgram:
        """The whole program."""
        jaxpr = self._flat.closed.jaxpr
        order = sorted(range(len(jaxpr.eqns)), key=lambda i: self._flat.phases[i])
        for index in order:
            equation, phase = jaxpr.eqns[index], self._flat.phases[index]
            name = f"{equation.primitive.name}.{index}"
            if name in self._how.kept:
                operands = [self._in_new(atom, equation, phase) for atom in equation.invars]
                results = [self._result(v) for v in equation.outvars]
                self._equations.append((equation.replace(invars=operands, outvars=results), phase))
            elif name in self._how.reshapes:
                source = self._in_new(equation.invars[0], equation, phase)
                (result,) = equation.outvars
                move = self._how.reshapes[name]
                self._let(result, self._put(_mover(move), [source], equation, phase))
            elif name in self._how.joins:
                self._join(equation, phase, *self._how.joins[name])
            else:
                operands = [self._in_old(atom, equation, phase) for atom in equation.invars]
                self._equations.append((equation.replace(invars=operands), phase))
                self._old.update((v, v) for v in equation.outvars)
        results = [self._in_old(atom, None, APPLY) for atom in jaxpr.outvars]
        closed = self._flat.closed
        closed = _compat.program(
            jaxpr.constvars,
            jaxpr.invars,
            results,
            [equation for equation, _ in self._equations],
            closed.consts,
            closed,
        )
        return FlatProgram(closed, tuple(phase for _, phase in self._equations)).live()

    def _join(self, equation: JaxprEqn, phase: int, join: Join, outer: int) -> None:
        """Join along a dim of pieces, which is put behind that of the examples."""
        dim, counts, kind = join.dim, join.counts, equation.primitive.name
        names = [self._names[v] for v in equation.invars if isinstance(v, Var)]
        operands = [self._in_new(atom, equation, phase) for atom in equation.invars]
        arrays = [v for v in operands if isinstance(v, Var)]

        def apart(x: Array, name: str) -> Array:
            return lax.reshape(x, pieces_apart(x.shape, dim, counts[name], outer))

        def cut(x: Array, first: int, n: int, shape: Shape) -> Array:
            piece = lax.slice_in_dim(apart(x, names[0]), first, first + n, axis=dim + 1)
            return lax.reshape(piece, shape)

        def joined(*arrays: Array) -> Array:
            parts = [apart(x, name) for x, name in zip(arrays, names, strict=True)]
            return lax.reshape(lax.concatenate(parts, dim + 1), aval(equation.outvars[0]).shape)

        def padded(*arrays: Array) -> Array:
            given = iter(arrays)
            x, filler = (
                atom.val if isinstance(atom, Literal) else next(given) for atom in operands
            )
            part, (_, first, n) = apart(x, names[0]), join.parts[0]
            config = [(0, 0, 0)] * part.ndim
            config[dim + 1] = (first, join.pieces - first - n, 0)
            return lax.reshape(lax.pad(part, filler, config), aval(equation.outvars[0]).shape)

        if kind in ("slice", "split"):
            for result, (_, first, n) in zip(equation.outvars, join.parts, strict=True):
                take = partial(cut, first=first, n=n, shape=aval(result).shape)
                self._let(result, self._put(take, arrays, equation, phase))
        else:
            put = joined if kind == "concatenate" else padded
            self._let(equation.outvars[0], self._put(put, arrays, equation, phase))

    def _interleaves(self, atom: Any) -> bool:
        return isinstance(atom, Var) and self._names.get(atom) in self._how.places

    def _result(self, variable: Var) -> Var:
        """A fresh variable for a result in the new order; itself if it interleaves no examples."""
        made = _compat.variable_like(variable) if self._interleaves(variable) else variable
        self._let(variable, made)
        return made

    def _let(self, variable: Var, made: Var) -> None:
        (self._new if self._interleaves(variable) else self._old)[variable] = made

    def _in_new(self, atom: Any, reader: JaxprEqn, phase: int) -> Any:
        """An operand in the new order; the operand itself if it interleaves no examples."""
        if not self._interleaves(atom):
            return self._in_old(atom, reader, phase)
        if atom not in self._new:
            name = self._names[atom]
            if self._how.places[name].dim in self._equal.get(name, ()):
                return self._in_old(atom, reader, phase)
            move = self._how.to_new(name, aval(atom).shape)
            self._new[atom] = self._put(_mover(move), [self._old[atom]], reader, phase)
        return self._new[atom]

    def _in_old(self, atom: Any, reader: JaxprEqn | None, phase: int) -> Any:
        """An operand in the order of the program."""
        if not isinstance(atom, Var):
            return atom
        if atom not in self._old:
            move = self._how.to_old(self._names[atom], aval(atom).shape)
            self._old[atom] = self._put(_mover(move), [self._new[atom]], reader, phase)
        return self._old[atom]

    def _put(
        self,
        function: Callable[..., Array],
        operands: Sequence[Var],
        reader: JaxprEqn | None,
        phase: int,
    ) -> Var:
        """Add the equations of a function; returns its result."""
        equations = spliced(function, operands)
        if not equations:  # a reshape to the same shape
            return operands[0]
        for equation in equations:
            if reader is not None:
                equation = equation.replace(source_info=reader.source_info)
            self._equations.append((equation, phase))
        (result,) = equations[-1].outvars
        return result


def _mover(move: Transposition) -> Callable[[Array], Array]:
    def run(x: Array) -> Array:
        if not move.is_reshape:
            x = lax.transpose(lax.reshape(x, move.apart), move.order)
        return lax.reshape(x, move.result)

    return run
