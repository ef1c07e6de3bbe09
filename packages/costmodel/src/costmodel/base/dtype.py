"""Size and family of a dtype, by its name."""

from __future__ import annotations

import re

from costmodel.errors import UnknownDtypeError

# Names of numpy and of ml_dtypes (bfloat16, float8_e4m3fn, int4); the number counts bits. In the
# rates of NVIDIA's datasheets, `tfloat32` is float32 of which the units read 19 bits.
_NAME = re.compile(
    r"(?:(?P<float>tfloat(?=32$)|bfloat|float)|(?P<integer>u?int)|complex)"
    r"(?P<bits>2|4|6|8|16|32|64|128)(?:_\w+)?"
)


def itemsize_bytes(dtype: str) -> float:
    """Bytes of one element; a fraction if several share a byte.

    Raises:
        UnknownDtypeError: The name is not a kind of number followed by its bits.

    Examples:
        >>> [itemsize_bytes(name) for name in ("float32", "bfloat16", "float8_e4m3fn", "int4")]
        [4.0, 2.0, 1.0, 0.5]
    """
    if dtype == "bool":
        return 1.0
    match = _NAME.fullmatch(str(dtype))
    if not match:
        raise UnknownDtypeError(
            "a dtype is a name like 'float32', 'bfloat16', 'float8_e4m3fn', 'int64' or 'bool'; "
            f"got {dtype!r}",
            str(dtype),
        )
    return int(match["bits"]) / 8


def family_of(dtype: str) -> tuple[str, int]:
    """The family of a dtype ("float", "integer", "bool" or "" for others), and its bits.

    Examples:
        >>> [family_of(name) for name in ("bfloat16", "uint8", "bool", "complex64", "string")]
        [('float', 16), ('integer', 8), ('bool', 8), ('', 64), ('', 0)]
    """
    if dtype == "bool":
        return "bool", 8
    match = _NAME.fullmatch(str(dtype))
    if not match:
        return "", 0
    family = "float" if match["float"] else "integer" if match["integer"] else ""
    return family, int(match["bits"])
