"""Checksums of tensors, of calls, and of what they are computed from; equal in all processes."""

from __future__ import annotations

from typing import Any

import torch

from frontends.base.checksums import checksum
from frontends.torch.base.calls import Call, Operand
from frontends.torch.base.host import Expression, Number

Tensor = torch.Tensor


def checksum_of(value: Any) -> int:
    """A CRC-32 of a value, which is equal in all processes.

    Args:
        value: What `frontends.base.checksums` knows, tensors, and calls of a program.
    """
    return checksum(value, _opened)


def _opened(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _numbers_of(value)
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return str(value)
    if isinstance(value, Call):
        return str(value.target), value.arguments, value.keywords
    if isinstance(value, Operand):
        return "operand", value.place
    if isinstance(value, Number):
        return getattr(value.function, "__name__", value.function), value.arguments
    if isinstance(value, Expression):  # torch numbers its symbols anew in each capture
        new = {symbol: symbol.func(f"x{i}") for i, symbol in enumerate(value.symbols)}
        return str(value.text.xreplace(new))
    return value


def _numbers_of(tensor: Tensor) -> Any:
    """The bytes of a tensor with its type; of one without numbers here, type and shape."""
    if tensor.is_meta or tensor.layout is not torch.strided:
        return str(tensor.dtype), list(tensor.shape)
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    flat = torch.view_as_real(flat).view(-1) if flat.is_complex() else flat
    return str(tensor.dtype), list(tensor.shape), flat.view(torch.uint8).numpy()
