"""What the command line's arguments say: layouts, shapes, rates; errors in one line."""

import argparse
import math
import re
from typing import NamedTuple

from shardspec import Mesh, ShardspecError, Spec

_NUMBER = r"[0-9]{1,18}"
_SIZES = re.compile(rf"{_NUMBER}(?:[x,]{_NUMBER})*", re.ASCII)
_IDS = re.compile(rf"{_NUMBER}(?:-{_NUMBER})?(?:,{_NUMBER}(?:-{_NUMBER})?)*", re.ASCII)
_PLACED = re.compile(r"(?P<spec>.+?)\s+on\s+(?P<mesh>\S+)(?:\s+at\s+(?P<devices>\S+))?\s*")

_MAX_DEVICES = 4096
"""Of a mesh; a million is a slip of the finger, and would take hours."""


class SpecOnMesh(NamedTuple):
    """A spec, and the mesh that it is on."""

    spec: Spec
    lengths: tuple[int, ...]
    devices: tuple[int, ...] | None
    """None: not said."""

    def mesh(self, first: int) -> Mesh:
        """The mesh, with devices from `first` on if none are said."""
        n = math.prod(self.lengths)
        devices = self.devices if self.devices is not None else tuple(range(first, first + n))
        return Mesh(self.lengths, tuple(f"axis{i}" for i in range(len(self.lengths))), devices)


def placed(text: str) -> SpecOnMesh:
    """A spec on a mesh, and maybe its devices.

    Examples:
        >>> placed("S0R on 2x2")
        SpecOnMesh(spec=Spec.parse('S0R'), lengths=(2, 2), devices=None)
        >>> placed("S0R on 2x2 at 4-5,8-9").devices
        (4, 5, 8, 9)
    """
    match = _PLACED.fullmatch(text)
    if not match or not _SIZES.fullmatch(match["mesh"]):
        raise argparse.ArgumentTypeError(
            f"a layout is written 'S0R on 2x2', or 'S0R on 2x2 at 4-7' with devices; got {text!r}"
        )
    lengths = tuple(map(int, re.split("[x,]", match["mesh"])))
    if math.prod(lengths) > _MAX_DEVICES:
        raise argparse.ArgumentTypeError(
            f"a mesh has at most {_MAX_DEVICES:,} devices here, call plan for more; "
            f"got {match['mesh']}"
        )
    try:
        spec = Spec.parse(match["spec"])
    except ShardspecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return SpecOnMesh(spec, lengths, _devices(match["devices"]) if match["devices"] else None)


def _devices(text: str) -> tuple[int, ...]:
    if not _IDS.fullmatch(text):
        raise argparse.ArgumentTypeError(f"devices are written 0-3,8; got {text!r}")
    found: list[int] = []
    for part in text.split(","):
        ends = [int(end) for end in part.split("-")]
        if ends[-1] < ends[0] or ends[-1] - ends[0] + len(found) >= _MAX_DEVICES:
            raise argparse.ArgumentTypeError(
                f"a range of devices rises, to at most {_MAX_DEVICES:,} of them; got {text!r}"
            )
        found += range(ends[0], ends[-1] + 1)
    return tuple(found)


def sizes(text: str) -> tuple[int, ...]:
    """A tensor's shape; `()` is a scalar's.

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


def positive(text: str) -> int:
    """An integer from 1 on."""
    if not re.fullmatch(_NUMBER, text, re.ASCII) or not int(text):
        raise argparse.ArgumentTypeError(f"it is a whole number from 1 on; got {text!r}")
    return int(text)


def natural(text: str) -> int:
    """An integer from 0 on."""
    if not re.fullmatch(_NUMBER, text, re.ASCII):
        raise argparse.ArgumentTypeError(f"it is a whole number from 0 on; got {text!r}")
    return int(text)


def number(text: str) -> float:
    """A positive number, such as 0.2 or 1e3."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"it is a positive number, such as 0.2; got {text!r}")
    return value
