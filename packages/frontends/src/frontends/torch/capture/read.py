"""From the graph that tracing makes to a `Flat` of few kinds of calls.

What does nothing to values (detach, clone, alias) is left out; what fills a tensor is a `full`;
views are reshapes, as a shard of a value may lie otherwise in memory. Numbers that Python computes
from tensors (a bias correction, from the count of steps) are tensors of type float64 and shape ().
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from frontends.errors import InternalError, UnsupportedStepError
from frontends.step.step import APPLY, BACKWARD, FORWARD
from frontends.torch.base.calls import Call, Operand, name_of
from frontends.torch.base.compat.marks import AFTER, ASKED, BEFORE, DRAW, DURING, ORIGIN, PHASE
from frontends.torch.base.compat.values import place_of
from frontends.torch.base.flat import Flat, Kind, Line, full
from frontends.torch.base.host import Number
from frontends.torch.base.numbers import calls_on_numbers
from frontends.torch.base.origins import Origin
from frontends.torch.capture.strided import STRIDED, by_strides

aten = torch.ops.aten

_SAME = frozenset(
    (
        *("alias", "clone", "contiguous", "detach", "lift", "lift_fresh", "lift_fresh_copy"),
        *("detach_copy", "alias_copy", "resolve_conj", "resolve_neg"),
    )
)
"""Calls whose result has the numbers of their first argument."""

_LAZY = {
    aten._conj.default: aten._conj_physical.default,
    aten._neg_view.default: aten.neg.default,
}
"""Views that say how their memory is to be read, and what computes the same."""

_FILLS = {
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros", "zero"), 0),
    **dict.fromkeys(("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"), 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), 1),
}
"""Calls that fill a new tensor, and with what; one that fills it with nothing is filled with 0."""

_FILLS_WITH = {"full": 1, "full_like": 1, "new_full": 2, "fill": 1, "scalar_tensor": 0}
"""The same with a number, and its place among the arguments."""

_RESHAPES = frozenset(("view", "_unsafe_view", "unsqueeze", "squeeze", "reshape", "_reshape_alias"))

_NOWHERE = frozenset(("device", "pin_memory", "layout", "memory_format"))
"""Keywords about where a tensor lies, which is not the step's to say."""

_DRAWS_INTO = frozenset(
    f"aten.{name}"
    for name in (
        *("bernoulli.p", "rand_like.default", "randn_like.default", "randint_like.default"),
        *("randint_like.low_dtype", "uniform.default", "normal_functional.default"),
        *("exponential.default", "random.default", "random.from", "random.to"),
    )
)
"""Draws that read nothing of their first argument but where its elements lie."""


class Name(str):
    """The name of a value, among results that may be strings of the user's."""

    __slots__ = ()


class AliasedError(UnsupportedStepError):
    """A tensor is written of which a part is read later, or the other way round."""

    def __init__(self, node: Node) -> None:
        super().__init__(
            "what a step writes in place must be tensors that share their memory with no others; "
            f"{node.target} writes, or reads, part of one that is written: use the operator that "
            "makes a new tensor"
        )


_CHECKS = frozenset(("aten._linalg_check_errors.default", "aten._assert_async.msg"))
"""Calls that fail for some numbers and do nothing else."""

_WRITES = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.normal_.default: aten.normal_functional.default,
}
"""The operator without a write, where its name says it otherwise."""


@dataclass(frozen=True, slots=True)
class Read:
    """What was read of a graph."""

    flat: Flat
    """The program; its outputs are the values among the results."""

    results: list[Any]
    """Each the name of a value as a `Name`, a `Number`, or a constant."""

    draws: dict[str, Any]
    """For each random value what tells its draw from others."""

    numbers: dict[str, Number]
    """Further inputs of the program, which Python computes."""

    known: Flat
    """Makes, before the program runs, the tensors whose numbers Python asks for."""

    asked: tuple[Name, ...]
    """Of numbers that the program computes, those that Python asks for."""


def read(module: GraphModule, inputs: Sequence[str], numbers: Collection[str] = ()) -> Read:
    """Read the graph of a step.

    Args:
        module: From `Program`.
        inputs: Names for its arguments.
        numbers: Those of them that are numbers of Python's.
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
        self._lines: list[Line] = []
        self._kinds: dict[str, Kind] = {}
        self._constants: dict[str, torch.Tensor] = {}
        self._draws: dict[str, Any] = {}
        self._results: list[Any] = []
        self._known: dict[int, Name] = {}
        self._asked: dict[int, Name] = {}
        self._of_backward: set[str] = set()
        self._marks: dict[str, Any] = {}
        self._seen: dict[Node, int] = {}
        self._written: dict[int, tuple[int, Any, Name]] = {}
        """By memory: when it was written last, which part of it, and what it holds."""

    def finish(self) -> Read:
        outputs = tuple(r for r in self._results if isinstance(r, Name))
        made = [name for name in self._numbers.values() if name not in self._names]
        names = (*self._names, *made)
        asked = tuple(name for _, name in sorted(self._asked.items()))
        known = tuple(name for _, name in sorted(self._known.items()))
        every = (*outputs, *asked)
        flat = Flat(names, tuple(self._lines), self._kinds, self._constants, every)
        numbers = {str(n): number for number, n in self._numbers.items() if n in made}
        before = replace(flat, outputs=known).live()
        flat = replace(replace(flat, outputs=(*every, *self._draws)).live(), outputs=every)
        return Read(flat, self._results, self._draws, numbers, before, asked)

    def add(self, node: Node) -> None:
        self._marks = node.meta
        self._seen[node] = len(self._seen)
        if node.op == "placeholder":
            name = Name(next(self._inputs))
            self._kinds[name] = _kind_of(node.meta["val"])
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
        """A call that returns nothing: torch looks whether numbers are as they should be."""
        if node.target._schema.is_mutable:  # type: ignore[union-attr]
            raise AliasedError(node)
        if str(node.target) not in _CHECKS and getattr(node.target, "namespace", "") == "aten":
            raise UnsupportedStepError(
                "a step is made of operators that return what they make; "
                f"{node.target} returns nothing, and writes what others read"
            )
        if node.target is aten._linalg_check_errors.default:
            self._let_check(self._refs[_node(node.args[0])])

    def _let_check(self, found: Name) -> None:
        """Let the operator that returns what is to be checked look at it itself."""
        place = next(i for i, line in enumerate(self._lines) if found in line.outputs)
        line = self._lines[place]
        if line.call.has("check_errors"):
            self._lines[place] = replace(line, call=line.call.replace(check_errors=True))

    def _is_given_number(self, node: Node) -> bool:
        if node.target is not aten._local_scalar_dense.default:
            return False
        return self._refs[_node(node.args[0])] in self._given

    def _base_number(self, node: Node) -> Number:
        name = self._refs[_node(node.args[0])]
        number = Number(None, (str(name),), self._kinds[name].dtype == torch.int64)
        self._numbers.setdefault(number, name)
        return number

    def _asked_for(self, node: Node, index: int, is_known: bool) -> Name | Number:
        """A number of a tensor that Python has asked something of."""
        if not is_known:
            made = self._call(node, aten._local_scalar_dense.default)
            return self._asked.setdefault(index, made)
        self._known.setdefault(index, self._ref(_node(node.args[0])))
        is_int = _number_type(node.meta["val"]) == torch.int64
        return Number(None, (known_name(index),), is_int)

    def _input_of(self, number: Number) -> Name:
        """The argument that a number of Python's is to the program."""
        if number not in self._numbers:
            name = Name(f"number.{len(self._numbers)}")
            self._kinds[name] = Kind((), torch.int64 if number.is_int else torch.float64)
            self._numbers[number] = name
        return self._numbers[number]

    def _ref(self, node: Node) -> Any:
        """What a node holds now, after writes to its memory; a number as an argument."""
        found = self._value(node)
        return self._input_of(found) if isinstance(found, Number) else found

    def _value(self, node: Node) -> Any:
        """The same; a number of Python's as such."""
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and self._written:
            memory, where = place_of(value)
            if memory in self._written:
                when, part, name = self._written[memory]
                if part == where:
                    return name
                is_typed = self._kinds[name].dtype == value.dtype
                if is_typed and _row(part) is not None and _row(part) == _row(where):
                    return self._reshaped(name, tuple(value.shape))
                if self._seen[node] < when:
                    raise AliasedError(node)
        return self._refs[node]

    def _write(self, node: Node, target: torch._ops.OpOverload) -> Name:
        """A new value for what is written in place."""
        written = _node(node.args[0])
        value = written.meta["val"]
        others = [a.meta["val"] for a in node.all_input_nodes if a is not written]
        tensors = [v for v in others if isinstance(v, torch.Tensor) and v.dim()]
        name, overload = target._schema.name.rpartition("::")[2], target._overloadname
        pure = _WRITES.get(target)
        is_named = name.endswith("_") and target.namespace == "aten"
        if pure is None and is_named and overload in getattr(aten, name[:-1]).overloads():
            pure = getattr(getattr(aten, name[:-1]), overload)
        is_copy = target is aten.copy_.default
        if pure is None or (not is_copy and any(v.dtype != value.dtype for v in tensors)):
            raise AliasedError(node)
        missing = [a for a in target._schema.arguments[len(node.args) :] if not a.kwarg_only]
        node.args = (*node.args, *(a.default_value for a in missing if a.name not in node.kwargs))
        made = self._call(node, pure)
        if not isinstance(made, Name):
            raise InternalError(f"an operator that writes makes one tensor; got {made} of {target}")
        memory, where = place_of(value)
        self._written[memory] = len(self._seen), where, made
        return made

    def _kept(self, node: Node) -> Name:
        """What a graph keeps beside its arguments."""
        kept = getattr(self._module, str(node.target))
        if isinstance(kept, torch.Generator):
            raise UnsupportedStepError(
                "random numbers of a step are drawn by torch's default generator, whose state goes "
                "on from step to step; this one draws by a torch.Generator of its own: leave "
                "`generator=` out, or draw before the step and put that into the batch"
            )
        return self._constant(kept)

    def _constant(self, tensor: torch.Tensor) -> Name:
        name = Name(f"constant.{len(self._constants)}")
        self._constants[name] = tensor.detach()
        self._kinds[name] = _kind_of(tensor)
        return name

    def _call(self, node: Node, target: torch._ops.OpOverload) -> Any:
        kind = name_of(target)
        value = node.meta["val"]
        source = self._source(node)
        if kind == "cat":
            return self._joined(node, target)
        if kind in _FILLS:
            return self._filled(value, _FILLS[kind])
        if kind in _FILLS_WITH and not isinstance(node.args[_FILLS_WITH[kind]], Node):
            return self._filled(value, node.args[_FILLS_WITH[kind]])
        if kind in ("copy", "fill"):
            written = self._ref(_node(node.args[1]))
            return self._expanded(self._converted(written, value.dtype), tuple(value.shape))
        if kind == "_to_copy" and not isinstance(node.args[0], Node):
            return self._filled(value, node.args[0])
        if source is None:
            return self._general(node, target)
        if kind in _SAME:
            return source
        if target in _LAZY:
            return self._general(node, _LAZY[target])
        if kind in STRIDED:
            return self._strided(node, kind)
        if kind == "_local_scalar_dense":
            return self._converted(self._reshaped(source, ()), _number_type(value))
        if kind in ("_to_copy", "scalar_tensor"):
            return self._converted(source, value.dtype)
        if kind in _RESHAPES and target._overloadname != "dtype":
            return self._reshaped(source, tuple(value.shape))
        if kind == "expand":
            return self._expanded(source, tuple(value.shape))
        if kind == "slice" and tuple(value.shape) == self._kinds[source].shape:
            return source
        return self._general(node, target)

    def _source(self, node: Node) -> Name | None:
        """The first argument, if it is a tensor."""
        first = node.args[0] if node.args else None
        ref = self._ref(first) if isinstance(first, Node) else None
        return ref if isinstance(ref, Name) else None

    def _joined(self, node: Node, target: torch._ops.OpOverload) -> Any:
        """Without the empty tensors that caches begin with, whose shape fits nothing."""
        parts, *rest = node.args
        shape = node.meta["val"].shape
        kept = [part for part in _several(parts) if _node(part).meta["val"].dim() == len(shape)]
        if len(kept) == 1:
            return self._ref(_node(kept[0]))
        return self._general(node, target, [kept, *rest])

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
            arguments = (self._blank(_node(node.args[0]).meta["val"]), *node.args[1:])
        if draw is not None and target is aten.bernoulli.p:
            target = aten.bernoulli_.float  # the other one would draw into a contiguous tensor
        arguments = self._of_one_type(arguments, node.meta["val"], target)
        call = Call(
            target,
            tuple(map(argument, arguments)),
            {k: argument(v) for k, v in node.kwargs.items() if k not in _NOWHERE},
        )
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            made: Any = self._emit(call, inputs, _kind_of(value))
        else:
            made = self._emit_several(call, inputs, value)
        if draw is not None:
            names = [made] if isinstance(made, Name) else [name for name in made if name]
            for k, name in enumerate(names):
                self._draws[name] = (draw, call.key, k)
        return made

    def _of_one_type(
        self, arguments: Sequence[Any], value: Any, target: torch._ops.OpOverload
    ) -> Sequence[Any]:
        """Numbers among tensors of shape () take their type, as Python's numbers would."""
        if not isinstance(value, torch.Tensor) or value.dim() or not value.is_floating_point():
            return arguments
        return [
            self._converted(self._ref(argument), value.dtype)
            if isinstance(argument, Node)
            and not isinstance(argument.meta["val"], torch.Tensor | list | tuple)
            and isinstance(declared.type, torch._C.TensorType)
            else argument
            for argument, declared in zip(arguments, target._schema.arguments, strict=False)
        ]

    def _strided(self, node: Node, kind: str) -> Name:
        """What reads or writes by strides, on memory of which it is known how elements lie."""
        tensors = [self._ref(_node(a)) for a in node.args if isinstance(a, Node)]
        given = [*node.args[len(tensors) :], *node.kwargs.values()]
        by = by_strides(kind, _node(node.args[0]).meta["val"], given)
        source = self._permuted(tensors[0], by.order)
        if kind != "as_strided_scatter":
            return self._emit(by.call, (source,), _kind_of(node.meta["val"]))
        made = self._emit(by.call, (source, *tensors[1:]), self._kinds[source])
        return self._permuted(made, tuple(by.order.index(k) for k in range(len(by.order))))

    def _permuted(self, source: Name, order: tuple[int, ...]) -> Name:
        if order == tuple(sorted(order)):
            return source
        kind = self._kinds[source]
        call = Call(aten.permute.default, (Operand(0), list(order)), {})
        shape = tuple(kind.shape[k] for k in order)
        return self._emit(call, (source,), Kind(shape, kind.dtype))

    def _emit(self, call: Call, inputs: Sequence[str], kind: Kind) -> Name:
        name = Name(f"{call.name}.{len(self._lines)}")
        self._kinds[name] = kind
        self._append(Line(name, call, tuple(inputs), (name,), 0, self._origin))
        return name

    def _emit_several(self, call: Call, inputs: Sequence[str], values: Any) -> list[Name | None]:
        line = f"{call.name}.{len(self._lines)}"
        names = [
            Name(f"{line}:{k}") if isinstance(value, torch.Tensor) else None
            for k, value in enumerate(values)
        ]
        made = {name: _kind_of(v) for name, v in zip(names, values, strict=True) if name}
        self._kinds.update(made.items())
        self._append(Line(line, call, tuple(inputs), tuple(made), 0, self._origin))
        return names

    @property
    def _origin(self) -> Origin | None:
        origin: Origin | None = self._marks.get(ORIGIN)
        return origin

    def _append(self, line: Line) -> None:
        """With its phase; what reads a gradient before the last one is complete is backward."""
        when = self._marks[PHASE]
        if when == DURING or (when == BEFORE and not self._of_backward.isdisjoint(line.inputs)):
            self._of_backward.update(line.outputs)
            line = replace(line, phase=BACKWARD)
        else:
            line = replace(line, phase=APPLY if when == AFTER else FORWARD)
        self._lines.append(line)

    def _filled(self, value: torch.Tensor, number: Any) -> Name:
        kind = _kind_of(value)
        return self._emit(full(kind.shape, number, kind.dtype), (), kind)

    def _blank(self, value: torch.Tensor) -> Name:
        """A tensor to be filled, in the order of its strides, as eager's is."""
        call = Call(
            aten.empty_strided.default,
            (list(value.shape), list(value.stride())),
            {"dtype": value.dtype},
        )
        return self._emit(call, (), _kind_of(value))

    def _converted(self, source: Name, dtype: torch.dtype) -> Name:
        kind = self._kinds[source]
        if kind.dtype == dtype:
            return source
        call = Call(aten._to_copy.default, (Operand(0),), {"dtype": dtype})
        return self._emit(call, (source,), Kind(kind.shape, dtype))

    def _reshaped(self, source: Name, shape: tuple[int, ...]) -> Name:
        kind = self._kinds[source]
        if kind.shape == shape:
            return source
        call = Call(aten.reshape.default, (Operand(0), list(shape)), {})
        return self._emit(call, (source,), Kind(shape, kind.dtype))

    def _expanded(self, source: Name, shape: tuple[int, ...]) -> Name:
        kind = self._kinds[source]
        if kind.shape == shape:
            return source
        call = Call(aten.expand.default, (Operand(0), list(shape)), {})
        return self._emit(call, (source,), Kind(shape, kind.dtype))

    def _number(self, node: Node) -> Name | Number:
        """What Python computes from numbers of the step, as calls on tensors of shape ()."""
        kind = Kind((), _number_type(node.meta["val"]))
        known = [self._value(a) if isinstance(a, Node) else a for a in node.args]
        if not any(isinstance(a, Name) for a in known) and not node.kwargs:
            function: Any = node.target
            return Number(function, tuple(known), kind.dtype == torch.int64, self._origin)
        arguments = [self._ref(a) if isinstance(a, Node) else a for a in node.args]
        if node.target in (torch.sym_max, torch.sym_min):
            return self._chosen(node.target is torch.sym_max, arguments, kind)
        read = [self._converted(a, kind.dtype) for a in arguments if isinstance(a, Name)]
        made = read[0]
        is_read = [isinstance(a, Name) for a in arguments]
        for call in calls_on_numbers(node.target, arguments, is_read):
            made = self._emit(call, read, kind)
            read = [made]
        return made

    def _chosen(self, is_larger: bool, arguments: Sequence[Any], kind: Kind) -> Name:
        """The larger or smaller of two numbers; the first one if they cannot be compared."""
        first, second = (
            self._converted(a, kind.dtype)
            if isinstance(a, Name)
            else self._emit(full((), a, kind.dtype), (), kind)
            for a in arguments
        )
        compare = aten.gt.Tensor if is_larger else aten.lt.Tensor
        call = Call(compare, (Operand(0), Operand(1)), {})
        is_second = self._emit(call, (second, first), Kind((), torch.bool))
        call = Call(aten.where.self, (Operand(0), Operand(1), Operand(2)), {})
        return self._emit(call, (is_second, second, first), kind)


def known_name(index: int) -> str:
    """What a number of a tensor is called that is known before the step runs."""
    return f"known.{index}"


def _node(argument: Any) -> Node:
    if not isinstance(argument, Node):
        raise InternalError(f"what is read of a graph is a node's; got {argument!r}")
    return argument


def _several(argument: Any) -> Sequence[Any]:
    if not isinstance(argument, list | tuple):
        raise InternalError(f"several values of a graph are a list; got {argument!r}")
    return argument


def _row(place: Any) -> tuple[int, int] | None:
    """Begin and length of elements that lie one after the other, in their order; else None."""
    step = 1
    for size, stride in zip(reversed(place[1]), reversed(place[2]), strict=True):
        if size != 1 and stride != step:
            return None
        step *= size
    return place[0], step


def _kind_of(tensor: torch.Tensor) -> Kind:
    return Kind(tuple(tensor.shape), tensor.dtype)


def _number_type(value: Any) -> torch.dtype:
    """Of the tensor that stands for one of Python's numbers."""
    if isinstance(value, torch.SymInt | int):
        return torch.int64
    return torch.float64
