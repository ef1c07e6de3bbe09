"""State of models and optimizers: replace tensors for a while, create state before an update.

Private interfaces of torch 2.13 in use: `_reparametrize_module` of `nn.utils.stateless`, and of
optimizers `_init_group`, which creates their state, and how hooks wrap `step`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch.nn.utils.stateless import _reparametrize_module

Tensor = torch.Tensor


@contextlib.contextmanager
def with_tensors(model: torch.nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Let a model have other parameters and buffers inside the `with`, tied as its own are."""
    with _reparametrize_module(model, dict(tensors), tie_weights=True):
        yield


class _Initialized(Exception):  # noqa: N818, it is no error
    """The optimizer has created its state."""


def make_state(optimizer: torch.optim.Optimizer) -> bool:
    """Let an optimizer create the state that it has before its first update; update nothing.

    Returns:
        Whether the optimizer allows that, as PyTorch's own do.
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
    """Return `step` of a PyTorch optimizer without hooks; None if the user's class defines it."""
    step: Any = kind.step  # type: ignore[attr-defined]
    if hasattr(step, "hooked"):  # wrapped in its class, or in a class that inherits it
        step = step.__wrapped__
    return step if step.__module__.startswith("torch.optim") else None
