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

_OPAQUE = {
    **dict.fromkeys(("bits8", "bits1x8", "bits2x4", "bits4x2", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("int3", "int5", "int6", "int7", "uint3", "uint5", "uint6", "uint7"), 1),
    **dict.fromkeys(("qint8", "quint8", "quint4x2", "quint2x4"), 1),
    "bits16": 2,
    "qint32": 4,
}
"""What torch alone has, and the bytes of an element: nobody adds them [torch 2.13]."""


def dtype_name(dtype: DType) -> str:
    """The name that a plan keeps: equal for equal types, and enough to find the size again.

    Raises:
        PlanError: nothing that numpy, ml_dtypes or torch has, a type without bytes, one of fields,
            or one of references to Python objects.

    Examples:
        >>> dtype_name(np.float32), dtype_name("bfloat16"), dtype_name(">i4")
        ('float32', 'bfloat16', '>i4')
    """
    if isinstance(dtype, str) and (dtype in _EXTENSIONS or dtype in _OPAQUE):
        return dtype
    try:
        if dtype is None:  # numpy would take it for float64
            raise TypeError("None")
        found = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise PlanError(
            "a dtype is numpy's, or the name of one that numpy, ml_dtypes or torch has; "
            f"got {repr(dtype)[:80]}"
        ) from None
    if found.name in _EXTENSIONS and found.isnative:
        return found.name
    if found.kind == "V" and found.type is not np.void:
        raise PlanError(
            "of the types that libraries register with numpy, a plan has those of ml_dtypes, in "
            f"the machine's byte order; got {found!r} ({found.str}); view it as its bytes, as "
            f"dtype V{found.itemsize}"
        )
    plain = found.kind in "biufcmMSUV" and found.names is None and not found.subdtype
    if not plain or found.itemsize < 1 or found.hasobject:
        raise PlanError(
            "an element has plain bytes, at least one, and no fields or references; "
            f"got dtype {found}"
        )
    return found.name if found.isnative and found.kind in "biufc" else found.str


def item_bytes(name: str) -> int:
    """Bytes of an element of the type that `dtype_name` named."""
    return _EXTENSIONS.get(name) or _OPAQUE.get(name) or np.dtype(name).itemsize


def can_add(name: str) -> bool:
    """Whether elements are numbers, so that partial results of them can be combined."""
    return name in _EXTENSIONS or (name not in _OPAQUE and np.dtype(name).kind in "biufc")


def holds(name: str, dtype: np.dtype[Any]) -> bool:
    """Whether an array of this type holds elements of the type that `dtype_name` named.

    It does if that is its type, byte order included; or if it is raw bytes, `V2` for two of them,
    by which callers say that they are such elements, where numpy lacks the type.

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
