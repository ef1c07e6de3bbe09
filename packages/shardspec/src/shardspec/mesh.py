"""`Mesh`: devices in an N-dimensional grid with named axes."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import MeshError, UnknownAxisError, UnknownDeviceError


@dataclass(frozen=True, slots=True)
class Mesh:
    """An N-dimensional grid of device ids; needs no devices.

    Devices are listed row-major, the last axis fastest. A 2×3 mesh with axes `x` and `y`:

        device_ids = (0, 1, 2, 3, 4, 5)      x=0: 0 1 2
                                             x=1: 3 4 5

    Raises:
        MeshError: names and shape of different length, an axis shorter than 1, a name twice or
            empty, or device ids that are not `prod(shape)` distinct integers >= 0.

    Examples:
        >>> mesh = Mesh((2, 3), ("x", "y"))
        >>> mesh.coordinates(5)
        (1, 2)
        >>> mesh.groups((0,))
        ((0, 3), (1, 4), (2, 5))
    """

    shape: tuple[int, ...]
    """Length of each axis."""
    axis_names: tuple[str, ...]
    """One distinct name for each axis."""
    device_ids: tuple[int, ...] = ()
    """The devices, row-major; `range(prod(shape))` if left out."""

    def __post_init__(self) -> None:
        shape, names = tuple(self.shape), tuple(self.axis_names)
        if len(shape) != len(names):
            raise MeshError(
                f"a mesh needs one axis name for each entry of its shape; got shape={shape} "
                f"({len(shape)} axes) and axis_names={names} ({len(names)} names)"
            )
        if any(length < 1 for length in shape):
            raise MeshError(f"every axis of a mesh has at least one device; got shape={shape}")
        if len(set(names)) != len(names) or "" in names:
            raise MeshError(f"axis names are distinct and not empty; got axis_names={names}")
        size = math.prod(shape)
        ids = tuple(self.device_ids) or tuple(range(size))
        if len(ids) != size or len(set(ids)) != size or min(ids) < 0:
            raise MeshError(
                f"a mesh of shape {shape} needs {size} distinct device ids >= 0; "
                f"got {len(ids)}: device_ids={ids}"
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

    def axis_size(self, axes: Iterable[int]) -> int:
        """Number of devices along `axes` together: the product of their lengths, 1 for none.

        Raises:
            UnknownAxisError: an index outside the mesh (negative ones are).
        """
        size = 1
        for axis in axes:
            if not 0 <= axis < len(self.shape):
                raise UnknownAxisError(
                    f"axes are indices from 0 up to the mesh's {self.ndim} axes; got axis {axis}"
                )
            size *= self.shape[axis]
        return size

    def coordinates(self, device_id: int) -> tuple[int, ...]:
        """Position of a device along each axis.

        Raises:
            UnknownDeviceError: the device is not in this mesh.
        """
        try:
            position = self.device_ids.index(device_id)
        except ValueError:
            raise UnknownDeviceError(
                f"the device is one of the mesh's; got {device_id}, the mesh has {self.device_ids}"
            ) from None
        found = []
        for length in reversed(self.shape):
            position, coordinate = divmod(position, length)
            found.append(coordinate)
        return tuple(reversed(found))

    def device(self, coordinates: tuple[int, ...]) -> int:
        """The device id at `coordinates`, one for each axis.

        Raises:
            UnknownDeviceError: too few or many coordinates, or one outside its axis.
        """
        if len(coordinates) != self.ndim or not all(
            0 <= c < n for c, n in zip(coordinates, self.shape, strict=True)
        ):
            raise UnknownDeviceError(
                f"a device has one coordinate within each axis; got {coordinates} "
                f"for a mesh of shape {self.shape}"
            )
        position = 0
        for coordinate, length in zip(coordinates, self.shape, strict=True):
            position = position * length + coordinate
        return self.device_ids[position]

    def groups(self, axes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Devices that differ only along `axes`: the groups a collective over them runs in.

        Within a group the first of `axes` is major, so `groups((1, 0))` has the same members as
        `groups((0, 1))` in another order. Groups are ordered by their remaining coordinates.

        Args:
            axes: Distinct axis indices, major to minor; `()` gives a group for each device.

        Raises:
            UnknownAxisError: an index outside the mesh, or one twice.
        """
        self.axis_size(axes)
        if len(set(axes)) != len(axes):
            raise UnknownAxisError(f"a group runs over distinct axes; got {axes}")
        rest = tuple(axis for axis in range(self.ndim) if axis not in axes)
        order = rest + tuple(axes)
        inverse = [order.index(axis) for axis in range(self.ndim)]
        walk = itertools.product(*(range(self.shape[axis]) for axis in order))
        devices = [self.device(tuple(point[i] for i in inverse)) for point in walk]
        length = self.axis_size(axes)
        return tuple(tuple(devices[i : i + length]) for i in range(0, len(devices), length))
