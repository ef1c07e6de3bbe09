"""The tensors and numbers that a training step reads, named as the user would write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from frontends.errors import BatchError, PlanError, UnsupportedStepError
from frontends.torch.base.compat.state import make_state, with_tensors
from frontends.torch.base.compat.values import place_of
from frontends.torch.base.frozen import Frozen, freeze
from frontends.torch.base.trees import Leaf, flatten

Tensor = torch.Tensor

_HOW = ("foreach", "fused", "capturable")
"""Settings of PyTorch's optimizers that say how an update is computed, and not what."""


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
    """Whether it is handed over at each call, though it is no batch: a number such as a learning
    rate, or a tensor that is neither of the model nor of the optimizer."""


def dtype_name(dtype: torch.dtype) -> str:
    """A type as numpy calls it."""
    return str(dtype).removeprefix("torch.")


class State:
    """What a step keeps from one run to the next, and the numbers that it takes from outside.

    Args:
        model: Any module.
        optimizer: One of its parameters; it is asked to make its state if it has none yet.

    Raises:
        PlanError: One of the two is something else.
        UnsupportedStepError: The optimizer updates other parameters, or tensors share memory.
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
        """All that is kept, by the user's name."""

        self.tensors |= {f"buffers[{n!r}]": b for n, b in model.named_buffers()}
        for name, parameter in parameters.items():
            for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                if isinstance(value, Tensor):
                    self.tensors[f"optimizer[{key!r}][{name!r}]"] = value
        self._check_memory()

    @property
    def numbers(self) -> dict[str, float | int]:
        """The numbers of `param_groups` as they are now, by what the user calls them."""
        found: dict[str, float | int] = {}
        for group, key, value in self._settings():
            items = [("", value)]
            if isinstance(value, tuple | list):
                items = [(f"[{i}]", item) for i, item in enumerate(value)]
            for where, item in items:
                if type(item) in (int, float):
                    found[f"optimizer.param_groups[{group}][{key!r}]{where}"] = item
        return found

    @property
    def others(self) -> tuple[Frozen, ...]:
        """What else is in `param_groups`, and which parameters: to be compared with later."""
        groups = self.optimizer.param_groups
        found = [freeze([id(p) for p in group["params"]]) for group in groups]
        for _, key, value in self._settings():
            if isinstance(value, tuple | list):
                found.append(freeze([key, *(_unless_number(item) for item in value)]))
            else:
                found.append(freeze([key, _unless_number(value)]))
        return tuple(found)

    def is_dense_or_not(self) -> bool:
        """Whether the optimizer does with sparse gradients what it does with dense ones."""
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
        """Each number of the state is there once: tied parameters are one tensor."""
        there: dict[int, list[tuple[int, int, str]]] = {}
        for name, tensor in self.tensors.items():
            if tensor.layout != torch.strided:
                raise UnsupportedStepError(
                    f"a step keeps tensors that are dense; {name} has layout {tensor.layout}: "
                    "make it dense"
                )
            if tensor.device.type == "meta" or not tensor.numel():
                continue
            memory, (begin, shape, stride) = place_of(tensor)
            end = begin + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
            item = tensor.element_size()
            there.setdefault(memory, []).append((begin * item, end * item, name))
        for spans in there.values():
            spans.sort()
            for (_, end, name), (begin, _, other) in pairwise(spans):
                if begin < end:
                    raise UnsupportedStepError(
                        "each tensor of the state has memory of its own; "
                        f"{name} and {other} share some: tie them by the same parameter, as "
                        "model.head.weight = model.embedding.weight does"
                    )

    def _make_state(self) -> None:
        """Let the optimizer make what it makes before its first update, if it can be asked to."""
        optimizer = self.optimizer
        if not optimizer.state:
            make_state(optimizer)
        for group in optimizer.param_groups:
            if group.get("momentum") and isinstance(optimizer, torch.optim.SGD):
                self._make_momentum(group)

    def _make_momentum(self, group: Mapping[str, Any]) -> None:
        """SGD starts its momentum with the first gradient; zeros do the same without dampening."""
        for parameter in group["params"]:
            state = self.optimizer.state[parameter]
            is_first = parameter.requires_grad and state.get("momentum_buffer") is None
            if is_first and not group["dampening"]:
                state["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)

    @contextmanager
    def given(
        self, numbers: Mapping[str, Any]
    ) -> Iterator[Callable[[], dict[tuple[int, str], Any]]]:
        """The optimizer with other numbers, and updates written as plain operators meanwhile.

        Yields:
            What tells which settings were changed since, by group and key.
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
                    "a step keeps the groups of its optimizer; this one changes them: add them "
                    "before the step is called"
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
        """The objects that stand for the state while it is captured, by name.

        They are the user's own, but for those on the meta device: gradients of these would be
        there, too, and meet those of the batch. Such ones are replaced in model and optimizer.
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
    """Whether a tensor of the state is a number that a model or optimizer counts with."""
    return not name.startswith("params") and tensor.numel() == 1 and not tensor.is_meta


def _unless_number(value: Any) -> Any:
    return type(value) if type(value) in (int, float) else value


def _token(tensor: Tensor) -> Tensor:
    """An object for a tensor without memory, which takes hardly any itself."""
    made = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


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
                f"{name or 'the model'} is compiled by torch.jit: take the module that it was "
                "made of"
            )
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and torch.nn.parameter.is_lazy(tensor):
                raise UnsupportedStepError(
                    "a step is planned for parameters that have shapes; "
                    f"{key} of {name or 'the model'} gets one at the first call of the model: call "
                    "it once with a batch before"
                )


def name_leaves(batch: Any) -> list[tuple[str, Any]]:
    """The leaves of a batch and what the user would call them."""
    return named(flatten(batch)[0])


def named(leaves: Sequence[Leaf]) -> list[tuple[str, Any]]:
    """Leaves of a batch under what the user would call them."""
    return [("batch" + leaf.path, leaf.value) for leaf in leaves]


def describe(leaves: Sequence[tuple[str, Any]]) -> list[Argument]:
    """The tensors of a batch; those of shape () belong to all examples.

    Raises:
        BatchError: A tensor is not dense.
    """
    found = []
    for name, leaf in leaves:
        if not isinstance(leaf, Tensor):
            continue
        if leaf.layout != torch.strided:
            raise BatchError(
                f"tensors of a batch are dense; {name} has layout {leaf.layout}: call to_dense()"
            )
        found.append(Argument(name, tuple(leaf.shape), leaf.dtype, leaf.dim() > 0))
    return found


def batch_numbers(leaves: Sequence[tuple[str, Any]]) -> dict[str, float | int]:
    """The numbers of a batch, which may be others at each call; booleans are no numbers."""
    return {name: leaf for name, leaf in leaves if type(leaf) in (int, float)}
