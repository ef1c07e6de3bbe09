"""The tensors that a training step reads, named as the user would write them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from frontends.errors import UnsupportedStepError
from frontends.torch import _compat

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Argument:
    """One tensor that the step reads."""

    name: str
    """As the user would write it: `params['h.0.attn.weight']`, `batch['input_ids']`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_batch: bool
    """Whether its leading dim holds the examples."""

    setting: tuple[int, str] | None = None
    """Of a number that the user may change between steps, such as a learning rate: its group in
    `optimizer.param_groups`, and its key there."""


def dtype_name(dtype: torch.dtype) -> str:
    """A type as numpy calls it."""
    return str(dtype).removeprefix("torch.")


class State:
    """What a step keeps from one run to the next, and the numbers that it takes from outside.

    Args:
        model: Any module.
        optimizer: One of its parameters; it is asked to make its state if it has none yet.

    Raises:
        UnsupportedStepError: The optimizer has state that cannot be kept in tensors, or that is
            not there before its first update.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
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
                elif value is not None:
                    raise UnsupportedStepError(
                        "what an optimizer keeps for a parameter must be tensors; "
                        f"{type(optimizer).__name__} keeps {key}={value!r} for {name}: keep it in "
                        "a tensor of shape ()"
                    )

    @property
    def settings(self) -> dict[tuple[int, str], float]:
        """The learning rates as they are now, by their places in `param_groups`."""
        groups = self.optimizer.param_groups
        return {(index, "lr"): float(g["lr"]) for index, g in enumerate(groups) if "lr" in g}

    def _check_groups(self) -> None:
        for group in self.optimizer.param_groups:
            if any(id(p) not in self.name_of for p in group["params"]):
                raise UnsupportedStepError(
                    "an optimizer updates parameters of the model that is parallelized; one of "
                    f"{type(self.optimizer).__name__} updates others, too"
                )

    def _make_state(self) -> None:
        optimizer = self.optimizer
        if not optimizer.state and not _compat.make_state(optimizer):
            raise UnsupportedStepError(
                "an optimizer's state must be there before the step is traced; "
                f"{type(optimizer).__name__} has none yet: run one step with it first"
            )
        for group in optimizer.param_groups:
            if group.get("momentum") and isinstance(optimizer, torch.optim.SGD):
                self._make_momentum(group)

    def _make_momentum(self, group: Mapping[str, Any]) -> None:
        """SGD starts its momentum with the first gradient; zeros do the same without dampening."""
        for parameter in group["params"]:
            state = self.optimizer.state[parameter]
            if parameter.requires_grad and state.get("momentum_buffer") is None:
                if group["dampening"]:
                    raise UnsupportedStepError(
                        "SGD with dampening treats its first step differently; got "
                        f"dampening={group['dampening']}: run one step first, or dampen nothing"
                    )
                state["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)

    @contextmanager
    def replaced(
        self, tensors: Mapping[str, Tensor], settings: Mapping[tuple[int, str], Any]
    ) -> Iterator[dict[str, Tensor]]:
        """Model and optimizer with other tensors and settings.

        Yields:
            A mapping that holds, after the context's body, the tensors as the body left them.
        """
        model, optimizer = self.model, self.optimizer
        parameters = {n: tensors[f"params[{n!r}]"] for n in self.name_of.values()}
        buffers = {n: tensors[f"buffers[{n!r}]"] for n, _ in model.named_buffers()}
        saved = optimizer.state, optimizer.param_groups
        groups = []
        for index, group in enumerate(saved[1]):
            changed = {key: value for (place, key), value in settings.items() if place == index}
            changed |= {k: False for k in ("foreach", "fused", "capturable") if k in group}
            mine = [parameters[self.name_of[id(p)]] for p in group["params"]]
            groups.append({**group, **changed, "params": mine})
        kept: defaultdict[Tensor, Any] = defaultdict(dict)
        for p, values in saved[0].items():
            name = self.name_of[id(p)]
            kept[parameters[name]] = {
                key: tensors.get(f"optimizer[{key!r}][{name!r}]", value)
                for key, value in values.items()
            }
        left: dict[str, Tensor] = {}
        optimizer.state, optimizer.param_groups = kept, groups
        try:
            with _compat.with_tensors(model, {**parameters, **buffers}):
                yield left
                left |= {f"params[{n!r}]": p for n, p in parameters.items()}
                left |= {f"buffers[{n!r}]": b for n, b in model.named_buffers()}
                for name, parameter in parameters.items():
                    for key, value in optimizer.state.get(parameter, {}).items():
                        left[f"optimizer[{key!r}][{name!r}]"] = value
        finally:
            optimizer.state, optimizer.param_groups = saved


def name_leaves(batch: Any) -> list[tuple[str, Any]]:
    """The leaves of a batch and what the user would call them."""
    leaves, _ = pytree.tree_flatten_with_path(batch)
    return [("batch" + pytree.keystr(path), leaf) for path, leaf in leaves]


def describe(named: Sequence[tuple[str, Any]]) -> list[Argument]:
    """The tensors of a batch; those of shape () belong to all examples."""
    return [
        Argument(name, tuple(leaf.shape), leaf.dtype, leaf.dim() > 0)
        for name, leaf in named
        if isinstance(leaf, Tensor)
    ]
