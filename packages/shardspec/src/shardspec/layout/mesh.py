"""`Mesh`: devices in an N-dimensional grid with named axes."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardspec.base.axis import Axis, Entry, Split, SubAxis, index, merged
from shardspec.base.integers import items, natural, naturals, shown
from shardspec.errors import MeshError, UnknownAxisError, UnknownDeviceError

_ONLY_STR = frozenset([str])


@dataclass(frozen=True, slots=True, repr=False)
class Mesh:
    """An N-dimensional grid of device ids with named axes; the devices need not exist.

    Devices are listed row-major, the last axis fastest. A 2×3 mesh with axes `x` and `y`:

        device_ids = (0, 1, 2, 3, 4, 5)      x=0: 0 1 2
                                             x=1: 3 4 5

    Ids in arithmetic progression are kept as a `range`, so a mesh of 65,536 devices is small.

    Raises:
        MeshError: names and shape of different length, an axis shorter than 1, a name twice or
            empty, or device ids that are not `prod(shape)` distinct integers from 0 to 2**63 - 1.

    Examples:
        >>> mesh = Mesh((2, 3), ("x", "y"))
        >>> mesh.coordinates(5)
        (1, 2)
        >>> mesh.groups((0,))
        ((0, 3), (1, 4), (2, 5))
        >>> Mesh((8,), ("x",)).groups((SubAxis(0, 1, 2),))
        ((0, 4), (1, 5), (2, 6), (3, 7))
    """

    shape: tuple[int, ...]
    """Length of each axis."""
    axis_names: tuple[str, ...]
    """One distinct name for each axis."""
    device_ids: Sequence[int] = ()
    """The devices, row-major, a range or a tuple; `range(prod(shape))` if left out."""
    _positions: dict[int, int] = field(default_factory=dict, init=False, compare=False)
    """Index of each device in `device_ids`; filled when first needed, empty if they are a range."""

    def __post_init__(self) -> None:
        lengths, names = items(self.shape), items(self.axis_names)
        if lengths is None or names is None:
            raise MeshError(
                "a mesh has a tuple of lengths and a tuple of axis names; "
                f"got shape={shown(self.shape)} and axis_names={shown(self.axis_names)}"
            )
        if len(lengths) != len(names):
            raise MeshError(
                "a mesh needs one axis name for each entry of its shape; "
                f"got shape={shown(lengths)} ({len(lengths)} axes) "
                f"and axis_names={shown(names)} ({len(names)} names)"
            )
        shape = naturals(lengths)
        if shape and min(shape) < 1:
            raise MeshError(
                f"every axis of a mesh has at least one device; got shape={shown(lengths)}"
            )
        if not _ONLY_STR.issuperset(map(type, names)):
            names = tuple(str(name) if isinstance(name, str) else "" for name in names)
        if len(set(names)) != len(names) or "" in names:
            raise MeshError(
                "axis names are distinct strings, not empty; "
                f"got axis_names={shown(self.axis_names)}"
            )
        size = math.prod(shape)
        if size > sys.maxsize:
            raise MeshError(f"a mesh has at most {sys.maxsize} devices; got shape={shape}")
        ids = _compact(self.device_ids) or range(size)
        distinct = isinstance(ids, range) or (min(ids) >= 0 and len(set(ids)) == len(ids))
        if len(ids) != size or not distinct:
            raise MeshError(
                f"a mesh of shape {shape} needs {size} distinct device ids from 0 to 2**63 - 1; "
                f"got {len(ids)}: device_ids={shown(self.device_ids)}"
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "axis_names", names)
        object.__setattr__(self, "device_ids", ids)

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.device_ids)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def grid(self) -> NDArray[np.int64]:
        """The device ids as an array of the mesh's shape; a new one each time."""
        ids = self.device_ids
        flat = np.arange(ids.start, ids.stop, ids.step) if isinstance(ids, range) else np.array(ids)
        return flat.astype(np.int64, copy=False).reshape(self.shape)

    def axis(self, name: str) -> int:
        """Index of the axis called `name`.

        Raises:
            UnknownAxisError: no axis has this name.
        """
        if name not in self.axis_names:
            raise UnknownAxisError(
                f"the axis is one of the mesh's; got {name!r}, the mesh has {self.axis_names}"
            )
        return self.axis_names.index(name)

    def length(self, axis: Axis) -> int:
        """Number of devices along an axis or sub-axis.

        Raises:
            UnknownAxisError: an index below 0 or not below the number of axes, or a sub-axis that
                does not divide its axis.
        """
        of = axis if type(axis) is int else natural(index(axis))
        if not 0 <= of < len(self.shape):
            raise UnknownAxisError(
                f"an axis index is >= 0 and below the mesh's number of axes, {self.ndim}; "
                f"got axis {shown(axis)}"
            )
        if not isinstance(axis, SubAxis):
            return self.shape[of]
        if self.shape[of] % (axis.pre * axis.size):
            raise UnknownAxisError(
                "the pre-size and size of a sub-axis divide its axis; "
                f"got {axis} of an axis of {self.shape[of]} devices"
            )
        return axis.size

    def axis_size(self, axes: Iterable[Axis]) -> int:
        """Number of devices along `axes` together: the product of their lengths, 1 for none.

        Raises:
            UnknownAxisError: as for `length`.
        """
        size = 1
        try:
            for axis in axes:
                size *= self.length(axis)
        except TypeError:
            raise UnknownAxisError(f"axes are a tuple of indices; got {shown(axes)}") from None
        return size

    def coordinates(self, device_id: int) -> tuple[int, ...]:
        """Position of a device along each axis.

        Raises:
            UnknownDeviceError: the device is not in this mesh.
        """
        position = self._position(device_id)
        coordinates = []
        for length in reversed(self.shape):
            position, coordinate = divmod(position, length)
            coordinates.append(coordinate)
        return tuple(reversed(coordinates))

    def coordinate(self, coordinates: tuple[int, ...], axis: Axis) -> int:
        """The coordinate along an axis or sub-axis of the device at `coordinates`."""
        if not isinstance(axis, SubAxis):
            return coordinates[axis]
        minor = self.shape[axis.axis] // (axis.pre * axis.size)
        return coordinates[axis.axis] // minor % axis.size

    def device(self, coordinates: tuple[int, ...]) -> int:
        """The device id at `coordinates`, one coordinate for each axis.

        Raises:
            UnknownDeviceError: too few or too many coordinates, or one outside its axis.
        """
        at = naturals(coordinates)
        if len(at) != self.ndim or not all(0 <= c < n for c, n in zip(at, self.shape, strict=True)):
            raise UnknownDeviceError(
                f"a device has one coordinate within each axis; got {shown(coordinates)} "
                f"for a mesh of shape {self.shape}"
            )
        position = 0
        for coordinate, length in zip(at, self.shape, strict=True):
            position = position * length + coordinate
        return self.device_ids[position]

    def groups(self, axes: tuple[Axis, ...]) -> tuple[tuple[int, ...], ...]:
        """Groups of devices that differ only along `axes`: a collective over `axes` runs in each.

        Within a group the first of `axes` is major, so `groups((1, 0))` has the same members as
        `groups((0, 1))` in another order. Groups are ordered by their remaining coordinates.

        Args:
            axes: Distinct axes or sub-axes, major to minor; `()` gives a group for each device.

        Raises:
            UnknownAxisError: an axis that the mesh does not have, or two that overlap.
        """
        length = self.axis_size(axes)
        parts = self.parts(axes)
        order = [part for part in parts if part not in axes] + list(axes)
        sizes = [self.length(part) for part in parts]
        rows = (
            self.grid.reshape(sizes)
            .transpose([parts.index(part) for part in order])
            .reshape(-1, length)
        )
        return tuple(map(tuple, rows.tolist()))

    def parts(self, axes: Iterable[Axis]) -> list[Axis]:
        """All axes of the mesh, cut so that each of `axes` is one item; major to minor.

        What `axes` leave of an axis is listed as a sub-axis, and axes they do not touch, whole.

        Raises:
            UnknownAxisError: two of `axes` overlap.
        """
        of_axis: dict[int, list[Axis]] = {}
        for axis in axes:
            of_axis.setdefault(index(axis), []).append(axis)
        parts: list[Axis] = []
        for of, length in enumerate(self.shape):
            inside = of_axis.get(of, [])
            if not any(isinstance(axis, SubAxis) for axis in inside):
                if len(inside) > 1:
                    raise UnknownAxisError(f"a group runs over distinct axes; got {tuple(axes)}")
                parts.append(of)
                continue
            pre = 1
            for part in sorted(
                a if isinstance(a, SubAxis) else SubAxis(a, 1, length) for a in inside
            ):
                if part.pre % pre:
                    raise UnknownAxisError(f"a group runs over distinct axes; got {tuple(axes)}")
                if part.pre > pre:
                    parts.append(SubAxis(of, pre, part.pre // pre))
                parts.append(part)
                pre = part.pre * part.size
            if pre < length:
                parts.append(SubAxis(of, pre, length // pre))
        return parts

    def joined(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """The shortest way to write `entries`: adjacent parts of an axis joined, up to the axis."""
        return tuple(
            entry.axis
            if isinstance(entry, SubAxis) and entry.size == self.shape[entry.axis]
            else entry
            for entry in merged(entries)
        )

    def split(self, axis: str, sizes: tuple[int, ...]) -> "Mesh":
        """The same devices with one axis written as several, major to minor.

        The new axes are named like Shardy's sub-axes: `x` of 8 as 2×4 becomes `x:(1)2`, `x:(2)4`.

        Raises:
            UnknownAxisError: no axis has this name.
            MeshError: the product of the sizes is not the length of the axis, or two axes would
                have the same name, as for two adjacent parts of size 1.
        """
        of, parts = self.axis(axis), naturals(sizes)
        if min(parts, default=1) < 1 or math.prod(parts) != self.shape[of]:
            raise MeshError(
                "the parts of an axis multiply to its length; "
                f"got sizes={shown(sizes)} for axis {axis!r} of {self.shape[of]} devices"
            )
        names = [f"{axis}:({math.prod(parts[:i])}){size}" for i, size in enumerate(parts)]
        return Mesh(
            (*self.shape[:of], *parts, *self.shape[of + 1 :]),
            (*self.axis_names[:of], *names, *self.axis_names[of + 1 :]),
            self.device_ids,
        )

    def submesh(self, where: Mapping[str, int | slice]) -> "Mesh":
        """The mesh of the devices at some coordinates of the named axes.

        Args:
            where: For an axis name, the coordinate (which drops the axis) or a slice of coordinates
                to keep; axes that are not named are kept whole.

        Raises:
            UnknownAxisError: no axis has this name.
            MeshError: no device is left, or a coordinate is outside its axis.

        Examples:
            >>> Mesh((2, 4), ("host", "gpu")).submesh({"host": 1, "gpu": slice(0, 2)})
            Mesh((2,), ('gpu',), range(4, 6))
        """
        index_of: list[int | slice] = [slice(None)] * self.ndim
        for name, part in where.items():
            index_of[self.axis(name)] = part
        whole = (type(part) is int or isinstance(part, slice | np.integer) for part in index_of)
        try:
            ids = self.grid[tuple(index_of)] if all(whole) else np.empty(0, np.int64)
        except (IndexError, TypeError, ValueError):  # outside the axis, or a slice of non-integers
            ids = np.empty(0, np.int64)
        if not ids.size:
            raise MeshError(
                f"a submesh has at least one device; got {dict(where)} of a mesh of shape "
                f"{self.shape} with axes {self.axis_names}"
            )
        kept = [n for n, i in zip(self.axis_names, index_of, strict=True) if isinstance(i, slice)]
        return Mesh(ids.shape, tuple(kept), tuple(ids.reshape(-1).tolist()))

    def _position(self, device_id: int) -> int:
        ids = self.device_ids
        device = device_id if type(device_id) is int else natural(device_id)
        if isinstance(ids, range):
            if device in ids:
                return ids.index(device)
        else:
            if not self._positions:
                self._positions.update(zip(ids, range(len(ids)), strict=True))
            if device in self._positions:
                return self._positions[device]
        raise UnknownDeviceError(
            f"the device is one of the mesh's; got {shown(device_id)}, "
            f"the mesh has {_shortened(ids)}"
        )

    def __repr__(self) -> str:
        ids = "" if self.device_ids == range(self.size) else f", {self.device_ids}"
        return f"Mesh({self.shape}, {self.axis_names}{ids})"


def n_parts(mesh: Mesh, entry: Entry) -> int:
    """Number of parts into which an entry of a spec cuts a dim.

    Raises:
        UnknownAxisError: the mesh does not have this axis.
    """
    return entry.factor if isinstance(entry, Split) else mesh.length(entry)


def _compact(device_ids: object) -> Sequence[int]:
    """Device ids, as a range if they rise by equal steps; includes a -1 if one is out of bounds."""
    if isinstance(device_ids, range) and device_ids.step > 0:
        ends = (device_ids[0], device_ids[-1]) if device_ids else ()
        return device_ids if -1 not in map(natural, ends) else (-1,)
    ids = naturals(device_ids)
    if not ids:
        return ids
    step = ids[1] - ids[0] if len(ids) > 1 else 1
    if step > 0 and ids[-1] - ids[0] == step * (len(ids) - 1):
        progression = range(ids[0], ids[-1] + 1, step)
        return progression if ids[0] >= 0 and ids == tuple(progression) else ids
    return ids


def _shortened(ids: Sequence[int]) -> str:
    if isinstance(ids, range) or len(ids) <= 16:
        return str(ids)
    return f"({', '.join(map(str, ids[:8]))}, ... {len(ids)} in all)"
