"""Tensors of torch: as plans name their types, as numpy carries them, and what memory they use."""

from typing import Any

import numpy.typing as npt

from crossmesh.base.tensor import dtype_name
from crossmesh.errors import MissingExtraError, ShardError

try:
    import torch
except ImportError:
    raise MissingExtraError("crossmesh.engines.torch_dtypes", "torch") from None

_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Integers whose bytes are those of elements of types that numpy has not."""


def name_of(dtype: torch.dtype) -> str:
    """The plan's name of an element type.

    Raises:
        PlanError: one that plans do not know.

    Examples:
        >>> name_of(torch.float8_e5m2), name_of(torch.quint8)
        ('float8_e5m2', 'quint8')
    """
    return dtype_name(str(dtype).removeprefix("torch."))


def check_plain(name: str, tensor: object) -> None:
    """Refuse what does not have its elements in memory, one after the other, as they are.

    Raises:
        ShardError: no tensor, a sparse one, one without data, or a lazy conjugate or negative.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ShardError(f"a shard is a torch.Tensor; got {type(tensor).__name__} for {name!r}")
    if tensor.layout != torch.strided or tensor.is_meta:
        raise ShardError(
            "a shard has its elements in memory, at strides; "
            f"got a {tensor.layout} tensor on {tensor.device} for {name!r}; make it dense"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise ShardError(
            "a shard has its elements in memory as they are; got a tensor that is conjugate or "
            f"negative when it is read, for {name!r}; resolve_conj() and resolve_neg() it"
        )


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first address that a tensor uses and the one behind the last; equal if it has none."""
    start = tensor.data_ptr()
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size() * (tensor.numel() > 0)


def as_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The same memory as an array of the same type, or of raw bytes where numpy lacks it.

    Examples:
        >>> as_array(torch.ones(3)).dtype, as_array(torch.ones(3, dtype=torch.bfloat16)).dtype
        (dtype('float32'), dtype('V2'))
    """
    view: npt.NDArray[Any]
    try:
        view = tensor.numpy()
    except TypeError:  # such as bfloat16
        size = tensor.element_size()
        view = tensor.view(_SAME_SIZE[size]).numpy().view(f"V{size}")
    return view
