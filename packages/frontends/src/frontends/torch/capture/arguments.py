"""The tensors and numbers that a training step reads, named as the user would write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from frontends.errors import BatchError, PlanError, UnsupportedStepError
from frontends.torch.base.compat.state import make_state, with_tensors
from frontends.torch.base.compat.values import place_of
from frontends.torch.base.frozen import Frozen, freeze
from frontends.torch.base.trees import Leaf, flatten

Tensor = torch.Tensor

_HOW = ("foreach", "fused", "capturable")
"""Settings of PyTorch's optimizers that change how an update is computed, but not its result."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One tensor that the step reads."""

    name: str
    """As the user would write it: `params['h.0.attn.weight']`, `batch['input_ids']`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_batch: bool
    """Whether its leading dim holds the examples."""

    is_given: bool = False
    """Whether each call passes it in although it is not in the batch: a number such as a learning
    rate, or a tensor that belongs to neither the model nor the optimizer."""


class State:
    """The tensors that a step keeps from one call to the next, and the settings of its optimizer.

    Args:
        model: The module.
        optimizer: An optimizer of its parameters. If it has no state yet, it is made to create it.

    Raises:
        PlanError: One of the two is something else.
        UnsupportedStepError: The optimizer also updates parameters that are not the model's, or
            tensors share memory.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        _check_types(model, optimizer)
        _check_modules(model)
        self.model, self.optimizer = model, optimizer
        parameters = dict(model.named_parameters())
        self.name_of = {id(p): name for name, p in parameters.items()}
        """By a parameter's `id`, its name in the model."""

        self._check_groups()
        self._make_state()
        self.tensors: dict[str, Tensor] = {f"params[{n!r}]": p for n, p in parameters.items()}
        """All tensors of the state, by the name that the user would write."""

        self.tensors |= {f"buffers[{n!r}]": b for n, b in model.named_buffers()}
        for name, parameter in parameters.items():
            for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                if isinstance(value, Tensor):
                    self.tensors[f"optimizer[{key!r}][{name!r}]"] = value
        self._check_memory()

    @property
    def numbers(self) -> dict[str, float | int]:
        """The current numbers in `param_groups`, by the name that the user would write."""
        settings: dict[str, float | int] = {}
        for group, key, value in self._settings():
            items = [("", value)]
            if isinstance(value, tuple | list):
                items = [(f"[{i}]", item) for i, item in enumerate(value)]
            for where, item in items:
                if type(item) in (int, float):
                    settings[f"optimizer.param_groups[{group}][{key!r}]{where}"] = item
        return settings

    @property
    def others(self) -> tuple[Frozen, ...]:
        """Copies of the rest of `param_groups`: the parameters, and settings other than numbers."""
        groups = self.optimizer.param_groups
        copies = [freeze([id(p) for p in group["params"]]) for group in groups]
        for _, key, value in self._settings():
            if isinstance(value, tuple | list):
                copies.append(freeze([key, *(_unless_number(item) for item in value)]))
            else:
                copies.append(freeze([key, _unless_number(value)]))
        return tuple(copies)

    def is_dense_or_not(self) -> bool:
        """Return whether the optimizer makes the same update from sparse and dense gradients."""
        is_plain = type(self.optimizer) in (torch.optim.SGD, torch.optim.Adagrad)
        return is_plain and not any(g["weight_decay"] for g in self.optimizer.param_groups)

    def _settings(self) -> Iterator[tuple[int, str, Any]]:
        for index, group in enumerate(self.optimizer.param_groups):
            for key, value in group.items():
                if key not in ("params", *_HOW):
                    yield index, key, value

    def _check_groups(self) -> None:
        for group in self.optimizer.param_groups:
            if any(id(p) not in self.name_of for p in group["params"]):
                raise UnsupportedStepError(
                    "an optimizer updates parameters of the model that is parallelized; one of "
                    f"{type(self.optimizer).__name__} updates others, too: put both models into "
                    "one module"
                )

    def _check_memory(self) -> None:
        """Check that no two tensors of the state overlap; tied parameters are one tensor."""
        spans_by_memory: dict[int, list[tuple[int, int, str]]] = {}
        for name, tensor in self.tensors.items():
            if tensor.layout != torch.strided:
                raise UnsupportedStepError(
                    "tensors of a model and of its optimizer's state are dense; "
                    f"{name} has layout {tensor.layout}: make it dense"
                )
            if tensor.device.type == "meta" or not tensor.numel():
                continue
            memory, (begin, shape, stride) = place_of(tensor)
            end = begin + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
            item = tensor.element_size()
            spans_by_memory.setdefault(memory, []).append((begin * item, end * item, name))
        for spans in spans_by_memory.values():
            spans.sort()
            for (_, end, name), (begin, _, other) in pairwise(spans):
                if begin < end:
                    raise UnsupportedStepError(
                        "each tensor of the state has memory of its own; "
                        f"{name} and {other} share some: tie them by the same parameter, as "
                        "model.head.weight = model.embedding.weight does"
                    )

    def _make_state(self) -> None:
        """Let the optimizer create the state that it has before its first update, if it can."""
        optimizer = self.optimizer
        if not optimizer.state:
            make_state(optimizer)
        for group in optimizer.param_groups:
            if group.get("momentum") and isinstance(optimizer, torch.optim.SGD):
                self._make_momentum(group)

    def _make_momentum(self, group: Mapping[str, Any]) -> None:
        """Create SGD's momentum as zeros.

        SGD starts it with the first gradient; without dampening, zeros have the same result.
        """
        for parameter in group["params"]:
            state = self.optimizer.state[parameter]
            is_first = parameter.requires_grad and state.get("momentum_buffer") is None
            if is_first and not group["dampening"]:
                state["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)

    @contextmanager
    def given(
        self, numbers: Mapping[str, Any]
    ) -> Iterator[Callable[[], dict[tuple[int, str], Any]]]:
        """Inside, `param_groups` has other numbers, and updates consist of plain operators.

        Args:
            numbers: By name, the number to set.

        Yields:
            A function that returns the settings that the step has changed, by group and key.
        """
        groups = self.optimizer.param_groups
        saved = [dict(group) for group in groups]
        for index, group in enumerate(groups):
            for key, value in list(group.items()):
                name = f"optimizer.param_groups[{index}][{key!r}]"
                if key in _HOW:
                    group[key] = False
                elif name in numbers:
                    group[key] = numbers[name]
                elif type(value) in (tuple, list):
                    group[key] = type(value)(
                        numbers.get(f"{name}[{i}]", item) for i, item in enumerate(value)
                    )
        during = [dict(group) for group in groups]

        def changed() -> dict[tuple[int, str], Any]:
            if len(groups) != len(during) or groups is not self.optimizer.param_groups:
                raise UnsupportedStepError(
                    "a step keeps its optimizer's parameter groups; this one adds or removes some: "
                    "do that before the step is called"
                )
            return {
                (index, key): value
                for index, group in enumerate(groups)
                for key, value in group.items()
                if value is not during[index].get(key)
            }

        try:
            yield changed
        finally:
            for group, before in zip(groups, saved, strict=False):
                group.clear()
                group.update(before)

    @contextmanager
    def with_memory(self) -> Iterator[dict[str, Tensor]]:
        """Yield, by name, the tensors that represent the state during a capture.

        These are the user's own tensors. Tensors on the meta device are replaced in model and
        optimizer, since their gradients would be on the meta device, too, while those of the batch
        are not.
        """
        objects = dict(self.tensors)
        tokens = {name: _token(t) for name, t in objects.items() if t.device.type == "meta"}
        objects |= tokens
        with ExitStack() as stack:
            if tokens:
                model = {
                    n: objects[f"{kind}[{n!r}]"]
                    for kind, named in (
                        ("params", self.name_of.values()),
                        ("buffers", [n for n, _ in self.model.named_buffers()]),
                    )
                    for n in named
                }
                stack.enter_context(with_tensors(self.model, model))
                stack.enter_context(self._with_optimizer_of(objects))
            yield objects

    @contextmanager
    def _with_optimizer_of(self, objects: Mapping[str, Tensor]) -> Iterator[None]:
        optimizer = self.optimizer
        saved = optimizer.state, [group["params"] for group in optimizer.param_groups]
        named = {
            p: self.name_of[id(p)] for group in optimizer.param_groups for p in group["params"]
        }
        kept = type(saved[0])(getattr(saved[0], "default_factory", None))
        for p, values in saved[0].items():
            kept[objects[f"params[{named[p]!r}]"]] = {
                key: objects.get(f"optimizer[{key!r}][{named[p]!r}]", value)
                for key, value in values.items()
            }
        optimizer.state = kept
        for group in optimizer.param_groups:
            group["params"] = [objects[f"params[{named[p]!r}]"] for p in group["params"]]
        try:
            yield
        finally:
            optimizer.state = saved[0]
            for group, parameters in zip(optimizer.param_groups, saved[1], strict=True):
                group["params"] = parameters


def is_count(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor of the state is a single number, such as a count of steps."""
    return not name.startswith("params") and tensor.numel() == 1 and not tensor.is_meta


def _unless_number(value: Any) -> Any:
    return type(value) if type(value) in (int, float) else value


def _token(tensor: Tensor) -> Tensor:
    """Return a CPU tensor to represent a meta tensor; it has one element in memory, expanded."""
    expanded = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(expanded, requires_grad=tensor.requires_grad)
    return expanded.requires_grad_(tensor.requires_grad)


def _check_types(model: Any, optimizer: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise PlanError(f"a model is a torch.nn.Module; got {type(model).__name__}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise PlanError(
            "a training step has an optimizer, a torch.optim.Optimizer of the model's parameters; "
            f"got {type(optimizer).__name__}"
        )


def _check_modules(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedStepError(
                "a step is captured from Python code; "
                f"{name or 'the model'} is compiled by torch.jit: use the module that it was "
                "compiled from"
            )
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and torch.nn.parameter.is_lazy(tensor):
                raise UnsupportedStepError(
                    "a step is planned for parameters that have shapes; "
                    f"{key} of {name or 'the model'} gets one at the first call of the model: call "
                    "it once with a batch before"
                )


def name_leaves(batch: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a batch, with the names that the user would write."""
    return named(flatten(batch)[0])


def named(leaves: Sequence[Leaf]) -> list[tuple[str, Any]]:
    """Return leaves of a batch, with the names that the user would write."""
    return [("batch" + leaf.path, leaf.value) for leaf in leaves]


def describe(leaves: Sequence[tuple[str, Any]]) -> list[Argument]:
    """Return the tensors of a batch as arguments; one of shape () belongs to all examples.

    Raises:
        BatchError: A tensor is not dense.
    """
    arguments = []
    for name, leaf in leaves:
        if not isinstance(leaf, Tensor):
            continue
        if leaf.layout != torch.strided:
            raise BatchError(
                f"tensors of a batch are dense; {name} has layout {leaf.layout}: call to_dense()"
            )
        arguments.append(Argument(name, tuple(leaf.shape), leaf.dtype, leaf.dim() > 0))
    return arguments


def batch_numbers(leaves: Sequence[tuple[str, Any]]) -> dict[str, float | int]:
    """Return the numbers of a batch, which may differ at each call; a bool is not one."""
    return {name: leaf for name, leaf in leaves if type(leaf) in (int, float)}


def check_batch(leaves: Sequence[tuple[str, Any]]) -> None:
    """Check that no leaf of a batch is an iterator, or an array of another library.

    Raises:
        BatchError: One is.
    """
    for name, leaf in leaves:
        if hasattr(type(leaf), "__next__"):
            raise BatchError(
                "a batch has all its values when the step is called; "
                f"{name} is a {type(leaf).__name__}, which yields its items one by one: pass a "
                "list of them"
            )
        library = type(leaf).__module__.split(".")[0]
        if isinstance(leaf, np.ndarray) or library in ("jax", "jaxlib"):
            raise BatchError(
                "tensors of a batch are PyTorch's; "
                f"{name} is a {type(leaf).__module__}.{type(leaf).__name__}: pass "
                "torch.as_tensor of it"
            )


def check_not_empty(arguments: Sequence[Argument]) -> None:
    """Check that a batch has examples.

    Raises:
        BatchError: A tensor of the batch has none.
    """
    for argument in arguments:
        if argument.is_batch and 0 in argument.shape[:1]:
            raise BatchError(
                "a batch holds at least one example, in the leading dim; got "
                f"{argument.name} of shape {argument.shape}: plan with a batch of the size to be "
                "trained with"
            )
