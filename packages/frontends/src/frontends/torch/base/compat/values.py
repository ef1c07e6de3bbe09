"""Tensors and numbers without values, which stand for real ones while a step is captured.

Of torch 2.13 it touches `_subclasses.fake_tensor`, errors and `evaluate_expr` of
`fx.experimental.symbolic_shapes`, the node of a symbolic number, the modes that are switched on
(`utils._python_dispatch`), and the address of a storage, by which tensors share it.
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
"""What tracing raises where a shape follows from numbers that are not there yet."""

DATA_DEPENDENT = (
    DataDependentOutputException,
    GuardOnDataDependentSymNode,
    *DATA_DEPENDENT_SHAPES,
)
"""And where Python asks for such a number, too."""


def is_stand_in(tensor: Tensor) -> bool:
    """Whether a tensor has no memory."""
    return isinstance(tensor, FakeTensor)


def is_value(value: Any) -> bool:
    """Whether it is a tensor or number that a program makes, and that has no value yet."""
    return isinstance(value, (FakeTensor, *SYMBOLS))


def stand_in_of(tensor: Tensor) -> Tensor:
    """What is on the meta device is on the CPU there, as it will be when it has values."""
    device = "cpu" if tensor.device.type == "meta" else tensor.device
    if tensor.numel() > 1 and not any(tensor.stride()):  # an object for one without memory
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


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


def known_number(number: Any) -> Any:
    """One of Python's, which is a guard, from one of torch's that is known before the step runs.

    Raises:
        GuardOnDataDependentSymNode: It is not known.
    """
    if not isinstance(number, SYMBOLS):
        return number
    found = number.node.shape_env.evaluate_expr(number.node.expr)
    return number.node.pytype(found)


def answer(number: Any, condition: Callable[[Any], Any]) -> bool:
    """What Python is told of a number without a value.

    Args:
        number: Of torch's.
        condition: Makes a condition of sympy's.
    """
    return bool(number.node.shape_env.evaluate_expr(condition(number.node.expr)))


def constant(numbers: Sequence[int]) -> Tensor:
    """A tensor in memory, which operators in C++ may look into while others have stand-ins."""
    with unwatched():
        return torch.tensor(numbers)


def unwatched() -> AbstractContextManager[None]:
    """Real tensors are real meanwhile."""
    return _disable_current_modes()
