"""Loops over parts of a batch that add up gradients: all iterations are computed together.

A step that accumulates gradients calls its loss on one part of the batch after another, and adds
what it gets. Such a loop has no order: each iteration reads the same weights. As one computation
with one more dim, its iterations are examples like others, and the plan decides how many of them
are computed at a time, and on which devices: its microbatches are the parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from frontends.jax.base import _compat
from frontends.jax.base._compat import Atom, ClosedJaxpr, JaxprEqn, Literal, Var, aval
from frontends.jax.base.loops import MOST_ITERATIONS, bodies_of

_ADDS = ("add", "add_any")

_DRAWS = ("rng_bit_generator", "random_bits")
"""Draws that are other ones if several are drawn at once. Threefry's are arithmetic at this point,
and stay the same."""


def adds_gradients(equation: JaxprEqn) -> bool:
    """Whether an equation is a scan whose body differentiates by itself."""
    if equation.primitive.name != "scan" or _compat.is_backward(equation):
        return False
    inside = list(_with_bodies(equation.params["jaxpr"].jaxpr.eqns))
    return any(map(_compat.is_backward, inside)) and not any(e.effects for e in inside)


def together(equation: JaxprEqn, first: Sequence[Atom]) -> ClosedJaxpr | None:
    """The program that computes all iterations of a scan at once; None if they have an order.

    Args:
        equation: A scan whose body has no calls and no typed keys.
        first: Its operands in the step, of which some may be numbers.
    """
    params = equation.params
    draws = (e.primitive.name in _DRAWS for e in _with_bodies(params["jaxpr"].jaxpr.eqns))
    if params["length"] < 2 or params["reverse"] or params["jaxpr"].consts or any(draws):
        return None
    loop = _Loop(equation, first)
    if not loop.added or any(map(_is_differentiated, loop.in_order)):
        return None
    if loop.in_order and loop.length > MOST_ITERATIONS:
        return None
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in map(aval, equation.invars)]
    try:
        return jax.make_jaxpr(loop.run)(*shapes)
    except NotImplementedError:  # a primitive that cannot be computed for several operands at once
        return None


class _Loop:
    """A scan, and which of its carries are only added to.

    Args:
        equation: The scan.
        first: Its operands in the step.
    """

    def __init__(self, equation: JaxprEqn, first: Sequence[Atom]) -> None:
        params = equation.params
        self.length: int = params["length"]
        self._like = params["jaxpr"]
        jaxpr = self._like.jaxpr
        n, self._n_carry = params["num_consts"], params["num_carry"]
        self._consts, self._parts = jaxpr.invars[:n], jaxpr.invars[n + self._n_carry :]
        self._carries = jaxpr.invars[n : n + self._n_carry]
        self._new, self._stacked = jaxpr.outvars[: self._n_carry], jaxpr.outvars[self._n_carry :]
        self._equations: list[JaxprEqn] = jaxpr.eqns
        self._made_by = {v: e for e in self._equations for v in e.outvars}
        self._reads = Counter(v for e in self._equations for v in e.invars if isinstance(v, Var))
        self._reads.update(v for v in jaxpr.outvars if isinstance(v, Var))
        self.added = self._added()
        """By number of a carry that is only added to: what is added."""

        self._others = [k for k in range(self._n_carry) if k not in self.added]
        self.in_order = _needed(self._equations, [self._new[k] for k in self._others])
        """The equations that make the other carries, such as random keys: one after another."""

        self._numbers = self._known(first[n : n + self._n_carry])
        """By variable: the number that it is in each iteration."""

    def _added(self) -> dict[int, Atom]:
        added = {}
        for k, (carry, new) in enumerate(zip(self._carries, self._new, strict=True)):
            adds = self._made_by.get(new) if isinstance(new, Var) else None
            if adds is None or adds.primitive.name not in _ADDS or self._reads[new] != 1:
                continue
            for one, other in (adds.invars, adds.invars[::-1]):
                if self._is_read_once(one, carry):
                    added[k] = other
        return added

    def _is_read_once(self, atom: Atom, carry: Var) -> bool:
        """Whether an atom is a carry, and its only use; without a weak type, which is no change."""
        if not isinstance(atom, Var) or self._reads[atom] != 1:
            return False
        maker = self._made_by.get(atom)
        if maker is not None and maker.primitive.name == "convert_element_type":
            (source,) = maker.invars
            return aval(source).dtype == aval(atom).dtype and self._is_read_once(source, carry)
        return atom is carry

    def _known(self, first: Sequence[Atom]) -> dict[Var, list[Any]]:
        """The numbers that follow from those with which the loop begins, as its index does."""
        found: dict[Var, list[Any]] = {}
        if self.length > MOST_ITERATIONS:
            return found
        now = {self._carries[k]: v.val for k in self._others if isinstance(v := first[k], Literal)}
        for _ in range(self.length if now else 0):
            for equation in self._equations:
                read = [v for v in equation.invars if isinstance(v, Var)]
                is_number = all(aval(v).shape == () for v in equation.outvars)
                if read and is_number and all(v in now for v in read) and not bodies_of(equation):
                    with jax.ensure_compile_time_eval():
                        values = [
                            v.val if isinstance(v, Literal) else now[v] for v in equation.invars
                        ]
                        results = _compat.bind(equation, values, dict(equation.params))
                    now.update(zip(equation.outvars, results, strict=True))
            for v, number in now.items():
                found.setdefault(v, []).append(number)
            following = {self._carries[k]: self._new[k] for k in self._others}
            now = {
                old: new.val if isinstance(new, Literal) else now[new]
                for old, new in following.items()
                if isinstance(new, Literal) or new in now
            }
        return {v: numbers for v, numbers in found.items() if len(numbers) == self.length}

    def _slice(self, equation: JaxprEqn) -> tuple[Var, int] | None:
        """The operand of all iterations of which each takes its part, and the dim; else None."""
        if equation.primitive.name != "dynamic_slice":
            return None
        operand, *starts = equation.invars
        sizes, shape = equation.params["slice_sizes"], aval(operand).shape
        cut = [d for d, (size, n) in enumerate(zip(sizes, shape, strict=True)) if size != n]
        if not isinstance(operand, Var) or operand not in self._consts or len(cut) != 1:
            return None
        (dim,) = cut
        start = starts[dim]
        numbers = self._numbers.get(start) if isinstance(start, Var) else None
        if numbers is None or sizes[dim] * self.length != shape[dim]:
            return None
        in_turn = all(int(at) == i * sizes[dim] for i, at in enumerate(numbers))
        return (operand, dim) if in_turn else None

    def run(self, *operands: Any) -> list[Any]:
        """Compute the results of the scan."""
        n = len(self._consts)
        consts, carries = operands[:n], list(operands[n : n + self._n_carry])
        parts = operands[n + self._n_carry :]
        products = {k: _Product.of(v, self._made_by, self._reads) for k, v in self.added.items()}
        wanted: list[Atom] = [*self._stacked]
        for k, added in self.added.items():
            product = products[k]
            wanted += [added] if product is None else product.equation.invars
        slices = {e.outvars[0]: s for e in self._equations if (s := self._slice(e)) is not None}
        made = [v for e in self.in_order for v in e.outvars]
        # without order, the program would be another one in each process
        before = dict.fromkeys([*made, *self._numbers, *(self._carries[k] for k in self._others)])
        rest = [e for e in self._equations if before.keys().isdisjoint(e.outvars)]
        needed = _needed([e for e in rest if e.outvars[0] not in slices], wanted)
        read = {v for e in needed for v in e.invars if isinstance(v, Var)}
        read.update(v for v in wanted if isinstance(v, Var))
        of_each = [v for v in before if v in read]
        cut = [v for v in slices if v in read]
        given = dict(zip(self._consts, consts, strict=True))
        others = [carries[k] for k in self._others]
        stacks, others = self._in_turn(of_each, consts, others, parts)
        each = [
            *parts,
            *stacks,
            *(_apart(given[x], d, self.length) for x, d in (slices[v] for v in cut)),
        ]
        inputs = [*self._consts, *self._parts, *of_each, *cut]
        body = _compat.as_function(_compat.program((), inputs, wanted, needed, (), self._like))
        axes = [*(None for _ in consts), *(0 for _ in each)]
        results = iter(jax.vmap(body, axes, axis_size=self.length)(*consts, *each))
        stacked = [next(results) for _ in self._stacked]
        for k, added in self.added.items():
            with self._marked(added):
                if (product := products[k]) is None:
                    total = next(results).sum(0)
                else:
                    total = product.total(next(results), next(results))
            carries[k] = carries[k] + total.astype(carries[k].dtype)
        for k, last in zip(self._others, others, strict=True):
            carries[k] = last
        return [*carries, *stacked]

    def _in_turn(
        self, wanted: Sequence[Var], consts: Sequence[Any], carries: Sequence[Any], parts: Any
    ) -> tuple[list[Any], list[Any]]:
        """The values that variables have in all iterations, and the last ones of carries."""
        old, new = ([of[k] for k in self._others] for of in (self._carries, self._new))
        inputs, outputs = [*self._consts, *old, *self._parts], [*new, *wanted]
        equations = _needed(self._equations, outputs)
        program = _compat.program((), inputs, outputs, equations, (), self._like)
        body, found = _compat.as_function(program), []
        for i in range(self.length if old else 0):
            slices = (lax.index_in_dim(x, i, 0, keepdims=False) for x in parts)
            results = body(*consts, *carries, *slices)
            carries = results[: len(old)]
            found.append(results[len(old) :])
        numbers = [self._numbers.get(v) for v in wanted]
        stacks = [
            lax.concatenate([lax.expand_dims(x, (0,)) for x in values], 0)
            if known is None
            else np.stack([np.asarray(number) for number in known])
            for known, values in zip(numbers, zip(*found, strict=True), strict=True)
        ]
        return stacks, list(carries)

    def _marked(self, value: Atom) -> AbstractContextManager[None]:
        """Marks equations as made by the differentiation that made a value."""
        makers = _needed(self._equations, [value])
        if any(map(_compat.is_backward, makers)):
            return jax.named_scope("transpose(jvp(sum))")
        if any(map(_compat.is_differentiated, makers)):
            return jax.named_scope("jvp(sum)")
        return nullcontext()


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of each iteration that is added up, which one product for all of them does.

    Otherwise, there would be as many gradients of each weight matrix as there are parts.
    """

    equation: JaxprEqn
    """The product."""

    after: tuple[JaxprEqn, ...]
    """What is done to it before it is added, which may as well be done to the sum."""

    @classmethod
    def of(
        cls, value: Atom, made_by: Mapping[Var, JaxprEqn], reads: Mapping[Var, int]
    ) -> _Product | None:
        """The product of which a value is made; None if it is made otherwise."""
        after: list[JaxprEqn] = []
        while isinstance(value, Var) and value in made_by and reads[value] == 1:
            equation = made_by[value]
            if equation.primitive.name == "dot_general":
                return cls(equation, tuple(reversed(after)))
            first, *others = equation.invars
            if equation.primitive.name not in _LINEAR or not all(map(_is_number, others)):
                return None
            after.append(equation)
            value = first
        return None

    def total(self, left: Any, right: Any) -> Any:
        """The sum over all iterations, of operands with iterations in their leading dim."""
        params = dict(self.equation.params)
        (contract, batch) = params["dimension_numbers"]
        contract = tuple((0, *(d + 1 for d in dims)) for dims in contract)
        batch = tuple(tuple(d + 1 for d in dims) for dims in batch)
        params["dimension_numbers"] = contract, batch
        (value,) = _compat.bind(self.equation, [left, right], params)
        for equation in self.after:
            operands = [value, *(v.val for v in equation.invars[1:] if isinstance(v, Literal))]
            (value,) = _compat.bind(equation, operands, dict(equation.params))
        return value


_LINEAR = ("div", "mul", "neg", "transpose")
"""Linear functions of a first operand, if the second one is a number."""


def _is_number(atom: Atom) -> bool:
    return isinstance(atom, Literal) and aval(atom).shape == ()


def _apart(x: Any, dim: int, n: int) -> Any:
    """An array with a dim cut into `n` parts, which come first."""
    whole = x.reshape(*x.shape[:dim], n, -1, *x.shape[dim + 1 :])
    return lax.transpose(whole, [dim, *(d for d in range(whole.ndim) if d != dim)])


def _needed(equations: Sequence[JaxprEqn], wanted: Sequence[Atom]) -> tuple[JaxprEqn, ...]:
    """Those of the equations that the wanted values depend on."""
    needed = {v for v in wanted if isinstance(v, Var)}
    found = []
    for equation in reversed(equations):
        if not needed.isdisjoint(equation.outvars):
            needed.update(v for v in equation.invars if isinstance(v, Var))
            found.append(equation)
    return tuple(reversed(found))


def _with_bodies(equations: Iterable[JaxprEqn]) -> Iterator[JaxprEqn]:
    """The equations, and those of their bodies."""
    for equation in equations:
        yield equation
        for body in bodies_of(equation):
            yield from _with_bodies(body.jaxpr.eqns)


def _is_differentiated(equation: JaxprEqn) -> bool:
    return any(map(_compat.is_differentiated, _with_bodies([equation])))
