"""Rows that a step sorts by a key: the same if each example sorts its own.

Experts without capacity are run on the rows of the whole batch, sorted by expert: the rows of an
expert are adjacent then, and are multiplied with its weights at once. Afterwards the rows are put
back into their order. Neither a microbatch nor the share of a device is a slice of the sorted rows.

But what happens to a row depends on its group only, not on the rows around it. So each example can
sort its own rows, with its own numbers of rows by group, and the result is the same. This module
knows what makes it the same; `frontends.jax.trace.sort` and `frontends.torch.trace.sort` derive the
step in which examples sort their own rows.

A value of the step with sorted rows has a twin there: the rows of the first example in their order,
then those of the second, and so on. Values whose rows are in the order of the batch are equal in
both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from autoshard import Operator

from frontends.step.examples import Dims

Program = TypeVar("Program")
Table = np.ndarray[Any, Any]

WIDEST_TABLE = 16
"""The most elements that a table has for each row, as it is made when a step is planned [chosen].

Numbers of rows are vectors, or have few columns. A table of copies, which numpy broadcasts, counts
as one element for each row.
"""

EXACT = frozenset({"int32", "int64", "uint32", "float32", "float64"})
"""Types in which keys and counts are distinct if they are as integers."""


@dataclass(frozen=True, eq=False, slots=True)
class RowOrder:
    """An order of rows; in the twin, the same order among the rows of each example."""

    rows: int
    sort: str | None = None
    """The operator that sorts; None if it is the order of the batch."""

    keys: str | None = None
    """The value by which rows are in ascending order, if that consists of numbers from 0."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A value with rows in an order that is not that of the batch."""

    order: RowOrder
    dim: int
    """The dim of rows."""


@dataclass(frozen=True, slots=True)
class RowNumbers(Rows):
    """A value that follows from numbers of rows; in the twin, rows are numbered in each example.

    Each row has one number, its place in another order or in its own.
    """

    numbered: RowOrder
    """The order in which rows are numbered."""

    table: Table
    """The value if row k has number k."""

    @classmethod
    def of(cls, order: RowOrder, numbered: RowOrder) -> RowNumbers:
        """The numbers in one order of rows that are in another order."""
        return cls(order, 0, numbered, np.arange(numbered.rows))

    @property
    def is_of_batch(self) -> bool:
        """Whether rows are in the order of the batch, and numbered in it."""
        return self.order.sort is None and self.numbered.sort is None

    def is_of(self, order: RowOrder | None) -> bool:
        """Whether rows are numbered in an order; None is that of the batch.

        Numbers of rows of the batch may be divided, to be those of fewer rows.
        """
        return self.numbered is order or (order is None and self.numbered.sort is None)

    @property
    def is_permutation(self) -> bool:
        """Whether the value is the number, of each row."""
        same_size = self.order.rows == self.numbered.rows
        return same_size and np.array_equal(self.table, np.arange(self.numbered.rows))

    @property
    def is_count(self) -> bool:
        """Whether it counts the rows, in whatever order these are."""
        return self.order is self.numbered and self.is_permutation

    @property
    def is_vector(self) -> bool:
        """Whether it has one number for each row, or copies of one."""
        return self.dim == 0 and math.prod(_without_copies(self.table, 0).shape[1:]) == 1

    @property
    def vector(self) -> RowNumbers:
        """The number of each row, if it has one, as a vector."""
        table = _without_copies(self.table, 0).reshape(-1)
        return RowNumbers(self.order, 0, self.numbered, table)

    def points_into(self, rows: int, examples: int) -> bool:
        """Whether the value is, for each row, one of `rows` rows of the same example."""
        if rows % examples or not np.issubdtype(self.table.dtype, np.integer):
            return False
        if self.numbered.sort is not None:  # which example a place belongs to is not known
            return rows == self.numbered.rows and self.is_permutation
        parts, own = self._parts(examples), rows // examples
        first = np.arange(examples).reshape(-1, *[1] * (parts.ndim - 1)) * own
        is_inside = parts.size == 0 or (parts[0].min() >= 0 and parts[0].max() < own)
        same = np.broadcast_to(parts[0], parts.shape)
        return bool(is_inside and np.array_equal(parts - first, same))

    def is_same_in_all(self, examples: int) -> bool:
        """Whether the value of a row depends on the row's number in its example only."""
        parts = self._parts(examples if self.numbered.sort is None else self.order.rows)
        return bool(np.array_equal(parts, np.broadcast_to(parts[0], parts.shape)))

    def _parts(self, examples: int) -> Table:
        """The table with a leading dim of examples."""
        table = np.moveaxis(_without_copies(self.table, self.dim), self.dim, 0)
        return table.reshape(examples, -1, *table.shape[1:])


def _without_copies(table: Table, dim: int) -> Table:
    """A table with size 1 in all dims but one along which numpy keeps copies, as it broadcasts."""
    strides = enumerate(table.strides)
    return table[tuple(slice(1) if d != dim and not step else slice(None) for d, step in strides)]


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows have each key from 0; the twin has a leading dim of examples."""

    keys: str
    is_cumulative: bool = False


class Sorter(Protocol[Program]):
    """Adds the twins of values with sorted rows to a program."""

    def program(self) -> Program:
        """The program, in which twins are read wherever they are equal."""

    def still_in(self, program: Program) -> set[str]:
        """The operators that sort rows which a program still needs beside their twins."""


def with_twins(
    program: Program, sorts: Collection[str], sorter: Callable[[Collection[str]], Sorter[Program]]
) -> Program:
    """The program in which each example sorts its own rows; itself if there are no such rows.

    Args:
        program: The program.
        sorts: Its operators that sort.
        sorter: Makes what adds twins, but leaves these operators as they are.
    """
    left_out: set[str] = set()
    while not left_out.issuperset(sorts):
        adds = sorter(left_out)
        made = adds.program()
        still = adds.still_in(made)
        if not still:
            return made
        left_out |= still
    return program


def in_order(found: Rows | Counts | None, order: RowOrder) -> Rows | None:
    """The rows of a value in an order; None if it has them in another one."""
    if found is None:
        return Rows(order, 0) if order.sort is None else None
    if not isinstance(found, Rows):
        return None
    if isinstance(found, RowNumbers) and found.is_count and found.order.rows == order.rows:
        return RowNumbers.of(order, order)
    return found if found.order is order else None


def alike(
    op: Operator,
    found: Mapping[str, Rows | Counts],
    equal: Mapping[str, Collection[int]],
    first: Mapping[int, RowOrder],
    examples: int,
    tables_of: Callable[[Mapping[str, RowNumbers]], Sequence[Table] | None],
) -> tuple[set[str], dict[str, Rows | None]] | None:
    """Which operands of an operator's twin are twins, and what the results hold.

    A result whose twin is equal to it holds None. An operator that does not do the same to each row
    has no twin, nor has a sum of numbers of rows, as the twin's rows have other numbers.

    Args:
        op: The operator.
        found: What its operands hold that have twins which are not equal.
        equal: For values that are filled with copies: the dims along which all slices are equal.
        first: By number of rows: the order of the batch.
        examples: The number of examples.
        tables_of: The results, if the operands are as in the tables of these numbers; None if they
            depend on other operands, too, or have more than `WIDEST_TABLE` elements for each row.
    """
    given = {name: found[name] for name in op.inputs if name in found}
    rows = {name: value for name, value in given.items() if isinstance(value, Rows)}
    is_counted = {n: isinstance(v, RowNumbers) and v.is_count for n, v in rows.items()}
    orders = {value.order for name, value in rows.items() if not is_counted[name]}
    if not rows or len(rows) < len(given) or len(orders) > 1:
        return None
    order = orders.pop() if orders else next(iter(rows.values())).order
    ordered = {name: in_order(value, order) for name, value in rows.items()}
    held = {name: value for name, value in ordered.items() if value is not None}
    is_as_it_was = all(rows[name].order.sort is None for name in rows.keys() - held.keys())
    results = through(op, held, equal, first) if is_as_it_was else None
    if results is None:
        return None
    numbers = {name: value for name, value in held.items() if isinstance(value, RowNumbers)}
    numbered = {value.numbered for value in numbers.values()}
    is_only = len(numbers) == len(held) and len(numbered) == 1
    tables = tables_of(numbers) if is_only and None not in results.values() else None
    if tables is None:
        is_same = all(value.is_same_in_all(examples) for value in numbers.values())
        return (set(held), results) if is_same and order.sort is not None else None
    (base,) = numbered
    return set(held), {
        name: None if value is None else RowNumbers(value.order, value.dim, base, table)
        for (name, value), table in zip(results.items(), tables, strict=True)
    }


def through(
    op: Operator,
    rows: Mapping[str, Rows],
    equal: Mapping[str, Collection[int]],
    first: Mapping[int, RowOrder],
) -> dict[str, Rows | None] | None:
    """Where the results of an operator hold rows, if it does the same to each; None if it does not.

    A result without rows, as it adds them up, is the same in each order; its entry is None.

    Args:
        op: The operator.
        rows: Its operands with rows; they have the same order.
        equal: For values that are filled with copies: the dims along which all slices are equal.
        first: By number of rows: the order of the batch.
    """
    (order,) = {value.order for value in rows.values()}
    is_first, rule = order.sort is None, op.rule
    operands = list(zip(op.inputs, rule.operands, strict=True))
    factors = {_leading(dims, rows[name].dim, is_first) for name, dims in operands if name in rows}
    if len(factors) != 1 or None in factors:
        return None
    (factor,) = factors
    if factor is None or rule.factors[factor].kind == "whole":
        return None
    for name, dims in operands:
        if name not in rows and not _with(dims, factor) <= set(equal.get(name, ())):
            return None
    results: dict[str, Rows | None] = {}
    for name, dims in zip(op.outputs, rule.results, strict=True):
        found = _with(dims, factor)
        if not found:
            if rule.factors[factor].kind != "reduce":
                return None
            results[name] = None
            continue
        dim = min(found)
        if len(found) > 1 or _leading(dims, dim, is_first) != factor:
            return None
        if is_first:
            size = math.prod(rule.factors[f].size for f in dims[dim])
            if size not in first:
                return None
            order = first[size]
        results[name] = Rows(order, dim)
    return results


def copies(op: Operator, equal: Mapping[str, Collection[int]]) -> dict[str, frozenset[int]]:
    """Along which dims all slices of the results of an operator are equal, given its operands'."""
    found = {}
    for name, dims in zip(op.outputs, op.rule.results, strict=True):
        same = set()
        for d, dim in enumerate(dims):
            read = [
                (n, _with(of, f))
                for n, of in zip(op.inputs, op.rule.operands, strict=True)
                for f in dim
            ]
            read = [(n, at) for n, at in read if at]
            is_parallel = len(dim) == 1 and op.rule.factors[dim[0]].kind == "parallel"
            if is_parallel and read and all(at <= set(equal.get(n, ())) for n, at in read):
                same.add(d)
        if same:
            found[name] = frozenset(same)
    return found


def _with(dims: Dims, factor: int) -> set[int]:
    return {d for d, dim in enumerate(dims) if factor in dim}


def _leading(dims: Dims, dim: int, is_first: bool) -> int | None:
    """The factor of a dim; of several the first one, if rows are in the order of the batch."""
    factors = dims[dim]
    return factors[0] if len(factors) == 1 or (factors and is_first) else None
