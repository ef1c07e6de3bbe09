"""Every private corner of PyTorch that we need, in one place.

Tried with torch 2.13.0. `make_fx` and fake tensors are public by their module paths, but how they
meet optimizers, Python's numbers and random draws is not documented.
"""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

Tensor = torch.Tensor

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

_NOT_THE_USERS = tuple(str(Path(place).parent) for place in (torch.__file__, __file__))

BEFORE, DURING, AFTER = range(3)
"""A node is from before the last gradient is complete, from autograd itself, or from later."""


def without_values(tensors: Sequence[Tensor]) -> tuple[FakeTensorMode, list[Tensor]]:
    """Stand-ins that have shapes, types and strides but no memory.

    What is on the meta device is on the CPU there, as it will be when it has values. A number that
    the step takes out of a tensor stays a name (`item` of a stand-in is a symbol).
    """
    shapes = ShapeEnv(allow_dynamic_output_shape_ops=False)
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    with mode:
        return mode, [
            torch.empty_strided(
                t.shape,
                t.stride(),
                dtype=t.dtype,
                device="cpu" if t.device.type == "meta" else t.device,
            )
            for t in tensors
        ]


class Program:
    """What a function does that may differentiate and write in place.

    A node of its graphs says where it comes from by `PHASE` and `DRAW`.

    Args:
        function: From tensors to tensors and numbers.
        tensors: As the arguments will be; their values are not read.
        decompositions: How operators are to be written in others.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Any]],
        tensors: Sequence[Tensor],
        decompositions: Mapping[Any, Callable[..., Any]],
    ) -> None:
        self._mode, self._fakes = without_values(tensors)
        table = dict(decompositions)
        state = torch.get_rng_state()
        try:
            with _gradients() as marks, self._mode:
                traced = make_fx(lambda *args: _with_draws(function, args), table, "real")
                self.module: GraphModule = traced(*self._fakes)
                """With writes as they are."""
        finally:
            torch.set_rng_state(state)
        _mark_phases(self.module, marks)
        self.module.graph.eliminate_dead_code()

    def without_writes(self) -> GraphModule:
        """The same with every write turned into a new value: traced once more, which takes long.

        Functionalization cannot see through `requires_grad_`, so that it comes second.
        """
        pure = torch.func.functionalize(
            lambda *args: _Marked(self.module).run(*args), remove="mutations"
        )
        with self._mode, torch.no_grad():
            return make_fx(pure, tracing_mode="real")(*self._fakes)


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


def place_of(tensor: Tensor) -> tuple[int, Any]:
    """Which memory a stand-in shares with others, and which part of it is its."""
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


def _with_draws(function: Callable[..., Sequence[Any]], args: Sequence[Tensor]) -> Sequence[Any]:
    with _Draws():  # type: ignore[no-untyped-call]
        return function(*args)


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
        proxies = get_proxy_mode()
        assert proxies is not None
        tracer = proxies.tracer
        create = tracer.create_node

        def marked(*args: Any, **kwargs: Any) -> Node:
            node: Node = create(*args, **kwargs)
            node.meta.update(self._now)
            return node

        with mock.patch.object(tracer, "create_node", marked):
            return super().run(*args, **kwargs)

    def run_node(self, n: Node) -> Any:
        self._now = {key: n.meta[key] for key in (PHASE, DRAW) if key in n.meta}
        return super().run_node(n)


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
    if not hasattr(optimizer, "_init_group"):
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
                    optimizer.step()
    finally:
        optimizer.param_groups = groups
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
    return True


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


def user_line(error: BaseException) -> str:
    """Where in the user's code an error comes from, as `file:line: code`."""
    return _line_of(traceback.extract_tb(error.__traceback__))


def calling_line() -> str:
    """Where in the user's code we are, as `file:line: code`."""
    return _line_of(traceback.extract_stack())


def _line_of(frames: Sequence[traceback.FrameSummary]) -> str:
    users = [f for f in frames if not f.filename.startswith((*_NOT_THE_USERS, "<"))]
    frame = (users or list(frames))[-1]
    return f"{frame.filename}:{frame.lineno}: `{frame.line}`"
