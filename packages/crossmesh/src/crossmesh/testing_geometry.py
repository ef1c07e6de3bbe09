"""The geometry and the copies of the compiled core in plain Python, to compare with in tests.

The functions have the same names and arguments as those of the core and, for valid arguments, the
same results to the last bit. They do not check their arguments.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from crossmesh.base.geometry import Runs


def cells(
    src: Sequence[Runs], dst: Sequence[Runs], most_boxes: int
) -> list[tuple[int, int, list[list[tuple[int, int]]]]]:
    """The common intervals of all pairs of a source tile and a destination tile that have some."""
    result = []
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
                result.append((s, d, common))
    if sum(math.prod(map(len, common)) for _, _, common in result) > most_boxes:
        raise ValueError(f"tiles meet in at most {most_boxes} boxes")
    return result


def copy_box(
    dst: npt.NDArray[np.generic],
    dst_start: Sequence[int],
    src: npt.NDArray[np.generic],
    src_start: Sequence[int],
    extent: Sequence[int],
) -> None:
    """Copy a box of elements between two arrays of the same dtype."""
    if math.prod(extent):
        dst[_slices(dst_start, extent)] = src[_slices(src_start, extent)]


def pack(dst: npt.NDArray[np.uint8], src: npt.NDArray[np.generic], first: int) -> None:
    """Fill `dst` with the bytes of an array's elements in C order, from byte `first` on."""
    dst[...] = np.frombuffer(src.tobytes(), np.uint8)[first : first + dst.size]


def unpack(dst: npt.NDArray[np.generic], first: int, src: npt.NDArray[np.uint8]) -> None:
    """Overwrite the bytes of an array's elements in C order, from byte `first` on, with `src`."""
    packed = np.frombuffer(dst.tobytes(), np.uint8).copy()
    packed[first : first + src.size] = src
    dst[...] = packed.view(dst.dtype).reshape(dst.shape)


def _slices(start: Sequence[int], extent: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(at, at + size) for at, size in zip(start, extent, strict=True))
