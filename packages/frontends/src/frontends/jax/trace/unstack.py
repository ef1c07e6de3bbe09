"""Takes stacked weights apart, so that each stage of a pipeline keeps those of its own layers.

A scan over layers reads weights that are stacked in a dim of the layers, and what is done to them
outside of the scan (a cast, a norm of gradients, the optimizer) is done to all layers at once. So
the first stage would have to keep all weights. Where a program does to a stack only what can be
done to each of its rows, the rows become inputs and results of the program in its place, and the
equations are repeated for each row: the program that a Python loop over layers would have made.

Weights are those of layers if the result of one of their rows is needed to use the next one. A
stack of, say, the weights of query, key and value is none, and stays whole.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax

from frontends.jax.base import _compat
from frontends.jax.base._compat import Atom, JaxprEqn, Literal, Var, aval
from frontends.jax.base.arguments import Argument
from frontends.jax.base.stacked_array import Cut
from frontends.jax.rules.rules import parameters_of_part
from frontends.jax.trace.microbatch import FlatProgram
from frontends.jax.trace.phased_graph import Rules
from frontends.jax.trace.splice import spliced
from frontends.step.step import APPLY, BACKWARD, FORWARD

_TOGETHER = {
    "dot_general": lax.add,
    "reduce_sum": lax.add,
    "reduce_max": lax.max,
    "reduce_min": lax.min,
    "reduce_and": lax.bitwise_and,
    "reduce_or": lax.bitwise_or,
    "reduce_prod": lax.mul,
}
"""By primitive that reduces a dim: how the results of two pieces of it become one."""


@dataclass(frozen=True, slots=True)
class Unstacked:
    """A program with the pieces of some inputs and results in their place."""

    flat: FlatProgram
    inputs: Mapping[int, Cut]
    """By the number that an input had: how it was taken apart."""

    results: Mapping[int, Cut]
    """The same for results."""


def unstacked(
    flat: FlatProgram, arguments: Sequence[Argument], aliases: Mapping[int, int], rules: Rules
) -> Unstacked | None:
    """The program with the weights of stacked layers apart; None if it has no such weights.

    Args:
        flat: The program.
        arguments: Its inputs.
        aliases: By number of a result, that of the input which it replaces in the next step.
        rules: For cutting equations into parts that run one after another.
    """
    program = _Program(flat, arguments, aliases, rules)
    starts = program.layers()
    refused: set[Var] = set()
    while any(v not in refused for v in starts):
        unstacker = _Unstacker(program, program.cuts(starts, refused), aliases)
        made = unstacker.program()
        if unstacker.refused <= refused:
            return made
        refused |= unstacker.refused
    return None


@dataclass(frozen=True, slots=True)
class _Split:
    """An equation as one that runs on pieces: how its operands and results are cut; None: whole."""

    n: int
    operands: tuple[Cut | None, ...]
    results: tuple[Cut | None, ...]


class _Program:
    """A program, and which of its values may be cut together."""

    def __init__(
        self,
        flat: FlatProgram,
        arguments: Sequence[Argument],
        aliases: Mapping[int, int],
        rules: Rules,
    ) -> None:
        jaxpr = flat.closed.jaxpr
        self._replaced: dict[Var, list[Var]] = defaultdict(list)
        """By input or result: what it replaces in the next step, or is replaced by."""
        for result, old in aliases.items():
            new = jaxpr.outvars[result]
            if isinstance(new, Var):
                self._replaced[jaxpr.invars[old]].append(new)
                self._replaced[new].append(jaxpr.invars[old])
        self.flat, self._rules = flat, rules
        self.equations = list(zip(jaxpr.eqns, flat.phases, strict=True))
        inputs = list(zip(jaxpr.invars, arguments, strict=True))
        self.state = {
            v for v, a in inputs if not (a.is_batch or a.is_fed or a.keys is not None) and a.shape
        }
        self._of_batch = {v for v, a in inputs if a.is_batch or a.is_fed}
        self._made_by: dict[Var, tuple[JaxprEqn, int]] = {}
        self._touching: dict[Var, list[JaxprEqn]] = defaultdict(list)
        for equation, phase in self.equations:
            operands = {v for v in equation.invars if isinstance(v, Var)}
            if not self._of_batch.isdisjoint(operands):
                self._of_batch.update(equation.outvars)
            self._made_by.update((v, (equation, phase)) for v in equation.outvars)
            for v in {*operands, *equation.outvars}:
                self._touching[v].append(equation)

    def layers(self) -> dict[Var, Cut]:
        """The inputs that are stacks of layers' weights."""
        rows: dict[tuple[Var, int], dict[int, list[Var]]] = defaultdict(lambda: defaultdict(list))
        for equation, phase in self.equations:
            if phase == FORWARD and (taken := _taken(equation)) is not None:
                axis, begin, end = taken
                stack, (row,) = equation.invars[0], equation.outvars
                if end - begin == 1 and isinstance(stack, Var) and stack not in self._of_batch:
                    rows[stack, axis][begin].append(row)
        stacks = []
        for (stack, axis), of in rows.items():
            n = aval(stack).shape[axis]
            sources = self._inputs_of(stack, Cut(axis, n)) if len(of) == n > 1 else {}
            if sources:
                stacks.append((sources, list(of.values())))
        follow = self._follow_each_other([of for _, of in stacks])
        found: dict[Var, Cut] = {}
        for (sources, _), is_of_layers in zip(stacks, follow, strict=True):
            if is_of_layers:
                found.update(sources)
        return found

    def _inputs_of(self, stack: Var, cut: Cut) -> dict[Var, Cut]:
        """The inputs of which a stack is made piece by piece, such as by a cast or a sum."""
        work, found = [(stack, cut)], dict[Var, Cut]()
        seen = {stack}
        while work:
            v, cut = work.pop()
            if v not in self._made_by:
                if v in self.state:
                    found[v] = cut
                continue
            equation, _ = self._made_by[v]
            split = self.split(equation, v, cut)
            for w, c in zip(equation.invars, split.operands if split else (), strict=False):
                if c is not None and isinstance(w, Var) and w not in seen:
                    seen.add(w)
                    work.append((w, c))
        return found

    def _follow_each_other(self, stacks: Sequence[Sequence[Sequence[Var]]]) -> list[bool]:
        """Whether each row of a stack is used on what was computed with the row before it.

        Args:
            stacks: The rows of each stack, in the order of their use, each as the values it is.
        """
        n = len(stacks)
        none = np.zeros(n, np.int32)
        level: dict[Var, np.ndarray] = {}
        """By value: of each stack, the number of the last row that it depends on, from 1 on."""
        for k, stack in enumerate(stacks):
            for number, row in enumerate(stack):
                for v in row:
                    level[v] = level.get(v, none).copy()
                    level[v][k] = number + 1
        follows: list[set[int]] = [set() for _ in stacks]
        for equation, phase in self.equations if n else ():
            if phase != FORWARD:
                continue
            known = [v for v in equation.invars if isinstance(v, Var) and v in level]
            if not known:
                continue
            of_batch = [level[v] for v in known if v in self._of_batch]
            of_weights = [level[v] for v in known if v not in self._of_batch]
            weights = np.max([none, *of_weights], 0)
            values = np.max([none, *of_batch], 0)
            if any(v in self._of_batch for v in equation.outvars):
                for k in map(int, np.flatnonzero((weights > 1) & (values >= weights - 1))):
                    follows[k].add(int(weights[k]))
            together = np.maximum(weights, values)
            for v in equation.outvars:
                level[v] = np.maximum(level.get(v, none), together)
        return [len(rows) == len(stack) - 1 for rows, stack in zip(follows, stacks, strict=True)]

    def cuts(self, starts: Mapping[Var, Cut], refused: Collection[Var]) -> dict[Var, Cut]:
        """How values are cut that are tied to the weights of layers."""
        cuts = {v: cut for v, cut in starts.items() if v not in refused}
        work = list(cuts)
        while work:
            v = work.pop()
            tied = [(other, cuts[v]) for other in self._replaced[v]]
            for equation in self._touching[v]:
                tied += self._tied(equation, v, cuts[v])
            for other, cut in tied:
                if other not in cuts and other not in refused and self._may_be_cut(other):
                    cuts[other] = cut
                    work.append(other)
        return cuts

    def _may_be_cut(self, v: Var) -> bool:
        if v not in self._made_by:
            return v in self.state
        return v not in self._of_batch or self._made_by[v][1] in (BACKWARD, APPLY)

    def _tied(self, equation: JaxprEqn, v: Var, cut: Cut) -> Iterable[tuple[Var, Cut]]:
        """The other values of an equation that are cut if one of them is."""
        taken = _taken(equation)
        if taken is not None and taken[0] == cut.axis and v is equation.invars[0]:
            axis, begin, end = taken
            size = aval(v).shape[axis] // cut.n
            if begin % size == end % size == 0 and end - begin > size:
                yield equation.outvars[0], Cut(axis, (end - begin) // size)
            return
        if (joined := _joined(equation, cut)) is not None and v is equation.outvars[0]:
            yield from ((w, Cut(cut.axis, n)) for w, n in joined if n > 1)
            return
        split = self.split(equation, v, cut)
        if split is not None:
            for w, c in zip(equation.invars, split.operands, strict=True):
                if c is not None and isinstance(w, Var):
                    yield w, c
            yield from ((w, c) for w, c in zip(equation.outvars, split.results, strict=True) if c)

    def split(self, equation: JaxprEqn, v: Var, cut: Cut) -> _Split | None:
        """How an equation runs on pieces, if one of its values is cut; None if it cannot.

        A factor of its rule must come first in each dim that it is in, so that the pieces follow
        each other in the dim. They may be several slices along the factor.
        """
        if equation.primitive.name == "iota" and equation.params["dimension"] == cut.axis:
            return None  # its pieces differ
        rule, _ = self._rules.of(equation)
        places = [i for i, w in enumerate(equation.invars) if isinstance(w, Var)]
        dims = dict(zip(places, rule.operands, strict=True))
        sides = [dims[i] for i in places if equation.invars[i] is v]
        sides += [d for w, d in zip(equation.outvars, rule.results, strict=True) if w is v]
        for side in sides:
            factor = side[cut.axis][:1]
            if factor and rule.factors[factor[0]].size % cut.n == 0:
                break
        else:
            return None
        (number,) = factor
        of = rule.factors[number]
        found: list[Cut | None] = []
        for side in (*rule.operands, *rule.results):
            at = [axis for axis, dim in enumerate(side) if number in dim]
            if len(at) > 1 or (at and side[at[0]][0] != number):
                return None
            found.append(Cut(at[0], cut.n) if at else None)
        operands: list[Cut | None] = [None] * len(equation.invars)
        for i, c in zip(places, found, strict=False):
            operands[i] = c
        results = tuple(found[len(places) :])
        is_reduced = of.kind == "reduce" and equation.primitive.name in _TOGETHER
        if is_reduced and not any(results) and all(operands):
            return _Split(cut.n, tuple(operands), results)
        if of.kind == "parallel" and all(results):
            return _Split(cut.n, tuple(operands), results)
        return None


class _Unstacker:
    """Makes the equations of the program with some values in pieces."""

    def __init__(
        self, program: _Program, cuts: Mapping[Var, Cut], aliases: Mapping[int, int]
    ) -> None:
        self._program, self._cuts, self._aliases = program, cuts, aliases
        self.refused: set[Var] = set()
        """Inputs of which the whole is needed."""

        self._pieces: dict[Var, tuple[Cut, list[Var | None]]] = {}
        """By value in pieces: the pieces, None for zeros."""

        self._roots: dict[Var, set[Var]] = {}
        """By value in pieces: the inputs in pieces that it is computed from."""

        self._one: dict[Var, Var] = {}
        """By value that is one piece: the piece."""

        self._whole: dict[tuple[Var, int], Var] = {}
        self._taken: dict[tuple[Var, Cut, int], list[Var]] = {}
        self._equations: list[tuple[JaxprEqn, int]] = []

    def program(self) -> Unstacked:
        """The whole program; of use if nothing was refused."""
        jaxpr = self._program.flat.closed.jaxpr
        inputs: list[Var] = []
        for v in jaxpr.invars:
            cut = self._cuts.get(v)
            pieces = [v] if cut is None else _pieces_of(v, cut)
            inputs += pieces
            if cut is not None:
                self._pieces[v], self._roots[v] = (cut, [*pieces]), {v}
        for equation, phase in self._program.equations:
            self._add(equation, phase)
        outputs: list[Atom] = []
        results: dict[int, Cut] = {}
        for i, atom in enumerate(jaxpr.outvars):
            old = jaxpr.invars[self._aliases[i]] if i in self._aliases else None
            if old is None or old not in self._cuts:
                if isinstance(atom, Var) and self._needs_whole_inputs(atom):
                    results[i] = self._pieces[atom][0]
                    outputs += self._in_pieces(atom, results[i], APPLY)
                else:
                    outputs.append(self._read(atom, APPLY))
                continue
            if isinstance(atom, Var) and atom in self._pieces:
                cut = self._pieces[atom][0]
                if cut == self._cuts[old]:
                    results[i] = cut
                    outputs += self._in_pieces(atom, cut, APPLY)
                    continue
            self.refused.add(old)
        closed = self._program.flat.closed
        made = _compat.program(
            jaxpr.constvars,
            inputs,
            outputs,
            [equation for equation, _ in self._equations],
            closed.consts,
            closed,
        )
        flat = FlatProgram(made, tuple(phase for _, phase in self._equations)).live()
        apart = {i: self._cuts[v] for i, v in enumerate(jaxpr.invars) if v in self._cuts}
        return Unstacked(flat, apart, results)

    def _add(self, equation: JaxprEqn, phase: int) -> None:
        if self._take(equation) or self._join(equation, phase) or self._pad(equation, phase):
            return
        split = self._split(equation)
        if split is None:
            whole = [self._read(atom, phase) for atom in equation.invars]
            self._equations.append((equation.replace(invars=whole), phase))
            return
        if equation.primitive.name in ("add", "add_any") and self._add_zeros(equation, split):
            return
        operands: list[Sequence[Atom]] = [
            self._in_pieces(v, cut, phase)
            if cut is not None and isinstance(v, Var)
            else [self._read(v, phase)] * split.n
            for v, cut in zip(equation.invars, split.operands, strict=True)
        ]
        # A piece that copies a number makes its own copies, rather than getting those of another.
        each_piece = zip(*operands, strict=True) if operands else [()] * split.n
        pieces = [self._part(equation, of_piece, split, phase) for of_piece in each_piece]
        roots = set[Var]().union(
            *(self._roots.get(v, ()) for v in equation.invars if isinstance(v, Var))
        )
        for v, cut, each in zip(
            equation.outvars, split.results, zip(*pieces, strict=True), strict=True
        ):
            if cut is None:
                self._reduce(equation, v, each, phase)
            else:
                self._pieces[v], self._roots[v] = (cut, list(each)), roots

    def _part(
        self, equation: JaxprEqn, operands: Sequence[Atom], split: _Split, phase: int
    ) -> list[Var]:
        """Add an equation on pieces; returns its results."""
        results = [
            _compat.variable_like(v, aval(v).shape if cut is None else cut.shape(aval(v).shape))
            for v, cut in zip(equation.outvars, split.results, strict=True)
        ]
        params = parameters_of_part(
            equation, [aval(v).shape for v in operands], [aval(v).shape for v in results]
        )
        self._equations.append(
            (
                equation.replace(
                    invars=list(operands), outvars=results, params={**equation.params, **params}
                ),
                phase,
            )
        )
        return results

    def _reduce(self, of: JaxprEqn, result: Var, pieces: Sequence[Var], phase: int) -> None:
        """Add the equations that make one result of those of pieces."""
        function, total = _TOGETHER[of.primitive.name], pieces[0]
        for piece in pieces[1:]:
            total = self._put(function, (total, piece), of, phase)
        self._one[result] = total

    def _take(self, equation: JaxprEqn) -> bool:
        """Whether an equation takes pieces of a stack, which are read in place of its result."""
        taken, stack = _taken(equation), equation.invars[0] if equation.invars else None
        if taken is None or not isinstance(stack, Var) or stack not in self._pieces:
            return False
        axis, begin, end = taken
        cut, pieces = self._pieces[stack]
        size = aval(stack).shape[cut.axis] // cut.n
        if axis != cut.axis or begin % size or end % size or begin == end:
            return False
        of_result = pieces[begin // size : end // size]
        (result,) = equation.outvars
        if len(of_result) == 1 and of_result[0] is not None:
            self._one[result] = of_result[0]
        else:
            self._pieces[result] = Cut(axis, len(of_result)), of_result
            self._roots[result] = self._roots[stack]
        return True

    def _join(self, equation: JaxprEqn, phase: int) -> bool:
        """Whether an equation puts pieces together, of which the result is read in pieces."""
        cut = self._cuts.get(equation.outvars[0]) if equation.outvars else None
        joined = None if cut is None else _joined(equation, cut)
        if cut is None or joined is None:
            return False
        pieces: list[Var] = []
        for v, n in joined:
            pieces += self._in_pieces(v, Cut(cut.axis, n), phase)
        (result,) = equation.outvars
        self._pieces[result], self._roots[result] = (cut, [*pieces]), set()
        return True

    def _pad(self, equation: JaxprEqn, phase: int) -> bool:
        """Whether an equation puts pieces among zeros, as the gradient of taking a row does."""
        cut = self._cuts.get(equation.outvars[0]) if equation.outvars else None
        if cut is None or equation.primitive.name != "pad":
            return False
        v, value = equation.invars
        config = equation.params["padding_config"]
        low, high, _ = config[cut.axis]
        (result,) = equation.outvars
        size = aval(result).shape[cut.axis] // cut.n
        n, rest = divmod(aval(v).shape[cut.axis], size)
        others = (c for d, c in enumerate(config) if d != cut.axis)
        is_zero = isinstance(value, Literal) and not np.any(value.val)
        if rest or low < 0 or low % size or any(map(any, others)) or config[cut.axis][2]:
            return False
        if not is_zero or not isinstance(v, Var) or high != (cut.n - n) * size - low:
            return False
        inner = self._in_pieces(v, Cut(cut.axis, n), phase)
        before = low // size
        pieces = [None] * before + [*inner] + [None] * (cut.n - before - n)
        self._pieces[result], self._roots[result] = (cut, pieces), set()
        return True

    def _add_zeros(self, equation: JaxprEqn, split: _Split) -> bool:
        """Whether each piece of a sum is a piece of one operand, as that of the other is zero."""
        stacks = [self._pieces.get(v) for v in equation.invars if isinstance(v, Var)]
        if len(stacks) != 2 or None in stacks:
            return False
        (first, ones), (second, others) = stacks  # type: ignore[misc]
        if {first, second} != {split.operands[0]} or split.results[0] != first:
            return False
        pairs = list(zip(ones, others, strict=True))
        if not all(None in pair for pair in pairs):
            return False
        (result,) = equation.outvars
        self._pieces[result] = first, [a if b is None else b for a, b in pairs]
        self._roots[result] = set[Var]().union(
            *(self._roots[v] for v in equation.invars if isinstance(v, Var))
        )
        return True

    def _split(self, equation: JaxprEqn) -> _Split | None:
        """How an equation runs on pieces; None if it runs on whole values."""
        operands = (v for v in equation.invars if isinstance(v, Var) and v in self._pieces)
        values = [(v, self._pieces[v][0]) for v in operands]
        values += [(v, self._cuts[v]) for v in equation.outvars if v in self._cuts]
        for v, cut in values:
            split = self._program.split(equation, v, cut)
            if split is not None:
                return split
        return None

    def _in_pieces(self, v: Var, cut: Cut, phase: int) -> list[Var]:
        if v in self._pieces and self._pieces[v][0] == cut:
            pieces = self._pieces[v][1]
            return [self._zeros(v, cut, phase) if piece is None else piece for piece in pieces]
        whole = self._whole_of(v, phase)
        if cut.n == 1:
            return [whole]
        if (v, cut, phase) not in self._taken:
            size = aval(v).shape[cut.axis] // cut.n
            self._taken[v, cut, phase] = [
                self._put(
                    lambda x, i=i: lax.slice_in_dim(x, i * size, (i + 1) * size, axis=cut.axis),
                    (whole,),
                    None,
                    phase,
                )
                for i in range(cut.n)
            ]
        return self._taken[v, cut, phase]

    def _zeros(self, v: Var, cut: Cut, phase: int) -> Var:
        """A piece of a value that is zero."""
        shape = cut.shape(aval(v).shape)
        return self._put(lambda: lax.full(shape, 0, aval(v).dtype), (), None, phase)

    def _read(self, atom: Atom, phase: int) -> Atom:
        """An operand as a whole."""
        return atom if isinstance(atom, Literal) else self._whole_of(atom, phase)

    def _whole_of(self, atom: Var, phase: int) -> Var:
        if atom in self._one:
            return self._one[atom]
        if atom not in self._pieces:
            return atom
        if (atom, phase) not in self._whole:
            cut = self._pieces[atom][0]
            pieces = self._in_pieces(atom, cut, phase)
            self.refused |= self._needs_whole_inputs(atom)
            self._whole[atom, phase] = self._put(
                lambda *pieces: lax.concatenate(pieces, cut.axis), pieces, None, phase
            )
        return self._whole[atom, phase]

    def _needs_whole_inputs(self, v: Var) -> set[Var]:
        """The inputs that would be put together if a value were, as it is about as large."""
        size = math.prod(aval(v).shape)
        return {w for w in self._roots.get(v, ()) if 2 * size >= math.prod(aval(w).shape)}

    def _put(
        self,
        function: Callable[..., Any],
        operands: Sequence[Var],
        like: JaxprEqn | None,
        phase: int,
    ) -> Var:
        """Add the equations of a function; returns its result."""
        for equation in spliced(function, operands):
            if like is not None:
                equation = equation.replace(source_info=like.source_info)
            self._equations.append((equation, phase))
        (result,) = self._equations[-1][0].outvars
        return result


def _pieces_of(v: Var, cut: Cut) -> list[Var]:
    return [_compat.variable_like(v, cut.shape(aval(v).shape)) for _ in range(cut.n)]


def _taken(equation: JaxprEqn) -> tuple[int, int, int] | None:
    """If an equation takes a range of one dim: the dim, where the range begins, where it ends."""
    if equation.primitive.name != "slice" or set(equation.params["strides"] or (1,)) != {1}:
        return None
    begins, ends = equation.params["start_indices"], equation.params["limit_indices"]
    shape = aval(equation.invars[0]).shape
    axes = [d for d, n in enumerate(shape) if (begins[d], ends[d]) != (0, n)]
    return (axes[0], begins[axes[0]], ends[axes[0]]) if len(axes) == 1 else None


def _joined(equation: JaxprEqn, cut: Cut) -> list[tuple[Var, int]] | None:
    """If an equation joins pieces along the axis of a cut: each operand, and its number of them."""
    if equation.primitive.name != "concatenate" or equation.params["dimension"] != cut.axis:
        return None
    size = aval(equation.outvars[0]).shape[cut.axis] // cut.n
    sizes = [aval(v).shape[cut.axis] for v in equation.invars]
    operands = [v for v in equation.invars if isinstance(v, Var)]
    if len(operands) < len(sizes) or any(n == 0 or n % size for n in sizes):
        return None
    return [(v, n // size) for v, n in zip(operands, sizes, strict=True)]
