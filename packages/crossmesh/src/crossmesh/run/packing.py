"""`Packed`: a task's pieces as one sequence of bytes, wherever they lie in a device's arrays."""

import itertools
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from shardspec import Layout

from crossmesh.base._native import core
from crossmesh.base.geometry import Box
from crossmesh.run.transport import Bytes

Array = npt.NDArray[Any]


class BoxOffsets:
    """Finds boxes of the whole tensor in the array that holds a device's shard.

    Examples:
        >>> from shardspec import Mesh, Spec
        >>> places = BoxOffsets(Layout((8,), Mesh((2,), ("x",)), Spec.parse("S[2]0")), 1)
        >>> places.start(((6, 8),))
        (2,)
    """

    def __init__(self, layout: Layout, device: int) -> None:
        self._starts = []
        self._offsets = []
        for runs in layout.runs(device):
            lengths = (stop - start for start, stop in runs)
            self._starts.append([start for start, _ in runs])
            self._offsets.append([0, *itertools.accumulate(lengths)])

    def start(self, box: Box) -> tuple[int, ...]:
        """The position in the array where a box begins; the box lies in one block of the shard."""
        position = []
        for (at, _), starts, offsets in zip(box, self._starts, self._offsets, strict=True):
            i = bisect_right(starts, at) - 1
            position.append(offsets[i] + at - starts[i])
        return tuple(position)

    def slices(self, box: Box) -> tuple[slice, ...]:
        """The slices of the array that are a box; the box lies in one block of the shard."""
        return tuple(
            slice(at, at + stop - start)
            for at, (start, stop) in zip(self.start(box), box, strict=True)
        )


class Packed:
    """Arrays as the bytes of their elements, one array after the other, each in C order.

    Examples:
        >>> whole = np.arange(6, dtype="u1").reshape(2, 3)
        >>> packed = Packed([whole[:, :2], whole[1]])
        >>> out = np.empty(4, np.uint8)
        >>> packed.read(2, out)
        >>> out
        array([3, 4, 3, 4], dtype=uint8)
        >>> packed.memory(2, 4) is None, packed.memory(4, 6)
        (True, array([3, 4], dtype=uint8))
    """

    def __init__(self, arrays: Iterable[Array]) -> None:
        self._arrays = list(arrays)
        self._starts = [0, *itertools.accumulate(array.nbytes for array in self._arrays)]

    def memory(self, start: int, stop: int) -> Bytes | None:
        """A view of the bytes if they lie together in one contiguous array, else None."""
        i = bisect_right(self._starts, start) - 1
        array, before = self._arrays[i], self._starts[i]
        if stop > self._starts[i + 1] or not array.flags.c_contiguous:
            return None
        return array.reshape(-1).view(np.uint8)[start - before : stop - before]

    def read(self, start: int, out: Bytes) -> None:
        """Copy the bytes from `start` on to `out`, as many as it has."""
        for array, first, part in self._parts(start, out):
            core.pack(part, array, first)

    def write(self, start: int, data: Bytes) -> None:
        """Copy `data` to the bytes from `start` on."""
        for array, first, part in self._parts(start, data):
            core.unpack(array, first, part)

    def _parts(self, start: int, data: Bytes) -> Iterable[tuple[Array, int, Bytes]]:
        """Each array with some of the bytes, the first of them in it, and their part of `data`."""
        stop = start + data.size
        i = bisect_right(self._starts, start) - 1
        while start < stop:
            until = min(stop, self._starts[i + 1])
            before = stop - data.size
            yield self._arrays[i], start - self._starts[i], data[start - before : until - before]
            start, i = until, i + 1
