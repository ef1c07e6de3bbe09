"""`Tensor`: one of the tensors that move, and element types by name."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from shardspec import Layout

from crossmesh.errors import PlanError

DType = str | type[Any] | np.dtype[Any]
"""An element type, as callers write it: a name, numpy's scalar type, or a dtype."""

_EXTENSIONS = {
    "bfloat16": 2,
    "float8_e3m4": 1,
    "float8_e4m3": 1,
    "float8_e4m3b11fnuz": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float6_e2m3fn": 1,
    "float6_e3m2fn": 1,
    "float4_e2m1fn": 1,
    "complex32": 4,
    "bcomplex32": 4,
    "int4": 1,
    "uint4": 1,
    "int2": 1,
    "uint2": 1,
    "int1": 1,
    "uint1": 1,
}
"""What JAX and torch have beyond numpy, and the bytes of an element in memory.

Source: ml_dtypes 0.6, README.md, and `np.dtype(...).itemsize` of its types; the small ones take a
byte each there, however few bits they need. Their names do not need the library.
"""


def dtype_name(dtype: DType) -> str:
    """The name that a plan keeps: equal for equal types, and enough to find the size again.

    Raises:
        PlanError: nothing that numpy or ml_dtypes has, a type without bytes, or one of references
            to Python objects.

    Examples:
        >>> dtype_name(np.float32), dtype_name("bfloat16"), dtype_name(">i4")
        ('float32', 'bfloat16', '>i4')
    """
    if isinstance(dtype, str) and dtype in _EXTENSIONS:
        return dtype
    try:
        if dtype is None:  # numpy would take it for float64
            raise TypeError("None")
        found = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise PlanError(
            "a dtype is numpy's, or the name of one that numpy or ml_dtypes has; "
            f"got {repr(dtype)[:80]}"
        ) from None
    if found.name in _EXTENSIONS:
        return found.name
    if found.itemsize < 1 or found.hasobject or found.names is not None or found.subdtype:
        raise PlanError(
            "an element has plain bytes, at least one, and no fields or references; "
            f"got dtype {found}"
        )
    return found.name if found.isnative and found.kind in "biufc" else found.str


def item_bytes(name: str) -> int:
    """Bytes of an element of the type that `dtype_name` named."""
    return _EXTENSIONS.get(name) or np.dtype(name).itemsize


def can_add(name: str) -> bool:
    """Whether elements are numbers, so that partial results of them can be combined."""
    return name in _EXTENSIONS or np.dtype(name).kind in "biufc"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One of the tensors that move."""

    name: str
    dtype: str
    """As `dtype_name` spells it."""
    src: Layout
    """Where it is."""
    dst: Layout
    """Where it shall be."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        return self.src.shape

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return item_bytes(self.dtype)
