"""The compiled core's geometry and copies in plain Python; tests compare the two.

The functions have the core's names and arguments and, for valid ones, its results to the last bit.
They do not check their arguments.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from crossmesh.base.geometry import Runs


def cells(
    src: Sequence[Runs], dst: Sequence[Runs], most_boxes: int
) -> list[tuple[int, int, list[list[tuple[int, int]]]]]:
    """The intervals that each source tile has in common with each destination tile, if any."""
    found = []
    for s, held in enumerate(src):
        for d, needed in enumerate(dst):
            common = [
                [
                    (max(a, c), min(b, e))
                    for a, b in runs
                    for c, e in others
                    if max(a, c) < min(b, e)
                ]
                for runs, others in zip(held, needed, strict=True)
            ]
            if all(common):
                found.append((s, d, common))
    if sum(math.prod(map(len, common)) for _, _, common in found) > most_boxes:
        raise ValueError(f"tiles meet in at most {most_boxes} boxes")
    return found


def copy_box(
    dst: npt.NDArray[np.generic],
    dst_start: Sequence[int],
    src: npt.NDArray[np.generic],
    src_start: Sequence[int],
    extent: Sequence[int],
) -> None:
    """Copy a box of elements between two arrays of one dtype."""
    if math.prod(extent):
        dst[_slices(dst_start, extent)] = src[_slices(src_start, extent)]


def pack(dst: npt.NDArray[np.uint8], src: npt.NDArray[np.generic], first: int) -> None:
    """Copy bytes of an array's elements, from byte `first` in C order on, to all of `dst`."""
    dst[...] = np.frombuffer(src.tobytes(), np.uint8)[first : first + dst.size]


def unpack(dst: npt.NDArray[np.generic], first: int, src: npt.NDArray[np.uint8]) -> None:
    """Copy all of `src` to an array's elements, from byte `first` in C order on."""
    packed = np.frombuffer(dst.tobytes(), np.uint8).copy()
    packed[first : first + src.size] = src
    dst[...] = packed.view(dst.dtype).reshape(dst.shape)


def _slices(start: Sequence[int], extent: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(at, at + size) for at, size in zip(start, extent, strict=True))
