"""Reads a traced graph into a `FlatProgram` of few kinds of calls.

Calls that do not change values (detach, clone, alias) are left out; calls that fill a tensor become
`full`; views become reshapes, as a shard may have another memory layout. Numbers that Python
computes from tensors (a bias correction from the count of steps) become tensors of type float64 and
shape ().
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from frontends.errors import InternalError, UnsupportedStepError
from frontends.torch.base.calls import Call, Operand, name_of
from frontends.torch.base.compat.marks import ASKED, DRAW, ORIGIN
from frontends.torch.base.flat import FlatProgram, TensorType
from frontends.torch.base.host import Number
from frontends.torch.base.numbers import calls_on_numbers
from frontends.torch.capture.flat_builder import FlatBuilder, Name, kind_of
from frontends.torch.capture.picked import Picked
from frontends.torch.capture.pieces import put_together
from frontends.torch.capture.strided import (
    STRIDED,
    AddedByRows,
    by_strides,
    dense_order,
    inverse,
)
from frontends.torch.capture.writes import AliasedError, Writes, without_write

aten = torch.ops.aten

_SAME = frozenset(
    (
        *("alias", "clone", "contiguous", "detach", "lift", "lift_fresh", "lift_fresh_copy"),
        *("detach_copy", "alias_copy", "resolve_conj", "resolve_neg"),
    )
)
"""Calls whose result has the same values as their first argument."""

_SAME_AS = {
    aten._conj.default: aten._conj_physical.default,
    aten._neg_view.default: aten.neg.default,
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}
"""Operators for which others compute the same: views that are computed when their memory is read,
and splits whose parts autograd lets be written to."""

_FILLS = {
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros", "zero"), 0),
    **dict.fromkeys(("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"), 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), 1),
}
"""Calls that create a tensor, and the number to fill it with; 0 for uninitialized tensors."""

_FILLS_WITH = {"full": 1, "full_like": 1, "new_full": 2, "fill": 1, "scalar_tensor": 0}
"""Calls that fill a tensor with a number that is an argument, and the argument's index."""

_RESHAPES = frozenset(("view", "_unsafe_view", "unsqueeze", "squeeze", "reshape", "_reshape_alias"))

_NOWHERE = frozenset(("device", "pin_memory", "layout", "memory_format"))
"""Keywords about where and how a tensor is stored, which the plan decides."""

_DRAWS_INTO = frozenset(
    f"aten.{name}"
    for name in (
        *("bernoulli.p", "rand_like.default", "randn_like.default", "randint_like.default"),
        *("randint_like.low_dtype", "uniform.default", "normal_functional.default"),
        *("exponential.default", "random.default", "random.from", "random.to"),
    )
)
"""Draws that use only shape, type and strides of their first argument, not its values."""


_CHECKS = frozenset(("aten._linalg_check_errors.default", "aten._assert_async.msg"))
"""Calls that only check their operands: they fail for some values."""


@dataclass(frozen=True, slots=True)
class Read:
    """A program that was read from a graph."""

    flat: FlatProgram
    """The program; its outputs are the results that are values, and then `asked`."""

    results: list[Any]
    """For each result of the graph a value's `Name`, a `Number`, or a constant."""

    draws: dict[str, Any]
    """By the name of a random value, a key that is equal for equal draws."""

    numbers: dict[str, Number]
    """Further inputs of the program, which Python computes, by name."""

    known: FlatProgram
    """A program that computes the tensors whose numbers Python reads before the step runs."""

    asked: tuple[Name, ...]
    """The numbers that the program computes and Python's decisions depend on."""


def read(module: GraphModule, inputs: Sequence[str], numbers: Collection[str] = ()) -> Read:
    """Read the graph of a step.

    Args:
        module: The graph of a `Program`.
        inputs: Names for its arguments.
        numbers: The names among them that are Python's numbers.
    """
    reader = _Reader(module, inputs, numbers)
    for node in module.graph.nodes:
        try:
            reader.add(node)
        except UnsupportedStepError as error:
            origin = node.meta.get(ORIGIN)
            if origin is not None:
                error.args = (f"{error}; it is called {origin}",)
            raise
    return reader.finish()


class _Reader:
    def __init__(
        self, module: GraphModule, inputs: Sequence[str], numbers: Collection[str]
    ) -> None:
        self._module = module
        self._given = frozenset(numbers)
        self._numbers: dict[Number, Name] = {}
        self._inputs = iter(inputs)
        self._names = tuple(inputs)
        self._refs: dict[Node, Any] = {}
        self._build = FlatBuilder()
        self._draws: dict[str, Any] = {}
        self._results: list[Any] = []
        self._known: dict[int, Name] = {}
        self._asked: dict[int, Name] = {}
        self._writes = Writes(self._build)

    def finish(self) -> Read:
        outputs = tuple(r for r in self._results if isinstance(r, Name))
        computed = [name for name in self._numbers.values() if name not in self._names]
        names = (*self._names, *computed)
        asked = tuple(name for _, name in sorted(self._asked.items()))
        known = tuple(name for _, name in sorted(self._known.items()))
        every = (*outputs, *asked)
        flat = FlatProgram(
            names, tuple(self._build.lines), self._build.kinds, self._build.constants, every
        )
        numbers = {str(n): number for number, n in self._numbers.items() if n in computed}
        before = replace(flat, outputs=known).live()
        flat = replace(replace(flat, outputs=(*every, *self._draws)).live(), outputs=every)
        return Read(flat, self._results, self._draws, numbers, before, asked)

    def add(self, node: Node) -> None:
        self._build.marks = node.meta
        self._writes.begin(node)
        if node.op == "placeholder":
            name = Name(next(self._inputs))
            self._build.kinds[name] = kind_of(node.meta["val"])
            self._refs[node] = name
        elif node.op == "get_attr":
            self._refs[node] = self._kept(node)
        elif node.op == "output":
            results = _several(node.args[0])
            self._results = [self._value(r) if isinstance(r, Node) else r for r in results]
        elif node.target is operator.getitem:
            source, index = node.args
            self._refs[node] = self._refs[_node(source)][index]
        elif not isinstance(node.target, torch._ops.OpOverload):
            self._refs[node] = self._number(node)
        elif self._is_given_number(node):
            self._refs[node] = self._base_number(node)
        elif ASKED in node.meta:
            self._refs[node] = self._asked_for(node, *node.meta[ASKED])
        elif not node.target._schema.returns:
            self._check_only(node)
        elif node.target._schema.is_mutable:
            self._refs[node] = self._write(node, node.target)
        elif node.target.namespace != "profiler":
            self._refs[node] = self._call(node, node.target)

    def _check_only(self, node: Node) -> None:
        """Handle a call that returns nothing: a check of values."""
        if node.target._schema.is_mutable:  # type: ignore[union-attr]
            raise AliasedError(node)
        if str(node.target) not in _CHECKS and getattr(node.target, "namespace", "") == "aten":
            raise UnsupportedStepError(
                "operators of a step return their results; "
                f"{node.target} returns nothing, and writes what others read"
            )
        if node.target is aten._linalg_check_errors.default:
            self._build.let_check(self._refs[_node(node.args[0])])

    def _is_given_number(self, node: Node) -> bool:
        if node.target is not aten._local_scalar_dense.default:
            return False
        return self._refs[_node(node.args[0])] in self._given

    def _base_number(self, node: Node) -> Number:
        name = self._refs[_node(node.args[0])]
        number = Number(None, (str(name),), self._build.kinds[name].dtype == torch.int64)
        self._numbers.setdefault(number, name)
        return number

    def _asked_for(self, node: Node, index: int, is_known: bool) -> Name | Number:
        """Return a number of a tensor about which Python has asked something."""
        if not is_known:
            number = self._call(node, aten._local_scalar_dense.default)
            return self._asked.setdefault(index, number)
        self._known.setdefault(index, self._ref(_node(node.args[0])))
        is_int = _number_type(node.meta["val"]) == torch.int64
        return Number(None, (known_name(index),), is_int)

    def _input_of(self, number: Number) -> Name:
        """Return the input of the program that a number of Python is."""
        if number not in self._numbers:
            name = Name(f"number.{len(self._numbers)}")
            self._build.kinds[name] = TensorType(
                (), torch.int64 if number.is_int else torch.float64
            )
            self._numbers[number] = name
        return self._numbers[number]

    def _ref(self, node: Node) -> Any:
        """Return the current value of a node; a number of Python becomes an input."""
        value = self._value(node)
        return self._input_of(value) if isinstance(value, Number) else value

    def _value(self, node: Node) -> Any:
        """Return the current value of a node, after writes to its memory."""
        written = self._writes.value_of(node)
        return self._refs[node] if written is None else written

    def _write(self, node: Node, target: torch._ops.OpOverload) -> Name:
        """Turn a write into a call that returns a new value of the memory."""
        written = _node(node.args[0])
        pure = without_write(node, written, target)
        missing = [a for a in target._schema.arguments[len(node.args) :] if not a.kwarg_only]
        node.args = (*node.args, *(a.default_value for a in missing if a.name not in node.kwargs))
        result = self._call(node, pure)
        if not isinstance(result, Name):
            raise InternalError(
                f"an operator that writes returns one tensor; got {result} of {target}"
            )
        self._writes.record(written, result)
        return result

    def _kept(self, node: Node) -> Name:
        """Return a constant for an attribute of the graph's module."""
        kept = getattr(self._module, str(node.target))
        if isinstance(kept, torch.Generator):
            raise UnsupportedStepError(
                "random numbers of a step are drawn by torch's default generator, whose state goes "
                "on from step to step; this one draws by a torch.Generator of its own: leave "
                "`generator=` out, or draw before the step and put that into the batch"
            )
        return self._build.constant(kept)

    def _call(self, node: Node, target: torch._ops.OpOverload) -> Any:
        kind = name_of(target)
        value = node.meta["val"]
        source = self._source(node)
        if kind == "cat":
            return self._joined(node, target)
        if kind in _FILLS:
            return self._build.filled(value, _FILLS[kind])
        if kind in _FILLS_WITH and not isinstance(node.args[_FILLS_WITH[kind]], Node):
            return self._build.filled(value, node.args[_FILLS_WITH[kind]])
        if kind in ("copy", "fill"):
            written = self._ref(_node(node.args[1]))
            return self._build.expanded(
                self._build.converted(written, value.dtype), tuple(value.shape)
            )
        if kind == "_to_copy" and not isinstance(node.args[0], Node):
            return self._build.filled(value, node.args[0])
        if source is None:
            return self._general(node, target)
        if kind in _SAME:
            return source
        if target in _SAME_AS:
            return self._general(node, _SAME_AS[target])
        if kind in ("index", "index_put") and (picked := Picked.of(node)) is not None:
            places = self._ref(picked.places)
            if kind == "index":
                return picked.read(self._build, source, places)
            values, *adds = node.args[2:]
            written = self._build.converted(self._ref(_node(values)), value.dtype)
            is_sum = bool(adds and adds[0])
            return picked.write(self._build, source, places, written, adds=is_sum)
        if kind == "index_put" and (mask := _mask_to_fill(node)) is not None:
            return self._filled(node, source, mask)
        if kind == "index_add" and (by_rows := AddedByRows.of(node)) is not None:
            return by_rows.add(self._build, source, self._ref(_node(node.args[3])))
        if kind in STRIDED:
            return self._strided(node, kind)
        if kind == "_local_scalar_dense":
            return self._build.converted(self._build.reshaped(source, ()), _number_type(value))
        if kind in ("_to_copy", "scalar_tensor"):
            return self._build.converted(source, value.dtype)
        if kind in _RESHAPES and target._overloadname != "dtype":
            return self._build.reshaped(source, tuple(value.shape))
        if kind == "expand":
            return self._build.expanded(source, tuple(value.shape))
        if kind == "slice" and tuple(value.shape) == self._build.kinds[source].shape:
            return source
        return self._general(node, target)

    def _filled(self, node: Node, source: Name, mask: Node) -> Name:
        """Fill the elements that a mask selects with one number: whatever is done to each alone."""
        kind = self._build.kinds[source]
        value = self._build.converted(self._ref(_node(node.args[2])), kind.dtype)
        value = self._build.reshaped(value, ())
        where = self._build.converted(self._ref(mask), torch.bool)
        shape = self._build.kinds[where].shape
        where = self._build.reshaped(where, (*shape, *[1] * (len(kind.shape) - len(shape))))
        call = Call(aten.where.self, (Operand(0), Operand(1), Operand(2)), {})
        return self._build.emit(call, (where, value, source), kind)

    def _source(self, node: Node) -> Name | None:
        """Return the first argument, if it is a tensor."""
        first = node.args[0] if node.args else None
        ref = self._ref(first) if isinstance(first, Node) else None
        return ref if isinstance(ref, Name) else None

    def _joined(self, node: Node, target: torch._ops.OpOverload) -> Any:
        """Concatenate without empty tensors of another rank, which caches begin with.

        Pieces that are put together again are what they were cut from.
        """
        parts, *rest = node.args
        shape = node.meta["val"].shape
        kept = [part for part in _several(parts) if _node(part).meta["val"].dim() == len(shape)]
        if len(kept) == 1:
            return self._ref(_node(kept[0]))
        whole = self._put_together([self._ref(_node(part)) for part in kept], node, rest)
        return self._general(node, target, [kept, *rest]) if whole is None else whole

    def _put_together(self, parts: Sequence[Any], node: Node, rest: Sequence[Any]) -> Name | None:
        """Return what all parts of a concatenation were cut from; None if that is nothing."""
        shape = tuple(node.meta["val"].shape)
        (dim,) = rest or (0,)
        if not all(isinstance(part, Name) for part in parts):
            return None
        if len({self._build.kinds[part].dtype for part in parts}) != 1:
            return None
        return put_together(self._build, parts, dim % len(shape), shape)

    def _general(
        self, node: Node, target: torch._ops.OpOverload, arguments: Sequence[Any] | None = None
    ) -> Any:
        inputs: list[Name] = []

        def argument(value: Any) -> Any:
            if isinstance(value, Node):
                inputs.append(self._ref(value))
                return Operand(len(inputs) - 1)
            if isinstance(value, Name):
                inputs.append(value)
                return Operand(len(inputs) - 1)
            if isinstance(value, list | tuple):
                return [argument(item) for item in value]
            return value

        arguments = node.args if arguments is None else arguments
        draw = node.meta.get(DRAW)
        if draw is not None and str(target) in _DRAWS_INTO:
            arguments = (self._build.blank(_node(node.args[0]).meta["val"]), *node.args[1:])
        if draw is not None and target is aten.bernoulli.p:
            target = aten.bernoulli_.float  # bernoulli.p would draw into a contiguous tensor
        arguments = self._of_one_type(arguments, node.meta["val"], target)
        call = Call(
            target,
            tuple(map(argument, arguments)),
            {k: argument(v) for k, v in node.kwargs.items() if k not in _NOWHERE},
        )
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            result: Any = self._build.emit(call, inputs, kind_of(value))
        else:
            result = self._build.emit_several(call, inputs, value)
        if draw is not None:
            names = [result] if isinstance(result, Name) else [name for name in result if name]
            for k, name in enumerate(names):
                self._draws[name] = (draw, call.key, k)
        return result

    def _of_one_type(
        self, arguments: Sequence[Any], value: Any, target: torch._ops.OpOverload
    ) -> Sequence[Any]:
        """Convert numbers among floating-point tensors of shape () to the tensors' type.

        Python's numbers would take that type, too.
        """
        if not isinstance(value, torch.Tensor) or value.dim() or not value.is_floating_point():
            return arguments
        return [
            self._build.converted(self._ref(argument), value.dtype)
            if isinstance(argument, Node)
            and not isinstance(argument.meta["val"], torch.Tensor | list | tuple)
            and isinstance(declared.type, torch._C.TensorType)
            else argument
            for argument, declared in zip(arguments, target._schema.arguments, strict=False)
        ]

    def _strided(self, node: Node, kind: str) -> Name:
        """Rewrite a read or write by strides for an operand with elements in eager's order."""
        tensors = [self._ref(_node(a)) for a in node.args if isinstance(a, Node)]
        others = [*node.args[len(tensors) :], *node.kwargs.values()]
        by = by_strides(kind, _node(node.args[0]).meta["val"], others)
        source = self._build.permuted(tensors[0], by.order)
        if kind == "as_strided_scatter":
            part = self._build.permuted(tensors[1], by.view_order)
            result = self._build.emit(by.call, (source, part), self._build.kinds[source])
            return self._build.permuted(result, inverse(by.order))
        size, stride, offset = by.call.arguments[1:]
        dense = dense_order(size, stride)
        n_elements = math.prod(self._build.kinds[source].shape)
        if dense is not None and offset == 0 and math.prod(size) == n_elements:
            whole = self._build.reshaped(source, tuple(size[k] for k in dense))
            view = self._build.permuted(whole, inverse(dense))
        else:
            kind_of_view = TensorType(tuple(size), self._build.kinds[source].dtype)
            view = self._build.emit(by.call, (source,), kind_of_view)
        return self._build.permuted(view, inverse(by.view_order))

    def _number(self, node: Node) -> Name | Number:
        """Return a number that Python computes from numbers.

        If one of these is a value of the program, it is computed by calls on tensors of shape ().
        """
        kind = TensorType((), _number_type(node.meta["val"]))
        known = [self._value(a) if isinstance(a, Node) else a for a in node.args]
        if not any(isinstance(a, Name) for a in known) and not node.kwargs:
            function: Any = node.target
            return Number(function, tuple(known), kind.dtype == torch.int64, self._build.origin)
        arguments = [self._ref(a) if isinstance(a, Node) else a for a in node.args]
        if node.target in (torch.sym_max, torch.sym_min):
            return self._build.chosen(node.target is torch.sym_max, arguments, kind)
        read = [self._build.converted(a, kind.dtype) for a in arguments if isinstance(a, Name)]
        result = read[0]
        is_read = [isinstance(a, Name) for a in arguments]
        for call in calls_on_numbers(node.target, arguments, is_read):
            result = self._build.emit(call, read, kind)
            read = [result]
        return result


def known_name(index: int) -> str:
    """Return the name of a number of a tensor that is known before the step runs."""
    return f"known.{index}"


def _node(argument: Any) -> Node:
    if not isinstance(argument, Node):
        raise InternalError(f"an argument that is a value is a node; got {argument!r}")
    return argument


def _several(argument: Any) -> Sequence[Any]:
    if not isinstance(argument, list | tuple):
        raise InternalError(f"an argument that is several values is a list; got {argument!r}")
    return argument


def _number_type(value: Any) -> torch.dtype:
    """Return the type of the tensor that represents a number of Python."""
    if isinstance(value, torch.SymInt | int):
        return torch.int64
    return torch.float64


def _mask_to_fill(node: Node) -> Node | None:
    """Return the mask, if a call writes one number wherever it is true; it indexes leading dims."""
    _, indices, values, *adds = node.args
    if any(adds) or not isinstance(indices, list | tuple) or not isinstance(values, Node):
        return None
    mask, *others = indices
    if not isinstance(mask, Node) or any(index is not None for index in others):
        return None
    is_mask = mask.meta["val"].dtype in (torch.bool, torch.uint8)
    return mask if is_mask and values.meta["val"].numel() == 1 else None
