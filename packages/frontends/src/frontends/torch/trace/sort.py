"""Lets each example sort its own rows, as `frontends.step.sorted_rows` explains."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch

from frontends.step.examples import Place, places_of_examples
from frontends.step.sorted_rows import (
    EXACT,
    WIDEST_TABLE,
    Counts,
    RowNumbers,
    RowOrder,
    Rows,
    alike,
    copies,
    in_order,
    with_twins,
)
from frontends.step.step import APPLY
from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.flat import FlatProgram, Line, Shape, TensorType, dtype_name
from frontends.torch.trace.keys import Keys, counts
from frontends.torch.trace.phased_graph import PhasedGraph

aten, ours = torch.ops.aten, torch.ops.meshwright


def sorted_by_example(flat: FlatProgram, whole: PhasedGraph, examples: int) -> FlatProgram:
    """Return the program in which each example sorts its own rows, where that is the same.

    It is `flat` itself if there are no such rows.

    Args:
        flat: The program.
        whole: Its graph, with rules for microbatches.
        examples: The number of examples; leaves of the batch have multiples of it.
    """
    sorts = {line.name for line in flat.lines if line.call.name == "sort"}
    return with_twins(flat, sorts, partial(_Sorter, flat, whole, examples))


class _Sorter:
    """Adds the twins of values with sorted rows to a program.

    Args:
        flat: The program.
        whole: Its graph.
        examples: The number of examples.
        left_out: Lines that sort, which are to stay as they are.
    """

    def __init__(
        self, flat: FlatProgram, whole: PhasedGraph, examples: int, left_out: Collection[str]
    ) -> None:
        self._flat, self._whole, self._examples, self._left_out = flat, whole, examples, left_out
        self._keys = Keys(flat)
        self._places = places_of_examples(whole.graph, lambda n: n % examples == 0)
        self._operators = {op.name: op for op in whole.graph.operators}
        self._made_by = {name: line for line in flat.lines for name in line.outputs}
        self._kinds = dict(flat.kinds)
        self._lines: list[Line] = []
        self._names = {line.name for line in flat.lines}
        self._found: dict[str, Rows | Counts] = {}
        """By value that has a twin which is not equal: what it holds."""

        self._twins: dict[str, str] = {}
        self._same: dict[str, str] = {}
        """By value that has an equal twin: the twin."""

        self._equal: dict[str, Collection[int]] = dict(whole.equal)
        """For values that are filled with copies: the dims along which all slices are equal."""

        self._begins: dict[str, str] = {}
        """By counts of rows: where the groups begin."""

        self._source: dict[str, str] = {}
        """By value that is another one in another shape: the other one."""

        self._shaped: defaultdict[tuple[str, int], dict[Shape, str]] = defaultdict(dict)
        """By source and phase: its shapes, and the values that have them."""

        sizes = {n for kind in flat.kinds.values() for n in kind.shape}
        self._first = {n: RowOrder(n) for n in sizes if n and n % examples == 0}
        """By number of rows: the order of the batch."""

        self._makers: dict[str, Callable[[Line], bool]] = {
            "sort": self._sort,
            "arange": self._count,
            **dict.fromkeys(("index", "index_select", "gather"), self._take),
            **dict.fromkeys(("index_put", "index_add", "scatter", "scatter_add"), self._put),
            "histc": self._histogram,
            "sum": self._sum,
            "cumsum": self._accumulate,
            "_to_copy": self._convert,
            "grouped_mm": self._multiply,
        }

    def program(self) -> FlatProgram:
        """Return the program, in which twins are read wherever they are equal."""
        for line in sorted(self._flat.lines, key=lambda line: line.phase):
            inputs = tuple(self._same.get(name, name) for name in line.inputs)
            self._lines.append(replace(line, inputs=inputs))
            if line.phase != APPLY:
                make = self._makers.get(line.call.name)
                if (make is None or not make(line)) and not self._do_alike(line):
                    self._equal |= copies(self._operators[line.name], self._equal)
        if not self._same:
            return self._flat
        outputs = tuple(self._same.get(name, name) for name in self._flat.outputs)
        program = replace(self._flat, lines=tuple(self._lines), kinds=self._kinds, outputs=outputs)
        return program.live()

    def still_in(self, program: FlatProgram) -> set[str]:
        """Return the lines that sort rows which a program still needs beside their twins."""
        if not self._same:
            return set()
        made = {name for line in program.lines for name in line.outputs}
        return {
            found.order.sort
            for name, found in self._found.items()
            if isinstance(found, Rows) and found.order.sort is not None and name in made
            if self._kinds[name].dtype.is_floating_point
        }

    # What a line becomes. Each of these returns whether it has made the line's twin.

    def _sort(self, line: Line) -> bool:
        (keys,), shape = line.inputs, self._flat.kinds[line.inputs[0]].shape
        found, ascends = self._found.get(keys), not line.call.argument("descending")
        if line.name in self._left_out or len(shape) != 1 or shape[0] not in self._first:
            return False
        if isinstance(found, RowNumbers):  # the inverse of a permutation
            if not (found.is_permutation and ascends):
                return False
            after, before = found.numbered, found.order
            values: Rows = RowNumbers.of(after, after)
        elif isinstance(found, Rows) or self._places.get(keys) == Place(0, 1):
            is_known = ascends and self._keys.are_natural(keys)
            after = RowOrder(shape[0], line.name, self._keys.root(keys) if is_known else None)
            before = found.order if isinstance(found, Rows) else self._first[shape[0]]
            values = Rows(after, 0)
        else:
            return False
        apart = self._apart(self._twin(keys), line)
        kinds = [self._kind_apart(name) for name in line.outputs]
        made = self._emit(line, "each", line.call.replace(dim=1), (apart,), kinds)
        self._let(line, 0, self._together(made[0], line), values)
        self._let(line, 1, self._together(made[1], line), RowNumbers.of(after, before))
        return True

    def _count(self, line: Line) -> bool:
        (n,), kind = self._flat.kinds[line.outputs[0]].shape, self._flat.kinds[line.outputs[0]]
        if n not in self._first or not counts(line):
            return False
        each = (self._examples, n // self._examples)
        call = line.call.replace(end=each[1])
        (own,) = self._emit(line, "own", call, (), [replace(kind, shape=each[1:])])
        call = Call(aten.expand.default, (Operand(0), list(each)), {})
        (own,) = self._emit(line, "each", call, (own,), [replace(kind, shape=each)])
        self._let(line, 0, self._together(own, line), RowNumbers.of(self._first[n], self._first[n]))
        return True

    def _take(self, line: Line) -> bool:
        pointers = self._pointers(line)
        if pointers is None:
            return False
        places, numbers = pointers
        x = line.inputs[0]
        rows, *rest = self._flat.kinds[x].shape
        source = self._found.get(x)
        before = source.order if isinstance(source, Rows) else None
        if (
            isinstance(source, Counts)
            or (isinstance(source, Rows) and source.dim)
            or (source is None and numbers.order.sort is None)  # nothing is sorted
            or (isinstance(source, RowNumbers) and not source.is_of_batch)
            or not numbers.is_of(before)
            or not numbers.points_into(rows, self._examples)
            or self._flat.kinds[line.outputs[0]].shape != (numbers.order.rows, *rest)
        ):
            return False
        call = Call(ours.take_rows.default, (Operand(0), Operand(1)), {})
        operands = (self._apart(self._twin(x), line), self._apart(places, line))
        (taken,) = self._emit(line, "each", call, operands, [self._kind_apart(line.outputs[0])])
        found: Rows | None = Rows(numbers.order, 0) if numbers.order.sort else None
        if isinstance(source, RowNumbers):
            found = RowNumbers(numbers.order, 0, numbers.numbered, source.table[numbers.table])
        elif numbers.is_permutation:
            self._keys.let_permuted(line.outputs[0], x)
        self._let(line, 0, self._together(taken, line), found)
        return True

    def _put(self, line: Line) -> bool:
        if len(line.inputs) == 3 and self._count_keys(line):
            return True
        pointers = self._pointers(line)
        if pointers is None or len(line.inputs) != 3:
            return False
        places, numbers = pointers
        target, _, values = line.inputs
        rows, *rest = self._flat.kinds[target].shape
        given, adds = in_order(self._found.get(values), numbers.order), self._adds(line)
        after = numbers.numbered if numbers.numbered.sort else self._first.get(rows)
        is_new = target in self._whole.zeros if adds else numbers.is_permutation
        if (
            given is None
            or numbers.is_of_batch  # nothing is sorted
            or given.dim
            or after is None
            or target in self._found
            or not (is_new or (adds and after.sort is None))
            or (isinstance(given, RowNumbers) and (adds or not given.is_permutation))
            or not numbers.points_into(rows, self._examples)
            or self._flat.kinds[values].shape != (numbers.order.rows, *rest)
        ):
            return False
        own = rows // self._examples
        call = Call(ours.add_rows.default, (Operand(0), Operand(1), own), {})
        operands = (self._apart(places, line), self._apart(self._twin(values), line))
        kind = self._kind_apart(line.outputs[0])
        (put,) = self._emit(line, "each", call, operands, [kind])
        if not is_new:
            call = Call(aten.add.Tensor, (Operand(0), Operand(1)), {})
            operands = (self._apart(self._twin(target), line), put)
            (put,) = self._emit(line, "sum", call, operands, [kind])
        found: Rows | None = Rows(after, 0) if after.sort else None
        if isinstance(given, RowNumbers):
            found = RowNumbers.of(after, given.numbered)
        self._let(line, 0, self._together(put, line), found)
        return True

    def _count_keys(self, line: Line) -> bool:
        """Count rows by key, where ones are added to zeros at the keys."""
        target, keys, ones = line.inputs
        kinds = [self._flat.kinds[name] for name in line.inputs]
        (groups, *rest), shape = kinds[0].shape, kinds[1].shape
        if (
            rest
            or not self._adds(line)
            or target not in self._whole.zeros
            or not self._keys.are_ones(ones)
            or not self._keys.are_natural(keys)
            or kinds[2].shape != shape
            or len(shape) != 1
            or shape[0] not in self._first
            or isinstance(self._found.get(keys), Counts | RowNumbers)
        ):
            return False
        each = (self._examples, shape[0] // self._examples)
        ones_kind = replace(kinds[2], shape=each)
        call = Call(aten.full.default, (list(each), 1), {"dtype": ones_kind.dtype})
        (ones,) = self._emit(line, "ones", call, (), [ones_kind])
        call = Call(ours.add_rows.default, (Operand(0), Operand(1), groups), {})
        kind = replace(kinds[0], shape=(self._examples, groups))
        operands = (self._apart(self._twin(keys), line), ones)
        (counted,) = self._emit(line, "each", call, operands, [kind])
        self._let(line, 0, counted, Counts(self._keys.root(keys)))
        return True

    def _histogram(self, line: Line) -> bool:
        (x,), call = line.inputs, line.call
        found, kind = self._found.get(x), self._flat.kinds[x]
        low, high, bins = (call.argument(name) for name in ("min", "max", "bins"))
        if (
            isinstance(found, Counts | RowNumbers)
            or len(kind.shape) != 1
            or kind.shape[0] not in self._first
            or not low <= 0 < high  # from 0 to 0 stands for the range of the values
            or not self._keys.are_natural(x)
        ):
            return False
        call = Call(ours.count_rows.default, (Operand(0), bins, low, high), {})
        apart, kind = self._apart(self._twin(x), line), replace(kind, shape=(self._examples, bins))
        (counted,) = self._emit(line, "each", call, (apart,), [kind])
        self._let(line, 0, counted, Counts(self._keys.root(x)))
        return True

    def _sum(self, line: Line) -> bool:
        """Count rows by key, where one-hot vectors of the keys are added."""
        (x,), shape = line.inputs, self._flat.kinds[line.inputs[0]].shape
        keys = self._keys.of_one_hot(x)
        over = {dim % len(shape) for dim in line.call.argument("dim") or ()} if shape else set()
        found = self._found.get(x)
        if (
            keys is None
            or over != set(range(len(shape) - 1))
            or line.call.argument("keepdim")
            or shape[0] not in self._first
            or not (found is None or (type(found) is Rows and not found.dim))
        ):
            return False
        kind = self._flat.kinds[line.outputs[0]]
        kind = replace(kind, shape=(self._examples, *kind.shape))
        call = line.call.replace(dim=list(range(1, len(shape))))
        (counted,) = self._emit(line, "each", call, (self._apart(self._twin(x), line),), [kind])
        self._let(line, 0, counted, Counts(keys))
        return True

    def _accumulate(self, line: Line) -> bool:
        found = self._found.get(line.inputs[0])
        if not isinstance(found, Counts) or found.is_cumulative:
            return False
        return self._do_to_counts(line, line.call.replace(dim=1), Counts(found.keys, True))

    def _convert(self, line: Line) -> bool:
        found = self._found.get(line.inputs[0])
        return isinstance(found, Counts) and self._do_to_counts(line, line.call, found)

    def _do_to_counts(self, line: Line, call: Call, found: Counts) -> bool:
        kind = self._flat.kinds[line.outputs[0]]
        kind = replace(kind, shape=(self._examples, *kind.shape))
        (made,) = self._emit(line, "each", call, (self._twin(line.inputs[0]),), [kind])
        self._let(line, 0, made, found)
        return True

    def _multiply(self, line: Line) -> bool:
        a, b, ends = line.inputs
        left, right, groups = (self._found.get(name) for name in line.inputs)
        if (
            type(left) is not Rows
            or not (right is None or type(right) is Rows)
            or not isinstance(groups, Counts)
            or not groups.is_cumulative
            or groups.keys != left.order.keys
        ):
            return False
        ranks = [len(self._flat.kinds[name].shape) for name in (a, b)]
        spans = self._begins_of(ends, line), self._twin(ends)
        arguments = tuple(map(Operand, range(4)))
        if ranks == [2, 3] and right is None and left.dim == 0:
            call = Call(ours.multiply_rows.default, arguments, {})
            operands = (self._apart(self._twin(a), line), self._twin(b), *spans)
            (made,) = self._emit(line, "each", call, operands, [self._kind_apart(line.outputs[0])])
            self._let(line, 0, self._together(made, line), Rows(left.order, 0))
            return True
        if ranks != [2, 2] or right is None or right.order is not left.order:
            return False
        if (left.dim, right.dim) != (1, 0):
            return False
        kind = self._kinds[self._twin(a)]
        call, kind = Call(aten.t.default, (Operand(0),), {}), replace(kind, shape=kind.shape[::-1])
        (rows,) = self._emit(line, "rows", call, (self._twin(a),), [kind])
        call = Call(ours.multiply_groups.default, arguments, {})
        operands = (self._apart(rows, line), self._apart(self._twin(b), line), *spans)
        (made,) = self._emit(line, "each", call, operands, [self._flat.kinds[line.outputs[0]]])
        self._let(line, 0, made, None)
        return True

    def _begins_of(self, ends: str, line: Line) -> str:
        """Return where groups begin, given where they end, in each example."""
        if ends not in self._begins:
            twin = self._twin(ends)
            kind = self._kinds[twin]
            shape = (kind.shape[0], kind.shape[1] - 1)
            cut = Call(aten.slice.Tensor, (Operand(0), 1, 0, shape[1]), {})
            (short,) = self._emit(line, "short", cut, (twin,), [replace(kind, shape=shape)])
            pad = Call(aten.constant_pad_nd.default, (Operand(0), [1, 0]), {})
            (self._begins[ends],) = self._emit(line, "begins", pad, (short,), [kind])
        return self._begins[ends]

    def _do_alike(self, line: Line) -> bool:
        """Run a line on twins if it does the same to each row."""
        found = alike(
            self._operators[line.name],
            self._found,
            self._equal,
            self._first,
            self._examples,
            partial(self._tables, line),
        )
        if found is None:
            return False
        held, results = found
        kinds = [self._flat.kinds[name] for name in line.outputs]
        inputs = [self._twin(n) if n in held else self._same.get(n, n) for n in line.inputs]
        made = self._emit(line, "sorted", line.call, inputs, kinds)
        for place, name in enumerate(line.outputs):
            self._let(line, place, made[place], results[name])
        return True

    def _tables(self, line: Line, numbers: Mapping[str, RowNumbers]) -> list[Any] | None:
        """Return the results of a line if its operands are as in the tables of numbers."""
        most = WIDEST_TABLE * max(value.order.rows for value in numbers.values())
        results = [math.prod(self._flat.kinds[name].shape) for name in line.outputs]
        if line.call.name != "expand" and max(results) > most:  # that makes no copies
            return None
        operands: list[torch.Tensor] = []
        for name in line.inputs:
            made_by = self._made_by.get(name)
            if name in numbers:
                table = torch.from_numpy(numbers[name].table)
                operands.append(table.to(self._kinds[name].dtype))
            elif made_by is not None and made_by.call.name == "full" and not made_by.inputs:
                operands += made_by.call([])
            else:
                return None
        return [result.numpy() for result in line.call(operands)]

    # What a value is.

    def _pointers(self, line: Line) -> tuple[str, RowNumbers] | None:
        """Return the twin of the rows that a line reads or writes, and what that holds."""
        call, places = line.call, line.inputs[1] if len(line.inputs) > 1 else ""
        found = self._found.get(places)
        if not isinstance(found, RowNumbers) or found.dim:
            return None
        at = call.argument("indices") if call.has("indices") else [call.argument("index")]
        if list(at) != [Operand(1)] or (call.has("dim") and call.argument("dim")):
            return None
        _, *rest = self._flat.kinds[places].shape
        has_places_of_elements = call.name in ("gather", "scatter", "scatter_add")
        expected = self._flat.kinds[line.outputs[0]].shape[1:] if has_places_of_elements else ()
        if call.has("reduce") or tuple(rest) != expected or not found.is_vector:
            return None
        twin = self._twin(places)
        return self._first_column(twin, line) if rest else twin, found.vector

    def _first_column(self, name: str, line: Line) -> str:
        kind = self._kinds[name]
        shape = (kind.shape[0], math.prod(kind.shape[1:]))
        call = Call(aten.slice.Tensor, (Operand(0), 1, 0, 1), {})
        matrix, kind = self._reshaped(name, shape, line), replace(kind, shape=(shape[0], 1))
        (column,) = self._emit(line, "column", call, (matrix,), [kind])
        return self._reshaped(column, shape[:1], line)

    def _adds(self, line: Line) -> bool:
        """Return whether a line that writes at indices adds to what was there."""
        call = line.call
        if call.name == "index_add":
            return bool(call.argument("alpha") == 1)
        return call.name == "scatter_add" or (
            call.name == "index_put" and bool(call.argument("accumulate"))
        )

    # How lines are made.

    def _twin(self, name: str) -> str:
        return self._twins.get(name) or self._same.get(name, name)

    def _let(self, line: Line, place: int, twin: str, found: Rows | Counts | None) -> None:
        name = line.outputs[place]
        if isinstance(found, Counts) and dtype_name(self._kinds[name].dtype) not in EXACT:
            return  # numbers of rows are rounded
        if found is None:
            self._same[name] = twin
        else:
            self._found[name], self._twins[name] = found, twin

    def _emit(
        self, line: Line, what: str, call: Call, inputs: Sequence[str], kinds: Sequence[TensorType]
    ) -> list[str]:
        """Append a line beside one of the program; return the names of its results."""
        names = (f"{what}.{line.name}.{k}" for k in count(len(self._lines)))
        name = next(name for name in names if name not in self._names)
        outputs = [f"{name}:{k}" if len(kinds) > 1 else name for k in range(len(kinds))]
        self._kinds.update(zip(outputs, kinds, strict=True))
        self._lines.append(Line(name, call, tuple(inputs), tuple(outputs), line.phase, line.origin))
        return outputs

    def _apart(self, name: str, line: Line) -> str:
        """Return a value with a leading dim of examples."""
        return self._reshaped(name, self._shape_apart(self._kinds[name].shape), line)

    def _shape_apart(self, shape: Shape) -> Shape:
        return (self._examples, shape[0] // self._examples, *shape[1:])

    def _kind_apart(self, name: str) -> TensorType:
        kind = self._flat.kinds[name]
        return replace(kind, shape=self._shape_apart(kind.shape))

    def _together(self, name: str, line: Line) -> str:
        """Return a value with the rows of all examples in one dim."""
        shape = self._kinds[name].shape
        return self._reshaped(name, (math.prod(shape[:2]), *shape[2:]), line)

    def _reshaped(self, name: str, shape: Shape, line: Line) -> str:
        """Return a value in another shape, which is made once in each phase."""
        if self._kinds[name].shape == shape:
            return name
        source = self._source.get(name, name)
        known = self._shaped[source, line.phase]
        if shape not in known:
            kind = self._kinds[name]
            call = Call(aten.reshape.default, (Operand(0), list(shape)), {})
            (result,) = self._emit(line, "shaped", call, (name,), [replace(kind, shape=shape)])
            known |= {kind.shape: name, shape: result}
            self._source[result] = source
        return known[shape]
