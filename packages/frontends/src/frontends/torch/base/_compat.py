"""Every private corner of PyTorch that we need, in one place.

Tried with torch 2.13.0. `make_fx` and fake tensors are public by their module paths, but how they
meet optimizers, Python's numbers and random draws is not documented.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, cast
from unittest import mock

import sympy  # type: ignore[import-untyped]
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.distributed import distributed_c10d
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx, track_tensor_tree
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from frontends.errors import UnsupportedStepError
from frontends.torch.base.draws import plain_draw
from frontends.torch.base.known import ITEM, Known, Unknown, symbols_of
from frontends.torch.base.lengths import of_known_shape
from frontends.torch.base.origins import Origins, calling_line
from frontends.torch.base.supposed import Answers, IsFinite

Tensor = torch.Tensor

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Types of numbers without values."""

DATA_DEPENDENT_SHAPES = (DynamicOutputShapeException,)
"""What tracing raises where a shape follows from numbers that are not there yet."""

DATA_DEPENDENT = (
    DataDependentOutputException,
    GuardOnDataDependentSymNode,
    *DATA_DEPENDENT_SHAPES,
)
"""And where Python asks for such a number, too."""

PHASE = "meshwright_phase"
"""Key of a node's metadata: whether autograd made it, or how far the step had come."""

DRAW = "meshwright_draw"
"""Key of a node's metadata: equal for draws of the same random numbers."""

ORIGIN = "meshwright_origin"
"""Key of a node's metadata: what code called the operator, an `Origin` or None."""

ASKED = "meshwright_asked"
"""Key of a node's metadata: which of the numbers it makes that Python has asked for, and whether it
is one that is known before the step runs."""

_NOT_THE_USERS = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])

BEFORE, DURING, AFTER = range(3)
"""A node is from before the last gradient is complete, from autograd itself, or from later."""


class Numbers(ShapeEnv):
    """Numbers that a program is given anew at each call: names in it, which have values meanwhile.

    Where Python asks for one, as `if weight_decay != 0` does, the answer is that of now, and is
    kept: the program is one for all numbers that give the same answers. Of a tensor's number that
    is not known before the step runs, an answer is supposed.

    Args:
        answers: What to suppose.
    """

    def __init__(self, answers: Answers) -> None:
        super().__init__(allow_dynamic_output_shape_ops=False)
        self.known: dict[Any, float | int] = {}
        """By symbol, what it is now."""

        self.answers: dict[Any, Any] = {}
        """By expression of known symbols, what Python was told."""

        self.looked_up: list[Any] = []
        """Those of the known symbols that are numbers of tensors."""

        self.supposed: dict[Any, bool] = {}
        """By expression of other symbols, what Python was told."""

        self.tensors: Known | None = None
        self._answers = answers
        self._alike: dict[Any, set[tuple[int, ...]]] | None = None

    def evaluate_expr(self, orig_expr: Any, *args: Any, **named: Any) -> Any:
        """What an expression is; of numbers that are not known before the step runs, an error."""
        symbols = getattr(orig_expr, "free_symbols", None)
        if not symbols:
            return super().evaluate_expr(orig_expr, *args, **named)
        if self._are_known(symbols):
            if orig_expr not in self.answers:
                self.answers[orig_expr] = orig_expr.subs(self.known)
            return self.answers[orig_expr]
        conditions = sympy.core.relational.Relational, sympy.logic.boolalg.BooleanFunction
        is_condition = isinstance(orig_expr, conditions)
        if is_condition and named.get("fallback_value") is None and self._are_of_tensors(symbols):
            return sympy.true if self.suppose(orig_expr) else sympy.false
        return super().evaluate_expr(orig_expr, *args, **named)

    def suppose(self, condition: Any) -> bool:
        """What to tell Python of numbers that are not known; the same if it asks again."""
        if condition not in self.supposed:
            guess = self._guess(condition)
            self.supposed[condition] = self._answers.to(condition, calling_line, guess)
        return self.supposed[condition]

    def _guess(self, condition: Any) -> bool:
        """People check that all is well, and compare with what is too large or too small."""
        if not isinstance(condition, sympy.Eq):
            return isinstance(condition, IsFinite)
        node = self._item(next(iter(condition.free_symbols)))
        source = None if node is None else node[0].args[0]
        name = str(getattr(source, "target", "")).split(".")[1:2]
        return name not in (["lt"], ["gt"], ["le"], ["ge"], ["any"], ["isnan"], ["isinf"])

    @property
    def computed(self) -> tuple[Any, ...]:
        """The symbols of numbers that are not known, of which something was supposed."""
        asked = {symbol for condition in self.supposed for symbol in condition.free_symbols}
        return tuple(sorted(asked - self.known.keys(), key=str))

    def _are_known(self, symbols: Collection[Any]) -> bool:
        for symbol in symbols - self.known.keys():
            found = self._item(symbol)
            if found is None or found[1] is Unknown:
                return False
            self.known[symbol] = int(found[1]) if isinstance(found[1], bool) else found[1]
            self.looked_up.append(symbol)
        return True

    def _are_of_tensors(self, symbols: Collection[Any]) -> bool:
        unknown = symbols - self.known.keys()
        return all(self._item(symbol) is not None for symbol in unknown)

    def _item(self, symbol: Any) -> tuple[Node, Any] | None:
        # a stand-in's operator may ask, inside of which all tensors are taken for meta ones
        with _disable_current_modes(), torch._C._PreserveDispatchKeyGuard():
            torch._C._set_meta_in_tls_dispatch_include(False)
            return None if self.tensors is None else self.tensors.item(symbol)

    def value_of(self, number: Any) -> float | int | bool:
        """What a number of Python's is that was computed from known ones.

        Raises:
            KeyError: It depends on more.
        """
        if not isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
            return number  # type: ignore[no-any-return]
        expression = number.node.expr
        if not self.known.keys() >= expression.free_symbols:
            raise KeyError(str(expression))
        python: type = number.node.pytype
        return python(expression.subs(self.known))  # type: ignore[no-any-return]

    def holds(self, numbers: Sequence[float | int]) -> bool:
        """Whether Python would be told the same of other numbers, given in the symbols' order."""
        if self._alike is None:
            self._alike = _alike(self.answers, tuple(self.known))
        return all(
            template.subs(dict(zip(symbols, values, strict=True))) == answer
            for (template, symbols, answer), places in self._alike.items()
            for values in {tuple(numbers[at] for at in place) for place in places}
        )


def _alike(answers: Mapping[Any, Any], known: Sequence[Any]) -> dict[Any, set[tuple[int, ...]]]:
    """Expressions that differ in their symbols alone, as those of each parameter's update.

    Returns:
        By an expression, its symbols and its value: the places, among the known symbols, of those
        for which they stand.
    """
    place = {symbol: at for at, symbol in enumerate(known)}
    found: dict[Any, set[tuple[int, ...]]] = {}
    for expression, answer in answers.items():
        mine = sorted(expression.free_symbols, key=place.__getitem__)
        names = [sympy.Symbol(f"{i}", **symbol.assumptions0) for i, symbol in enumerate(mine)]
        template = expression.xreplace(dict(zip(mine, names, strict=True)))
        key = template, tuple(names), answer
        found.setdefault(key, set()).add(tuple(place[symbol] for symbol in mine))
    return found


class Program:
    """What a function does that may differentiate and write in place.

    The function works on the tensors that the user has, which are not touched: whatever is called
    with one is called with its stand-in, which has shape, type and strides but no memory. So it
    does not matter by which name or list the function gets hold of them. A tensor that is met
    besides becomes an input, too. A node of its graphs says where it comes from by `PHASE`, `DRAW`
    and `ORIGIN`.

    Args:
        function: From the stand-ins of `tensors`, and numbers as Python's, to tensors and numbers.
            The program returns besides what becomes of tensors that are met.
        tensors: All that is known beforehand; their values are not read.
        numbers: That may be others at each call.
        decompositions: How operators are to be written in others.
        is_made_here: Whether a tensor was made by the function itself, as by `torch.tensor(3)`;
            such a one is a constant.
        are_there: For each of `tensors`, whether its values are there before each run.
        answers: What is supposed of numbers that the program computes.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Any]],
        tensors: Sequence[Tensor],
        numbers: Sequence[float | int] = (),
        decompositions: Mapping[Any, Callable[..., Any]] | None = None,
        is_made_here: Callable[[Tensor], bool] = lambda tensor: False,
        are_there: Sequence[bool] = (),
        answers: Answers | None = None,
    ) -> None:
        self.numbers = Numbers(answers or Answers())
        self._mode = FakeTensorMode(shape_env=self.numbers, allow_non_fake_inputs=True)
        with self._mode:
            self._fakes = [_stand_in(t) for t in tensors]
            self._fakes += [
                torch.empty((), dtype=torch.int64 if isinstance(n, int) else torch.float64)
                for n in numbers
            ]
        state = torch.get_rng_state()
        n_tensors = len(tensors)

        known = zip(tensors, are_there, strict=False)
        there = {i: tensor for i, (tensor, is_there) in enumerate(known) if is_there}
        there |= {n_tensors + i: torch.tensor(number) for i, number in enumerate(numbers)}

        def traced(*values: Tensor) -> Sequence[Any]:
            tracer: Any = get_proxy_mode().tracer  # type: ignore[union-attr]
            self.numbers.tensors = Known(tracer.graph, there, tracer.root)
            python: list[Any] = [value.item() for value in values[n_tensors:]]
            for number, known in zip(python, numbers, strict=True):
                self.numbers.known[number.node.expr] = known
            origins = self._stand_ins.origins = Origins(sys._getframe())
            with _marked(lambda: {ORIGIN: origins.find()}), _Draws(), self._stand_ins:  # type: ignore[no-untyped-call]
                made = function(*values[:n_tensors], *python)
                with torch.no_grad():
                    left = [self._stand_ins.of(t).detach() for t in self._stand_ins.outside]
            return [*made, *left]

        self._stand_ins = _StandIns(self._mode, is_made_here)
        for real, fake in zip(tensors, self._fakes, strict=False):
            self._stand_ins.add(real, fake)
        try:
            with _gradients() as marks, self._mode, _in_plain_operators():
                module = make_fx(traced, dict(decompositions or {}), "real")(*self._fakes)
        finally:
            torch.set_rng_state(state)
        _mark_phases(module, marks)
        self._mark_asked(module)
        self.module: GraphModule = module
        """With writes as they are."""

        self.outside = self._stand_ins.outside
        """Tensors that were met besides: further inputs, after the numbers."""

        self._fakes += _as_inputs(module, self._stand_ins.nodes)
        module.graph.eliminate_dead_code(lambda node: node.is_impure() or ASKED in node.meta)

    def _mark_asked(self, module: GraphModule) -> None:
        """Find the nodes again that make the numbers of which Python has asked something."""
        looked_up = {symbol: k for k, symbol in enumerate(self.numbers.looked_up)}
        computed = {symbol: k for k, symbol in enumerate(self.numbers.computed)}
        for node in module.graph.nodes:
            if node.target is ITEM:
                for symbol in symbols_of(node):
                    if symbol in looked_up:
                        node.meta[ASKED] = looked_up[symbol], True
                    elif symbol in computed:
                        node.meta[ASKED] = computed[symbol], False

    def without_writes(self) -> GraphModule:
        """The same with every write turned into a new value: traced once more, which takes long.

        Functionalization cannot see through `requires_grad_`, so that it comes second.
        """
        pure = torch.func.functionalize(
            lambda *args: _Marked(self.module).run(*args), remove="mutations"
        )
        with self._mode, torch.no_grad():
            module: GraphModule = make_fx(pure, tracing_mode="real")(*self._fakes)
        for node in module.graph.nodes:  # parts of what was written are read when all has run
            node.meta.setdefault(PHASE, AFTER)
        return module


def _stand_in(tensor: Tensor) -> Tensor:
    """What is on the meta device is on the CPU there, as it will be when it has values."""
    device = "cpu" if tensor.device.type == "meta" else tensor.device
    if tensor.numel() > 1 and not any(tensor.stride()):  # an object for one without memory
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _as_inputs(module: GraphModule, nodes: Sequence[Node]) -> list[Tensor]:
    """Turn nodes that read attributes of a module into further arguments; their stand-ins."""
    graph = module.graph
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    found = []
    for node in nodes:
        with graph.inserting_after(last):
            last = graph.placeholder(node.name)
        last.meta.update(node.meta)
        node.replace_all_uses_with(last)
        graph.erase_node(node)
        found.append(last.meta["val"])
    module.recompile()
    return found


@dataclass(frozen=True, slots=True)
class Alias:
    """A tensor that is one of the user's, or a view of it."""

    name: str
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None
    """Shape, strides, and where it begins; None if it is that tensor itself."""

    def of(self, tensor: Tensor) -> Tensor:
        """The alias of that tensor."""
        if self.view is None:
            return tensor
        shape, stride, offset = self.view
        return tensor.detach().as_strided(shape, stride, tensor.storage_offset() + offset)


class _StandIns(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands operators on with stand-ins for the tensors that the user has."""

    def __init__(self, mode: FakeTensorMode, is_made_here: Callable[[Tensor], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake, self._is_made_here = mode, is_made_here
        self._by_id: dict[int, Tensor] = {}
        self._by_place: dict[Any, Tensor] = {}
        self._by_memory: dict[int, tuple[Tensor, Tensor]] = {}
        self._rebound: dict[int, tuple[Tensor, Tensor]] = {}
        """Tensors whose data were set, and what they hold since."""

        self.outside: list[Tensor] = []
        self.nodes: list[Node] = []
        self.origins: Origins | None = None

    def rebind(self, tensor: Tensor, value: Tensor) -> None:
        """Let a tensor hold what another one does from now on, in that one's memory."""
        with torch.no_grad():
            self._rebound[id(tensor)] = tensor, value.detach()

    def rebound(self, tensor: Tensor) -> Tensor | None:
        """What a tensor holds since its data were set; None if they were not."""
        found = self._rebound.get(id(tensor))
        return None if found is None else found[1]

    def alias_of(self, tensor: Tensor, users: Mapping[str, Tensor]) -> Alias | None:
        """Which of the user's tensors one is, or lies in the memory of; None if of none."""
        if not isinstance(tensor, FakeTensor):
            name = next((name for name, own in users.items() if own is tensor), None)
            return None if name is None else Alias(name, None)
        if not tensor.numel() or id(tensor) in self._rebound:
            return None
        memory = place_of(tensor)[0]
        for name, own in users.items():
            fake = self._by_id[id(own)]
            if id(own) not in self._rebound and place_of(fake)[0] == memory:
                if fake.dtype != tensor.dtype or not fake.numel():
                    return None
                offset = int(tensor.storage_offset()) - int(fake.storage_offset())
                return Alias(name, (tuple(tensor.shape), tensor.stride(), offset))
        return None

    def check_apart(self, others: Iterable[Any]) -> None:
        """Whoever's data were set shares memory with nothing else that there is after the step.

        Parts of one memory that do not overlap are fine, as `vector_to_parameters` sets them.
        """
        there = [self.of(t) for t in (*others, *self.outside) if isinstance(t, Tensor)]
        sharing: dict[int, dict[int, Tensor]] = {}
        for tensor in there:
            sharing.setdefault(place_of(tensor)[0], {})[id(tensor)] = tensor
        for tensor, now in self._rebound.values():
            alike = sharing.get(place_of(now)[0], {})
            apart = [other for other in alike.values() if other is not now]
            if id(now) in alike and any(_overlap(now, other) for other in apart):
                raise UnsupportedStepError(
                    "tensors of a model share their memory with nothing else after a step; this "
                    f"one sets the data of a tensor of {tensor.dtype}{list(tensor.shape)} to a "
                    "tensor that is kept elsewhere, too: set them to a clone of it"
                )

    def add(self, real: Tensor, fake: Tensor) -> None:
        """A tensor and its stand-in."""
        self._by_id[id(real)] = fake
        if real.device.type != "meta":
            memory, place = place_of(real)
            self._by_place.setdefault((memory, place, real.dtype), fake)
            if real.numel():
                self._by_memory.setdefault(memory, (real, fake))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, self.of, (args, kwargs or {}))
        if func is torch.ops.aten.equal.default and args[0].shape == args[1].shape:
            return bool((args[0] == args[1]).all())
        func, args, kwargs = of_known_shape(func, *_with_places(func, args, kwargs))
        try:
            result = func(*args, **kwargs)
        except DATA_DEPENDENT_SHAPES as error:
            origin = None if self.origins is None else self.origins.find()
            error.origin = origin  # type: ignore[attr-defined]
            raise
        if not all(map(_has_sizes, pytree.tree_leaves(result))):
            args, kwargs = pytree.tree_map_only(torch.SymInt, int, (args, kwargs))
            result = func(*args, **kwargs)
        if func._schema.is_mutable:  # below autograd, which counts the writes of the user's tensor
            for declared, value in zip(func._schema.arguments, args, strict=False):
                if declared.alias_info is not None and declared.alias_info.is_write:
                    written = [leaf for leaf in pytree.tree_leaves(value) if is_stand_in(leaf)]
                    torch.autograd.graph.increment_version(written)
        return result

    def of(self, tensor: Tensor) -> Tensor:
        """The stand-in of a tensor; a new one if it was not met before."""
        if id(tensor) in self._rebound:
            return self._rebound[id(tensor)][1]
        if isinstance(tensor, FakeTensor):
            return tensor
        found = self._by_id.get(id(tensor))
        if found is not None:
            return found
        if self._is_made_here(tensor):
            return tensor
        if tensor.device.type != "meta":
            memory, place = place_of(tensor)
            found = self._by_place.get((memory, place, tensor.dtype))
            if found is None and memory in self._by_memory:
                found = self._view(tensor, *self._by_memory[memory])
            if found is not None:
                self._by_id[id(tensor)] = found
                return found
        return self._new(tensor)

    def _view(self, tensor: Tensor, real: Tensor, fake: Tensor) -> Tensor:
        """A part of a known tensor, as that tensor's stand-in has it."""
        offset = tensor.storage_offset() - real.storage_offset()
        n = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        there = 1 + sum((n - 1) * s for n, s in zip(real.shape, real.stride(), strict=True))
        if tensor.dtype != real.dtype or offset < 0 or offset + n > there:
            raise SharedMemoryError(
                f"a tensor of {tensor.dtype}{list(tensor.shape)} lies in the memory of another of "
                f"{real.dtype}{list(real.shape)}, and is no part of it"
            )
        return fake.as_strided(tensor.shape, tensor.stride(), offset)

    def _new(self, tensor: Tensor) -> Tensor:
        tracer: Any = get_proxy_mode().tracer  # type: ignore[union-attr]
        with _disable_current_modes(), self._fake:
            fake = _stand_in(tensor)
        name = f"outside_{len(self.outside)}"
        setattr(tracer.root, name, tensor)
        proxy = tracer.create_proxy("get_attr", name, (), {})
        track_tensor_tree(fake, proxy, constant=None, tracer=tracer)
        self.outside.append(tensor)
        self.nodes.append(proxy.node)
        self.add(tensor, fake)
        return fake


def _with_places(
    func: Any, args: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments with sizes and places as Python's numbers, where these are known.

    A part of a tensor is another one on each device, which numbers without values say nothing of.
    """
    declared = {a.name: a for a in func._schema.arguments}

    def known(argument: Any, value: Any) -> Any:
        if "int" not in str(argument.type):  # a summand or factor is a `number`
            return value
        with contextlib.suppress(GuardOnDataDependentSymNode):
            return pytree.tree_map_only(torch.SymInt, known_number, value)
        return value

    found = tuple(known(a, v) for a, v in zip(func._schema.arguments, args, strict=False))
    return found, {name: known(declared[name], value) for name, value in named.items()}


def _has_sizes(value: Any) -> bool:
    """Whether the shape of a result is one of Python's numbers, and none of torch's."""
    return not isinstance(value, Tensor) or all(type(size) is int for size in value.shape)


def stand_ins() -> _StandIns:
    """What hands operators on with stand-ins, while a step is captured."""
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return next(mode for mode in reversed(modes) if isinstance(mode, _StandIns))


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one memory may have a byte in common."""
    (first, end), (first_b, end_b) = _extent(a), _extent(b)
    return first < end_b and first_b < end


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The first byte that a tensor has of its memory, and the one after the last."""
    if not tensor.numel():
        return 0, 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    first = int(tensor.storage_offset())
    return first * tensor.itemsize, (first + int(last) + 1) * tensor.itemsize


class SharedMemoryError(Exception):
    """A tensor shares memory with another one in a way that cannot be followed."""


def makes_new(target: torch._ops.OpOverload) -> bool:
    """Whether an operator's results are never views of its operands, nor these themselves.

    Schemas say it, but for operators that are written in others, and two that are views unsaid.
    """
    is_written_in_others = target.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )
    says_view = any(made.alias_info is not None for made in target._schema.returns)
    unsaid = (torch.ops.aten._unsafe_view.default, torch.ops.aten.lift.default)
    return not (is_written_in_others or says_view or target in unsaid)


def default_store() -> Any:
    """What the processes of the default group joined by."""
    return dist.distributed_c10d._get_default_store()


_groups: collections.Counter[tuple[int, ...]] = collections.Counter()


def new_group(
    ranks: Sequence[int], timeout: timedelta, backend: str | None = None
) -> dist.ProcessGroup:
    """A group that only its members make, each at its own time.

    Torch names such a group by how many groups a process has, which differs between processes of
    stages that have different meshes: they would wait for each other under two names. Here the name
    counts those of the same members alone, which all of them make in the same order.
    """
    members = tuple(ranks)
    _groups[members] += 1
    text = f"meshwright {members} {_groups[members]}"
    name = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    with mock.patch.object(distributed_c10d, "_hash_ranks_to_str", return_value=name):
        made = dist.new_group(members, timeout, backend, use_local_synchronization=True)
    return cast("dist.ProcessGroup", made)


def place_of(tensor: Tensor) -> tuple[int, Any]:
    """Which memory a stand-in shares with others, and which part of it is its.

    Raises:
        UnsupportedStepError: It is sparse.
    """
    if tensor.layout != torch.strided:
        raise UnsupportedStepError(
            f"tensors of a step are dense; this one makes one of layout {tensor.layout}: make it "
            "dense, as sparse=False of nn.Embedding does"
        )
    where = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    return tensor.untyped_storage()._cdata, where


@contextlib.contextmanager
def _gradients() -> Iterator[list[tuple[int, int]]]:
    """The numbers of nodes before and after each time that autograd runs."""
    marks: list[tuple[int, int]] = []

    def marked(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            proxies = get_proxy_mode()
            if proxies is None:
                return original(*args, **kwargs)
            first = len(proxies.tracer.graph.nodes)
            result = original(*args, **kwargs)
            marks.append((first, len(proxies.tracer.graph.nodes)))
            return result

        return call

    with (
        mock.patch("torch.autograd.backward", marked(torch.autograd.backward)),
        mock.patch("torch.autograd.grad", marked(torch.autograd.grad)),
    ):
        yield marks


def _mark_phases(module: GraphModule, marks: Sequence[tuple[int, int]]) -> None:
    last = max((end for _, end in marks), default=0)
    for index, node in enumerate(module.graph.nodes):
        is_during = any(first <= index < end for first, end in marks)
        node.meta[PHASE] = DURING if is_during else BEFORE if index < last else AFTER


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells draws of random numbers apart by the state of the generator, which it advances.

    Activation checkpointing sets the state back and draws the same numbers again.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        proxies = get_proxy_mode()
        if proxies is None or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        plain = plain_draw(func, args, kwargs or {})
        if plain is not None:
            with self:
                return plain()
        with _disable_current_modes():
            state = hash(torch.get_rng_state().numpy().tobytes())
            torch.rand(())
        result = func(*args, **(kwargs or {}))
        node = next(iter(reversed(proxies.tracer.graph.nodes)))
        node.meta[DRAW] = state
        return result


class _Marked(Interpreter):
    """Hands the marks of each node to what it becomes."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self._now: dict[str, Any] = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        with _marked(lambda: self._now):
            return super().run(*args, **kwargs)

    def run_node(self, n: Node) -> Any:
        self._now = {key: n.meta[key] for key in (PHASE, DRAW, ORIGIN, ASKED) if key in n.meta}
        return super().run_node(n)


@contextlib.contextmanager
def _marked(marks: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Nodes that are made meanwhile get what is told of each."""
    proxies = get_proxy_mode()
    assert proxies is not None, "nodes are made while something is traced"
    tracer = proxies.tracer
    create = tracer.create_node

    def marked(*args: Any, **kwargs: Any) -> Node:
        node: Node = create(*args, **kwargs)
        node.meta.update(marks())
        return node

    with mock.patch.object(tracer, "create_node", marked):
        yield


def _refuse_setting(name: str) -> None:
    raise UnsupportedStepError(
        f"settings of torch stay what they are while a step runs; this one sets {name}, at "
        f"{calling_line()}: set it before the step is called"
    )


@contextlib.contextmanager
def _in_plain_operators() -> Iterator[None]:
    """Recurrent layers as products and sums: oneDNN has operators for them that have no rules."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    shown = property(lambda _: before, lambda _, value: _refuse_setting("torch.backends.mkldnn"))
    try:
        with mock.patch.object(type(torch.backends.mkldnn), "enabled", shown):
            yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """What `torch.compile` has made runs as it was written."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled
        yield
        return
    allowed = sys.modules["torch._dynamo"].config.patch(error_on_nested_fx_trace=False)
    with allowed, torch.compiler.set_stance("force_eager"):
        yield


@contextlib.contextmanager
def with_tensors(model: torch.nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """The model with other parameters and buffers, tied where its own are."""
    with _reparametrize_module(model, dict(tensors), tie_weights=True):
        yield


class _Initialized(Exception):  # noqa: N818, it is no error
    """The optimizer has made its state."""


def make_state(optimizer: torch.optim.Optimizer) -> bool:
    """Let an optimizer make the state that it makes before its first update, and update nothing.

    Returns:
        Whether it can be asked to, as PyTorch's own can.
    """
    step = _own_step(type(optimizer))
    if step is None or not hasattr(optimizer, "_init_group"):
        return False
    original = optimizer._init_group

    def stop(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        raise _Initialized

    groups = optimizer.param_groups
    parameters = [p for group in groups for p in group["params"] if p.requires_grad]
    gradients = [p.grad for p in parameters]
    try:
        for p in parameters:
            p.grad = torch.zeros((), dtype=p.dtype, device=p.device).expand(p.shape)
        with mock.patch.object(optimizer, "_init_group", stop):
            for group in groups:
                optimizer.param_groups = [group]
                with contextlib.suppress(_Initialized):
                    step(optimizer)
    finally:
        optimizer.param_groups = groups
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
    return True


def _own_step(kind: type) -> Callable[..., Any] | None:
    """The update of one of PyTorch's optimizers, without hooks; None if it is the user's."""
    step: Any = kind.step  # type: ignore[attr-defined]
    if hasattr(step, "hooked"):  # wrapped in its class, or in a class that inherits it
        step = step.__wrapped__
    return step if step.__module__.startswith("torch.optim") else None


class Watcher(Protocol):
    """Sees what is called on stand-ins."""

    def given(self, stand_in: Tensor, real: Tensor) -> None:
        """A tensor that has values is used for the first time."""

    def call(self, function: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Calls any operator, and returns what it returns."""

    def values(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Those that stand-ins have now. Is asked where Python needs a number."""


@contextlib.contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Let all tensors meanwhile be stand-ins that have no memory."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with warnings.catch_warnings(), mode, _Watch(mode, watcher):
        # deepcopy compares it with 0, for which the one of a stand-in does
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor", UserWarning)
        yield


def unwatched() -> contextlib.AbstractContextManager[None]:
    """Real tensors are real meanwhile."""
    return _disable_current_modes()


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands operators on, with stand-ins for real tensors."""

    def __init__(self, mode: FakeTensorMode, watcher: Watcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode, self._watcher = mode, watcher
        self._real: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        leaves, tree = pytree.tree_flatten((args, kwargs or {}))
        leaves = [self._stand_in(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        if torch.Tag.data_dependent_output in func.tags:
            with unwatched():
                real = iter(self._watcher.values([x for x in leaves if isinstance(x, Tensor)]))
                given = [next(real) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
                args, kwargs = pytree.tree_unflatten(given, tree)
                return func(*args, **kwargs)
        result = self._watcher.call(func, *pytree.tree_unflatten(leaves, tree))
        # it keeps weak references to stand-ins, with which Module.to() cannot swap parameters
        converter = self._mode.fake_tensor_converter.meta_converter
        converter.tensor_memo.clear()
        converter.describer.lookup_tensor.clear()
        return result

    def _stand_in(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._real:
            made = self._mode.from_tensor(tensor)
            self._real[id(tensor)] = tensor, made
            self._watcher.given(made, tensor)
        return self._real[id(tensor)][1]


def tracers_module() -> Any:
    """The module in which the tracer that runs keeps constants."""
    proxies = get_proxy_mode()
    assert proxies is not None, "it is asked for while a step is traced"
    tracer: Any = proxies.tracer
    return tracer.root


def answer(number: Any, condition: Callable[[Any], Any]) -> bool:
    """What Python is told of a number without a value.

    Args:
        number: Of torch's.
        condition: Makes a condition of sympy's.
    """
    return bool(number.node.shape_env.evaluate_expr(condition(number.node.expr)))


def known_number(number: Any) -> Any:
    """One of Python's, which is a guard, from one of torch's that is known before the step runs.

    Raises:
        GuardOnDataDependentSymNode: It is not known.
    """
    if not isinstance(number, SYMBOLS):
        return number
    found = number.node.shape_env.evaluate_expr(number.node.expr)
    return number.node.pytype(found)


def constant(numbers: Sequence[int]) -> Tensor:
    """A tensor in memory, which operators in C++ may look into while others have stand-ins."""
    with _disable_current_modes():
        return torch.tensor(numbers)


def is_stand_in(tensor: Tensor) -> bool:
    """Whether a tensor has no memory."""
    return isinstance(tensor, FakeTensor)


def is_value(value: Any) -> bool:
    """Whether it is a tensor or number that a program makes, and that has no value yet."""
    return isinstance(value, (FakeTensor, *SYMBOLS))


def is_inside_torch(*, or_here: bool = True) -> bool:
    """Whether a method was called by torch itself, two frames above; printing calls methods.

    Args:
        or_here: Whether it is so, too, if it was called by this package.
    """
    file = sys._getframe(2).f_code.co_filename
    return file.startswith(_NOT_THE_USERS if or_here else _NOT_THE_USERS[:1])
