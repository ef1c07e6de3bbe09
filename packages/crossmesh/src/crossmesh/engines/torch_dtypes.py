"""Tensors of torch: the plan's names of their dtypes, views as numpy arrays, and their memory."""

from typing import Any

import numpy as np
import numpy.typing as npt

from crossmesh.base.tensor import dtype_name
from crossmesh.errors import MissingExtraError, ShardError

try:
    import torch
except ImportError:
    raise MissingExtraError("crossmesh.engines.torch_dtypes", "torch") from None

_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""By size in bytes, an integer dtype to view elements whose dtype numpy lacks."""


def name_of(dtype: torch.dtype) -> str:
    """The name that a plan uses for an element type.

    Raises:
        PlanError: Plans cannot have this type.

    Examples:
        >>> name_of(torch.float8_e5m2), name_of(torch.quint8)
        ('float8_e5m2', 'quint8')
    """
    return dtype_name(str(dtype).removeprefix("torch."))


def check_plain(name: str, tensor: object) -> None:
    """Refuse anything but a tensor that has its elements in memory, unchanged and at strides.

    Raises:
        ShardError: It is not a tensor, it is sparse or has no data, or its elements are conjugated
            or negated lazily, when they are read.
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
            "the elements of a shard are in memory with their values; got a tensor whose elements "
            f"are conjugated or negated when read, for {name!r}; call resolve_conj() and "
            "resolve_neg()"
        )


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first address that a tensor uses and the one behind its last; equal if it is empty."""
    start = tensor.data_ptr()
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size() * (tensor.numel() > 0)


def as_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The same memory as an array of the same dtype, or of raw bytes if numpy lacks the dtype.

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


def writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same memory, marked as writable, because torch warns of tensors of read-only memory."""
    return array if array.flags.writeable else np.asarray(_Writable(array))


class _Writable:
    """Memory that numpy treats as writable, and keeps alive."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
