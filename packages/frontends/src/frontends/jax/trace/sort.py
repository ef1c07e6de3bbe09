"""Lets each example sort its own rows, as `frontends.step.sorted_rows` explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frontends.jax.base import _compat
from frontends.jax.base._compat import JaxprEqn, Literal, Var, aval
from frontends.jax.rules.sorted_rows import meshwright_multiply_groups, meshwright_multiply_rows
from frontends.jax.trace.keys import Keys
from frontends.jax.trace.microbatch import FlatProgram
from frontends.jax.trace.phased_graph import PhasedGraph
from frontends.step.examples import Place, places_of_examples
from frontends.step.sorted_rows import (
    EXACT,
    WIDEST_TABLE,
    Counts,
    RowNumbers,
    RowOrder,
    Rows,
    Table,
    alike,
    copies,
    in_order,
    with_twins,
)
from frontends.step.step import APPLY

Array = Any

_PRODUCTS = {
    ((1,), (1,)): (0, 1, 2),
    ((1,), (2,)): (0, 2, 1),
}
"""By contracted dims of rows and of matrices: how the matrices are transposed."""


def sorted_by_example(flat: FlatProgram, whole: PhasedGraph, examples: int) -> FlatProgram:
    """The program in which each example sorts its own rows, where that is the same.

    It is `flat` itself if there are no such rows.

    Args:
        flat: The program.
        whole: Its graph, with rules for microbatches.
        examples: The number of examples; leaves of the batch have multiples of it.
    """
    sorts = {name for name, e in whole.equations.items() if e.primitive.name == "sort"}
    return with_twins(flat, sorts, partial(_Sorter, flat, whole, examples))


class _Sorter:
    """Adds the twins of values with sorted rows to a program.

    Args:
        flat: The program.
        whole: Its graph.
        examples: The number of examples.
        left_out: Operators that sort, which are to stay as they are.
    """

    def __init__(
        self, flat: FlatProgram, whole: PhasedGraph, examples: int, left_out: Collection[str]
    ) -> None:
        self._flat, self._whole, self._examples, self._left_out = flat, whole, examples, left_out
        jaxpr = flat.closed.jaxpr
        self._made_by = {v: equation for equation in jaxpr.eqns for v in equation.outvars}
        self._keys = Keys(self._made_by)
        self._places = places_of_examples(whole.graph, lambda n: n % examples == 0)
        self._operators = {op.name: op for op in whole.graph.operators}
        self._variables = {name: v for v, name in whole.names.items()}
        self._equal: dict[str, Collection[int]] = dict(whole.equal)
        """For values that are filled with copies: the dims along which all slices are equal."""

        self._found: dict[str, Rows | Counts] = {}
        """By value that has a twin which is not equal: what it holds."""

        self._twins: dict[Var, Var] = {}
        self._same: dict[Var, Var] = {}
        """By variable that has an equal twin: the twin."""

        self._spans: dict[Var, tuple[Var, Var]] = {}
        """By numbers of rows by group: where groups begin and end."""

        self._equations: list[tuple[JaxprEqn, int]] = []
        sizes = {n for v in whole.names for n in aval(v).shape}
        self._first = {n: RowOrder(n) for n in sizes if n and n % examples == 0}
        """By number of rows: the order of the batch."""

        self._makers: dict[str, Callable[[JaxprEqn, str, int], bool]] = {
            "sort": self._sort,
            "iota": self._count,
            "gather": self._take,
            "scatter": self._put,
            "scatter-add": self._put,
            "reduce_sum": self._sum,
            "convert_element_type": self._convert,
            "ragged_dot_general": self._multiply,
        }

    def program(self) -> FlatProgram:
        """The program, in which twins are read wherever they are equal."""
        jaxpr = self._flat.closed.jaxpr
        for index in sorted(range(len(jaxpr.eqns)), key=lambda i: self._flat.phases[i]):
            equation, phase = jaxpr.eqns[index], self._flat.phases[index]
            name = f"{equation.primitive.name}.{index}"
            self._equations.append((_compat.reading(equation, self._same), phase))
            if phase != APPLY:
                make = self._makers.get(equation.primitive.name)
                is_made = make is not None and make(equation, name, phase)
                if not is_made and not self._do_alike(equation, name, phase):
                    self._equal |= copies(self._operators[name], self._equal)
        if not self._same:
            return self._flat
        closed = self._flat.closed
        closed = _compat.program(
            jaxpr.constvars,
            jaxpr.invars,
            _compat.replaced(jaxpr.outvars, self._same),
            [equation for equation, _ in self._equations],
            closed.consts,
            closed,
        )
        return FlatProgram(closed, tuple(phase for _, phase in self._equations)).live()

    def still_in(self, program: FlatProgram) -> set[str]:
        """The operators that sort rows which a program still needs beside their twins."""
        if not self._same:
            return set()
        made = {v for equation in program.closed.jaxpr.eqns for v in equation.outvars}
        return {
            found.order.sort
            for name, found in self._found.items()
            if isinstance(found, Rows) and found.order.sort is not None
            if self._variables[name] in made
            if np.issubdtype(aval(self._variables[name]).dtype, np.inexact)
        }

    # What an equation becomes. Each of these returns whether it has made the equation's twin.

    def _sort(self, equation: JaxprEqn, name: str, phase: int) -> bool:
        params, keys = equation.params, equation.invars[0]
        shape = aval(keys).shape
        is_one = len(shape) == 1 and shape[0] in self._first and params["num_keys"] == 1
        if name in self._left_out or not is_one or not isinstance(keys, Var):
            return False
        found = self._of(keys)
        if isinstance(found, RowNumbers):  # the inverse of a permutation
            if not found.is_permutation:
                return False
            after, before = found.numbered, found.order
            values: Rows = RowNumbers.of(after, after)
        elif isinstance(found, Rows) or self._places.get(self._name(keys)) == Place(0, 1):
            root = self._whole.names.get(self._keys.root(keys))
            after = RowOrder(shape[0], name, root if self._keys.are_natural(keys) else None)
            before = found.order if isinstance(found, Rows) else self._first[shape[0]]
            values = Rows(after, 0)
        else:
            return False
        carried: list[Rows] = []
        for atom in equation.invars[1:]:
            value = in_order(self._of(atom), before) if isinstance(atom, Var) else None
            if value is None:
                return False
            if isinstance(value, RowNumbers):
                if not (value.is_of_batch or value.is_count):
                    return False
                value = RowNumbers(after, 0, before, value.table)
            else:
                value = Rows(after, 0)
            carried.append(value)

        def run(*operands: Array) -> Sequence[Array]:
            apart = [self._apart(x) for x in operands]
            made = lax.sort(apart, dimension=1, is_stable=params["is_stable"], num_keys=1)
            return [_together(x) for x in made]

        made = self._make(run, equation.invars, equation, phase)
        for variable, twin, value in zip(equation.outvars, made, [values, *carried], strict=True):
            self._let(variable, twin, value)
        return True

    def _count(self, equation: JaxprEqn, name: str, phase: int) -> bool:
        (variable,) = equation.outvars
        shape, dtype = aval(variable).shape, aval(variable).dtype
        if equation.params["dimension"] != 0 or shape[0] not in self._first or equation.invars:
            return False
        if not np.issubdtype(dtype, np.integer) or np.iinfo(dtype).max < shape[0]:
            return False
        own = (self._examples, shape[0] // self._examples, *shape[1:])

        def run() -> Array:
            return _together(lax.broadcasted_iota(dtype, own, 1))

        (twin,) = self._make(run, (), equation, phase)
        order = self._first[shape[0]]
        table = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
        self._let(variable, twin, RowNumbers(order, 0, order, np.broadcast_to(table, shape)))
        return True

    def _take(self, equation: JaxprEqn, name: str, phase: int) -> bool:
        x, places = equation.invars
        numbers = self._pointers(places)
        if numbers is None or not isinstance(x, Var):
            return False
        rows, *rest = aval(x).shape
        expected = lax.GatherDimensionNumbers(tuple(range(1, len(rest) + 1)), (0,), (0,))
        source = self._of(x)
        before = source.order if isinstance(source, Rows) else None
        if (
            equation.params["dimension_numbers"] != expected
            or tuple(equation.params["slice_sizes"]) != (1, *rest)
            or isinstance(source, Counts)
            or (isinstance(source, Rows) and source.dim)
            or (source is None and numbers.order.sort is None)  # nothing is sorted
            or (isinstance(source, RowNumbers) and not source.is_of_batch)
            or not numbers.is_of(before)
            or not numbers.points_into(rows, self._examples)
        ):
            return False
        across = lax.GatherDimensionNumbers(
            offset_dims=tuple(range(2, len(rest) + 2)),
            collapsed_slice_dims=(1,),
            start_index_map=(1,),
            operand_batching_dims=(0,),
            start_indices_batching_dims=(0,),
        )

        def run(x: Array, places: Array) -> Array:
            apart = self._apart(x), self._apart(places)
            return _together(
                lax.gather(*apart, across, (1, 1, *rest), mode=equation.params["mode"])
            )

        (twin,) = self._make(run, (x, places), equation, phase)
        found: Rows | None = Rows(numbers.order, 0) if numbers.order.sort else None
        if isinstance(source, RowNumbers):
            found = RowNumbers(numbers.order, 0, numbers.numbered, source.table[numbers.table])
        elif numbers.is_permutation:
            self._keys.let_permuted(equation.outvars[0], x)
        self._let(equation.outvars[0], twin, found)
        return True

    def _put(self, equation: JaxprEqn, name: str, phase: int) -> bool:
        target, places, values = equation.invars
        adds = equation.primitive.name == "scatter-add"
        if not isinstance(target, Var) or not isinstance(values, Var):
            return False
        rows, *rest = aval(target).shape or (0,)
        expected = lax.ScatterDimensionNumbers(tuple(range(1, len(rest) + 1)), (0,), (0,))
        if equation.params["dimension_numbers"] != expected or not rows:
            return False
        is_zero = self._name(target) in self._whole.zeros
        if adds and is_zero and not rest and self._count_keys(equation, phase):
            return True
        numbers = self._pointers(places)
        if numbers is None or self._name(target) in self._found:
            return False
        given = in_order(self._of(values), numbers.order)
        after = numbers.numbered if numbers.numbered.sort else self._first.get(rows)
        is_new = is_zero if adds else numbers.is_permutation
        if (
            given is None
            or numbers.is_of_batch  # nothing is sorted
            or given.dim
            or after is None
            or not (is_new or (adds and after.sort is None))
            or (isinstance(given, RowNumbers) and (adds or not given.is_permutation))
            or not numbers.points_into(rows, self._examples)
            or aval(values).shape != (numbers.order.rows, *rest)
        ):
            return False
        across = lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(2, len(rest) + 2)),
            inserted_window_dims=(1,),
            scatter_dims_to_operand_dims=(1,),
            operand_batching_dims=(0,),
            scatter_indices_batching_dims=(0,),
        )
        put: Any = lax.scatter_add if adds else lax.scatter

        def run(target: Array, places: Array, values: Array) -> Array:
            apart = [self._apart(x) for x in (target, places, values)]
            return _together(put(*apart, across, mode=equation.params["mode"]))

        (twin,) = self._make(run, (target, places, values), equation, phase)
        found: Rows | None = Rows(after, 0) if after.sort else None
        if isinstance(given, RowNumbers):
            found = RowNumbers.of(after, given.numbered)
        self._let(equation.outvars[0], twin, found)
        return True

    def _count_keys(self, equation: JaxprEqn, phase: int) -> bool:
        """Count rows by key, where ones are added to zeros at the keys."""
        target, keys, ones = equation.invars
        (groups,), shape = aval(target).shape, aval(keys).shape
        if (
            not isinstance(keys, Var)
            or len(shape) != 2
            or shape[1] != 1
            or shape[0] not in self._first
            or not self._keys.are_ones(ones)
            or not self._keys.are_natural(keys)
            or isinstance(self._of(keys), Counts | RowNumbers)
        ):
            return False
        across = lax.ScatterDimensionNumbers((), (1,), (1,), (0,), (0,))
        dtype, mode = aval(target).dtype, equation.params["mode"]

        def run(keys: Array) -> Array:
            each = self._apart(keys)
            counted = lax.broadcast(jnp.zeros((), dtype), (self._examples, groups))
            added = lax.broadcast(jnp.ones((), dtype), each.shape[:2])
            return lax.scatter_add(counted, each, added, across, mode=mode)

        (twin,) = self._make(run, (keys,), equation, phase)
        self._let(equation.outvars[0], twin, Counts(self._whole.names[self._keys.root(keys)]))
        return True

    def _sum(self, equation: JaxprEqn, name: str, phase: int) -> bool:
        """Count rows by key, where one-hot vectors of the keys are added."""
        (x,) = equation.invars
        keys, axes = self._keys.of_one_hot(x), equation.params["axes"]
        if keys is None or set(axes) != set(range(len(aval(x).shape) - 1)):
            return False
        found = self._of(x)
        if aval(x).shape[0] not in self._first or not (
            found is None or (type(found) is Rows and not found.dim)
        ):
            return False

        def run(x: Array) -> Array:
            return lax.reduce_sum_p.bind(
                self._apart(x), axes=tuple(range(1, len(axes) + 1)), out_sharding=None
            )

        (twin,) = self._make(run, (x,), equation, phase)
        self._let(equation.outvars[0], twin, Counts(self._whole.names[keys]))
        return True

    def _convert(self, equation: JaxprEqn, name: str, phase: int) -> bool:
        (x,) = equation.invars
        found = self._of(x) if isinstance(x, Var) else None
        if not isinstance(found, Counts):
            return False
        dtype = equation.params["new_dtype"]
        (twin,) = self._make(partial(_converted, dtype=dtype), (x,), equation, phase)
        self._let(equation.outvars[0], twin, found)
        return True

    def _multiply(self, equation: JaxprEqn, name: str, phase: int) -> bool:
        params = equation.params
        numbers = params["ragged_dot_dimension_numbers"]
        contracted, batch = numbers.dot_dimension_numbers
        a, b, *groups = equation.invars
        (result,) = equation.outvars
        if (
            len(groups) != 1
            or not all(isinstance(v, Var) for v in equation.invars)
            or params.get("group_offset") is not None
            or tuple(map(tuple, batch)) != ((), ())
            or tuple(numbers.lhs_ragged_dimensions) != (0,)
            or len({aval(v).dtype for v in (a, b, result)}) > 1
        ):
            return False
        left, right, counts = self._of(a), self._of(b), self._of(groups[0])
        if type(left) is not Rows or left.dim or not isinstance(counts, Counts):
            return False
        if left.order.keys != counts.keys:
            return False
        dims = tuple(map(tuple, contracted))
        precision = params["precision"]
        if tuple(numbers.rhs_group_dimensions) == (0,) and dims in _PRODUCTS and right is None:
            turn = _PRODUCTS[dims]

            def run(a: Array, b: Array, begins: Array, ends: Array) -> Array:
                matrices = b if turn == (0, 1, 2) else lax.transpose(b, turn)
                made = meshwright_multiply_rows(
                    self._apart(a), matrices, begins, ends, precision=precision
                )
                return _together(made)

            found: Rows | None = Rows(left.order, 0)
        elif (
            not numbers.rhs_group_dimensions
            and dims == ((0,), (0,))
            and type(right) is Rows
            and right.order is left.order
            and not right.dim
        ):

            def run(a: Array, b: Array, begins: Array, ends: Array) -> Array:
                apart = self._apart(a), self._apart(b)
                return meshwright_multiply_groups(*apart, begins, ends, precision=precision)

            found = None
        else:
            return False
        begins, ends = self._spans_of(groups[0], equation, phase)
        (twin,) = self._make(run, (a, b, begins, ends), equation, phase)
        self._let(result, twin, found)
        return True

    def _spans_of(self, counts: Any, equation: JaxprEqn, phase: int) -> tuple[Var, Var]:
        """Where groups begin and end in the rows of each example."""
        if counts not in self._spans:
            (ends,) = self._make(partial(lax.cumsum, axis=1), (counts,), equation, phase)
            (begins,) = self._make(lax.sub, (ends, counts), equation, phase)
            self._spans[counts] = begins, ends
        return self._spans[counts]

    def _do_alike(self, equation: JaxprEqn, name: str, phase: int) -> bool:
        """Run an equation on twins if it does the same to each row."""
        found = alike(
            self._operators[name],
            self._found,
            self._equal,
            self._first,
            self._examples,
            partial(self._tables, equation),
        )
        if found is None:
            return False
        held, results = found
        twins = {
            v: self._twin(v) if self._name(v) in held else self._same.get(v, v)
            for v in equation.invars
            if isinstance(v, Var)
        }
        made = [_compat.variable_like(v) for v in equation.outvars]
        twin = _compat.reading(equation, twins).replace(outvars=made)
        self._equations.append((twin, phase))
        for variable, result in zip(equation.outvars, made, strict=True):
            self._let(variable, result, results[self._name(variable)])
        return True

    def _tables(self, equation: JaxprEqn, numbers: Mapping[str, RowNumbers]) -> list[Table] | None:
        """The results of an equation if its operands are as in the tables of numbers."""
        most = WIDEST_TABLE * max(value.order.rows for value in numbers.values())
        if max(math.prod(aval(v).shape) for v in (*equation.invars, *equation.outvars)) > most:
            return None
        operands: list[Any] = []
        for atom in equation.invars:
            given = numbers.get(self._name(atom))
            value = self._constant(atom) if given is None else given.table
            if value is None:
                return None
            operands.append(np.asarray(value, aval(atom).dtype))
        with jax.ensure_compile_time_eval():
            return [np.asarray(x) for x in _compat.bind(equation, operands, equation.params)]

    def _constant(self, atom: Any) -> Any | None:
        """The value of an operand that follows from no variable; None if it does."""
        if isinstance(atom, Literal):
            return atom.val
        equation = self._made_by.get(atom)
        if equation is None:
            return None
        operands = [self._constant(v) for v in equation.invars]
        if any(value is None for value in operands) or not operands:
            return None
        with jax.ensure_compile_time_eval():
            results = _compat.bind(equation, operands, equation.params)
        return dict(zip(equation.outvars, results, strict=True))[atom]

    # What a value is.

    def _name(self, variable: Any) -> str:
        return self._whole.names.get(variable, "") if isinstance(variable, Var) else ""

    def _of(self, atom: Any) -> Rows | Counts | None:
        return self._found.get(self._name(atom))

    def _pointers(self, places: Any) -> RowNumbers | None:
        """The numbers that a gather or scatter takes as indices of rows, of shape (n, 1)."""
        found = self._of(places)
        if not isinstance(found, RowNumbers) or found.dim or aval(places).shape[1:] != (1,):
            return None
        return found.vector

    # How equations are made.

    def _twin(self, variable: Any) -> Any:
        return self._twins.get(variable) or self._same.get(variable, variable)

    def _let(self, variable: Var, twin: Var, found: Rows | Counts | None) -> None:
        if isinstance(found, Counts) and str(aval(variable).dtype) not in EXACT:
            return  # numbers of rows are rounded
        if found is None:
            self._same[variable] = twin
        else:
            self._found[self._name(variable)], self._twins[variable] = found, twin

    def _make(
        self,
        function: Callable[..., Any],
        operands: Sequence[Any],
        like: JaxprEqn,
        phase: int,
    ) -> list[Var]:
        """Add the equations of a function of some twins; returns its results."""
        given = [self._twin(v) for v in operands]
        shapes = [jax.ShapeDtypeStruct(aval(v).shape, aval(v).dtype) for v in given]
        body = _compat.inline_calls(jax.make_jaxpr(function)(*shapes)).jaxpr
        names = dict(zip(body.invars, given, strict=True))
        for equation in body.eqns:
            read = _compat.reading(equation, names).replace(source_info=like.source_info)
            self._equations.append((read, phase))
        return [names.get(v, v) for v in body.outvars]

    def _apart(self, x: Array) -> Array:
        """An array with a leading dim of examples."""
        return lax.reshape(x, (self._examples, x.shape[0] // self._examples, *x.shape[1:]))


def _together(x: Array) -> Array:
    """An array with the rows of all examples in one dim."""
    return lax.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def _converted(x: Array, dtype: Any) -> Array:
    return lax.convert_element_type(x, dtype)
