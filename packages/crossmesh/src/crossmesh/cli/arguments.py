"""Parses the arguments of the command line: layouts and devices; errors are one line each."""

import argparse
import math
import re
from typing import NamedTuple

from shardspec import Mesh, ShardspecError, Spec
from shardspec.cli.arguments import device_ids, sizes

_NUMBER = r"[0-9]{1,18}"
_PLACED = re.compile(
    rf"(?P<spec>.+?)\s+on\s+(?P<mesh>{_NUMBER}(?:[x,]{_NUMBER})*)(?:\s+at\s+(?P<devices>\S+))?\s*"
)

_MAX_DEVICES = 4096
"""The most devices of a mesh; a million would be a typing error, and would take hours."""


class SpecOnMesh(NamedTuple):
    """A spec on a mesh."""

    spec: Spec
    lengths: tuple[int, ...]
    devices: tuple[int, ...] | None
    """The device ids of the mesh; None: not specified."""

    def mesh(self, first: int) -> Mesh:
        """The mesh; if its devices are not specified, they are numbered from `first` on."""
        n = math.prod(self.lengths)
        devices = self.devices if self.devices is not None else tuple(range(first, first + n))
        return Mesh(self.lengths, tuple(f"axis{i}" for i in range(len(self.lengths))), devices)


def placed(text: str) -> SpecOnMesh:
    """Parse a spec on a mesh, with or without devices.

    Examples:
        >>> placed("S0R on 2x2")
        SpecOnMesh(spec=Spec.parse('S0R'), lengths=(2, 2), devices=None)
        >>> placed("S0R on 2x2 at 4-5,8-9").devices
        (4, 5, 8, 9)
    """
    match = _PLACED.fullmatch(text)
    if not match:
        raise argparse.ArgumentTypeError(
            f"a layout is written 'S0R on 2x2', or 'S0R on 2x2 at 4-7' with devices; got {text!r}"
        )
    lengths = sizes(match["mesh"])
    if math.prod(lengths) > _MAX_DEVICES:
        raise argparse.ArgumentTypeError(
            f"a mesh on the command line has at most {_MAX_DEVICES:,} devices; got "
            f"{match['mesh']}; call crossmesh.plan for more"
        )
    try:
        spec = Spec.parse(match["spec"])
    except ShardspecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return SpecOnMesh(spec, lengths, device_ids(match["devices"]) if match["devices"] else None)
