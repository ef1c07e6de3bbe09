"""Tensors and numbers without values, which replace real ones while a step is captured.

Private interfaces of torch 2.13 in use: `_subclasses.fake_tensor`, errors and `evaluate_expr` of
`fx.experimental.symbolic_shapes`, the node of a symbolic number, the stack of active modes
(`utils._python_dispatch`), and the address of a storage, which tells which tensors share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import _disable_current_modes

from frontends.errors import UnsupportedStepError

Tensor = torch.Tensor

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Types of numbers without values."""

DATA_DEPENDENT_SHAPES = (DynamicOutputShapeException,)
"""Exceptions of tracing where a shape depends on numbers that are not available yet."""

DATA_DEPENDENT = (
    DataDependentOutputException,
    GuardOnDataDependentSymNode,
    *DATA_DEPENDENT_SHAPES,
)
"""The same, and exceptions where Python asks for such a number."""


def is_stand_in(tensor: Tensor) -> bool:
    """Return whether a tensor is a stand-in, which has no memory."""
    return isinstance(tensor, FakeTensor)


def is_value(value: Any) -> bool:
    """Return whether it is a tensor or number of the traced program, which has no value yet."""
    return isinstance(value, (FakeTensor, *SYMBOLS))


def stand_in_of(tensor: Tensor) -> Tensor:
    """Return a new stand-in; one of a meta tensor is on the CPU, where it will have its values."""
    device = "cpu" if tensor.device.type == "meta" else tensor.device
    if tensor.numel() > 1 and not any(tensor.stride()):  # expanded: a placeholder without memory
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def place_of(tensor: Tensor) -> tuple[int, Any]:
    """Return a key of the tensor's memory, and one of the part of that memory that it uses.

    Raises:
        UnsupportedStepError: The tensor is sparse.
    """
    if tensor.layout != torch.strided:
        raise UnsupportedStepError(
            f"tensors of a step are dense; this one makes one of layout {tensor.layout}: make it "
            "dense, as sparse=False of nn.Embedding does"
        )
    where = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    return tensor.untyped_storage()._cdata, where


def known_number(number: Any) -> Any:
    """Return the value of a symbolic number that is known before the step runs; it becomes a guard.

    Raises:
        GuardOnDataDependentSymNode: It is not known.
    """
    if not isinstance(number, SYMBOLS):
        return number
    value = number.node.shape_env.evaluate_expr(number.node.expr)
    return number.node.pytype(value)


def answer(number: Any, condition: Callable[[Any], Any]) -> bool:
    """Return the answer that Python gets to a condition on a number without a value.

    Args:
        number: One of torch's symbolic numbers.
        condition: From the number's sympy expression to a sympy condition.
    """
    return bool(number.node.shape_env.evaluate_expr(condition(number.node.expr)))


def constant(numbers: Sequence[int]) -> Tensor:
    """Return a real tensor, whose values operators in C++ can read while others are stand-ins."""
    with unwatched():
        return torch.tensor(numbers)


def unwatched() -> AbstractContextManager[None]:
    """Let operators inside the `with` run on real tensors."""
    return _disable_current_modes()
