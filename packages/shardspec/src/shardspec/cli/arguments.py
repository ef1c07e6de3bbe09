"""Parses arguments of command lines: numbers, meshes, shapes, devices, chunkings."""

import argparse
import math
import re
from itertools import chain

from shardspec.base.chunking import Chunking

_NUMBER = r"[0-9]{1,18}"
_SIZES = re.compile(rf"{_NUMBER}(?:[x,]{_NUMBER})*", re.ASCII)
_AXES = re.compile(rf"[^=,\s]+={_NUMBER}(?:,[^=,\s]+={_NUMBER})*", re.ASCII)
_IDS = re.compile(rf"{_NUMBER}(?:-{_NUMBER})?(?:,{_NUMBER}(?:-{_NUMBER})?)*", re.ASCII)
_CHUNKS = re.compile(rf"{_NUMBER}(?:\+{_NUMBER})*", re.ASCII)
_MAX_DEVICES = 1 << 20

ITEMSIZES = {
    "bool": 1,
    **dict.fromkeys(["int8", "uint8", "float8_e4m3fn", "float8_e5m2"], 1),
    **dict.fromkeys(["int16", "uint16", "float16", "bfloat16"], 2),
    **dict.fromkeys(["int32", "uint32", "float32"], 4),
    **dict.fromkeys(["int64", "uint64", "float64", "complex64"], 8),
    "complex128": 16,
}
"""Bytes per element, by the name of its type."""


def mesh_axes(text: str) -> dict[str, int]:
    """Lengths of a mesh's axes by name; the names are x, y, z and w if the text has only lengths.

    Examples:
        >>> mesh_axes("2x4"), mesh_axes("data=2,model=4")
        ({'x': 2, 'y': 4}, {'data': 2, 'model': 4})
    """
    if _SIZES.fullmatch(text):
        lengths = sizes(text)
        names = "xyzw" if len(lengths) <= 4 else [f"axis{i}" for i in range(len(lengths))]
        pairs = list(zip(names, lengths, strict=False))
    elif _AXES.fullmatch(text):
        pairs = [
            (name, int(length)) for name, length in (axis.split("=") for axis in text.split(","))
        ]
    else:
        raise argparse.ArgumentTypeError(
            f"a mesh is written 2x4, or data=2,model=4 with the names of its axes; got {text!r}"
        )
    if len(dict(pairs)) < len(pairs):
        raise argparse.ArgumentTypeError(f"the axes of a mesh have different names; got {text!r}")
    if math.prod(length for _, length in pairs) > _MAX_DEVICES:
        raise argparse.ArgumentTypeError(
            f"a mesh has at most {_MAX_DEVICES} devices here; got {text!r}"
        )
    return dict(pairs)


def sizes(text: str) -> tuple[int, ...]:
    """The shape of a tensor; `()` for a scalar.

    Examples:
        >>> sizes("8x4"), sizes("8,4"), sizes("()")
        ((8, 4), (8, 4), ())
    """
    if text == "()":
        return ()
    if not _SIZES.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"a shape is written 8x4, or () for a scalar; got {text!r}"
        )
    return tuple(map(int, re.split("[x,]", text)))


def device_ids(text: str) -> tuple[int, ...]:
    """Device ids; ranges include both ends.

    Examples:
        >>> device_ids("3,1,8-10")
        (3, 1, 8, 9, 10)
    """
    if not _IDS.fullmatch(text):
        raise argparse.ArgumentTypeError(f"device ids are written 3,1,8-10; got {text!r}")
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    if any(part[0] > part[-1] for part in ends):
        raise argparse.ArgumentTypeError(f"a range of device ids rises, as 8-10; got {text!r}")
    if sum(part[-1] - part[0] + 1 for part in ends) > _MAX_DEVICES:
        raise argparse.ArgumentTypeError(f"at most {_MAX_DEVICES} devices here; got {text!r}")
    return tuple(chain.from_iterable(range(part[0], part[-1] + 1) for part in ends))


def chunkings(text: str) -> tuple[Chunking | str, ...]:
    """A chunking for all dims, or one for each: the name of a rule, or sizes joined by `+`.

    Examples:
        >>> chunkings("balanced"), chunkings("3+2+2,ceil")
        (('balanced',), ((3, 2, 2), 'ceil'))
    """
    return tuple(
        tuple(map(int, rule.split("+"))) if _CHUNKS.fullmatch(rule) else rule
        for rule in text.split(",")
    )


def natural(text: str) -> int:
    """An integer from 0 on."""
    if not re.fullmatch(_NUMBER, text, re.ASCII):
        raise argparse.ArgumentTypeError(f"this is a whole number from 0 on; got {text!r}")
    return int(text)


def positive(text: str) -> int:
    """An integer from 1 on."""
    if not re.fullmatch(_NUMBER, text, re.ASCII) or not int(text):
        raise argparse.ArgumentTypeError(f"this is a whole number from 1 on; got {text!r}")
    return int(text)


def number(text: str, what: str = "this is a positive number, such as 0.2") -> float:
    """A positive number, such as 0.2 or 1e3.

    Args:
        text: The text of the argument.
        what: What is expected, for the error.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{what}; got {text!r:.200}")
    return value


def seconds(text: str) -> float:
    """A time in seconds."""
    return number(text, "a time is a number of seconds > 0")


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(text.split(","))
