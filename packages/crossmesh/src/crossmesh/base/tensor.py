"""`Tensor`: one of the tensors of a plan; and the names of element types."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from shardspec import Layout

from crossmesh.errors import PlanError

DType = str | type[Any] | np.dtype[Any]
"""An element type as callers write it: a name, a scalar type of numpy, or a dtype."""

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
"""Number types that JAX or torch have and numpy lacks, with the bytes of an element in memory.

Source: ml_dtypes 0.6, README.md, and `np.dtype(...).itemsize` of its types; an element of a small
type takes a whole byte there, however few bits it needs. To use the names, the library need not be
installed.
"""

_OPAQUE = {
    **dict.fromkeys(("bits8", "bits1x8", "bits2x4", "bits4x2", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("int3", "int5", "int6", "int7", "uint3", "uint5", "uint6", "uint7"), 1),
    **dict.fromkeys(("qint8", "quint8", "quint4x2", "quint2x4"), 1),
    "bits16": 2,
    "qint32": 4,
}
"""Types that only torch has, with the bytes of an element; they cannot be added [torch 2.13]."""


def dtype_name(dtype: DType) -> str:
    """The name that a plan uses for an element type.

    Equal types have equal names, and `item_bytes` finds the size by the name.

    Raises:
        PlanError: It is no type of numpy, ml_dtypes or torch, its elements have no bytes, it has
            fields, or its elements are references to Python objects.

    Examples:
        >>> dtype_name(np.float32), dtype_name("bfloat16"), dtype_name(">i4")
        ('float32', 'bfloat16', '>i4')
    """
    if isinstance(dtype, str) and (dtype in _EXTENSIONS or dtype in _OPAQUE):
        return dtype
    try:
        if dtype is None:  # numpy would take it for float64
            raise TypeError("None")
        known = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise PlanError(
            "a dtype is numpy's, or the name of one that numpy, ml_dtypes or torch has; "
            f"got {repr(dtype)[:80]}"
        ) from None
    if known.name in _EXTENSIONS and known.isnative:
        return known.name
    if known.kind == "V" and known.type is not np.void:
        raise PlanError(
            "of the types that libraries register with numpy, a plan can have those of ml_dtypes, "
            f"in the byte order of the machine; got {known!r} ({known.str}); view the elements as "
            f"raw bytes, with dtype V{known.itemsize}"
        )
    plain = known.kind in "biufcmMSUV" and known.names is None and not known.subdtype
    if not plain or known.itemsize < 1 or known.hasobject:
        raise PlanError(
            "an element has plain bytes, at least one, and no fields or references; "
            f"got dtype {known}"
        )
    return known.name if known.isnative and known.kind in "biufc" else known.str


def item_bytes(name: str) -> int:
    """Bytes of an element of the type with this name, as `dtype_name` returns it."""
    return _EXTENSIONS.get(name) or _OPAQUE.get(name) or np.dtype(name).itemsize


def can_add(name: str) -> bool:
    """Whether the elements are numbers, so that partial results can be combined."""
    return name in _EXTENSIONS or (name not in _OPAQUE and np.dtype(name).kind in "biufc")


def holds(name: str, dtype: np.dtype[Any]) -> bool:
    """Whether an array of dtype `dtype` can hold elements of the type called `name`.

    It can if that is its dtype, byte order included. It also can if it holds raw bytes of the same
    size, such as `V2` for two bytes: callers use these where numpy lacks the type.

    Examples:
        >>> [holds("bfloat16", np.dtype(code)) for code in ("V2", "float16", "int16", "V4")]
        [True, False, False, False]
        >>> holds("int32", np.dtype("<i4")), holds("int32", np.dtype(">i4"))
        (True, False)
    """
    if dtype.type is np.void and dtype.names is None:
        return dtype.itemsize == item_bytes(name)
    try:
        return dtype_name(dtype) == name
    except PlanError:
        return False


@dataclass(frozen=True, slots=True)
class Tensor:
    """One of the tensors of a plan."""

    name: str
    dtype: str
    """The name of its element type, as `dtype_name` returns it."""
    src: Layout
    """Its layout before the transfer."""
    dst: Layout
    """Its layout after the transfer."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        return self.src.shape

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return item_bytes(self.dtype)
