"""`Layout`: a tensor's shape on a mesh under a spec, and the slices its devices hold."""

import math
from dataclasses import dataclass

from .errors import LayoutError
from .mesh import Mesh
from .spec import Spec


@dataclass(frozen=True, slots=True)
class Layout:
    """Which part of a tensor each device of a mesh holds.

    A dim of `n` elements in `k` shards is cut into chunks of `ceil(n / k)`, as XLA does (and torch
    for a dim sharded by one axis): the last chunks may be shorter or empty.

    Raises:
        LayoutError: spec and shape differ in rank, a size is negative, or the spec uses an axis
            that the mesh does not have.

    Examples:
        >>> layout = Layout((5, 4), Mesh((2, 2), ("x", "y")), Spec.parse("S0S1"))
        >>> layout.slices(3)
        (slice(3, 5, None), slice(2, 4, None))
        >>> layout.is_even
        False
    """

    shape: tuple[int, ...]
    """Size of each dim of the whole tensor."""
    mesh: Mesh
    """The devices."""
    spec: Spec
    """How the dims lie on the mesh."""

    def __post_init__(self) -> None:
        shape, spec = tuple(self.shape), self.spec
        object.__setattr__(self, "shape", shape)
        if len(shape) != len(spec.dims):
            raise LayoutError(
                f"a spec has one entry for each dim; got spec {spec} ({len(spec.dims)} dims) "
                f"for shape {shape} ({len(shape)} dims)"
            )
        if shape and min(shape) < 0:
            raise LayoutError(f"a tensor's dims have sizes >= 0; got shape {shape}")
        axes = spec.axes + tuple(partial.axis for partial in spec.partial)
        if axes and max(axes) >= self.mesh.ndim:
            raise LayoutError(
                f"a spec uses axes of its mesh; got spec {spec} for a mesh of {self.mesh.ndim} "
                f"axes, shape {self.mesh.shape}"
            )

    @property
    def shards(self) -> tuple[int, ...]:
        """Number of parts that each dim is cut into."""
        return tuple(map(self.mesh.axis_size, self.spec.dims))

    @property
    def is_even(self) -> bool:
        """Whether all shards have the same shape."""
        return not any(n % k for n, k in zip(self.shape, self.shards, strict=True))

    def slices(self, device_id: int) -> tuple[slice, ...]:
        """The part of each dim that a device holds, start and stop within the dim.

        Raises:
            UnknownDeviceError: the device is not in the mesh.
        """
        coordinates = self.mesh.coordinates(device_id)
        found = []
        for n, k, axes in zip(self.shape, self.shards, self.spec.dims, strict=True):
            index = 0
            for axis in axes:
                index = index * self.mesh.shape[axis] + coordinates[axis]
            chunk = -(-n // k)
            found.append(slice(min(index * chunk, n), min((index + 1) * chunk, n)))
        return tuple(found)

    def local_shape(self, device_id: int) -> tuple[int, ...]:
        """Shape of a device's shard.

        Raises:
            UnknownDeviceError: the device is not in the mesh.
        """
        return tuple(part.stop - part.start for part in self.slices(device_id))

    def local_bytes(self, itemsize: int, device_id: int | None = None) -> int:
        """Bytes of a device's shard, or of the largest one.

        Args:
            itemsize: Bytes an element.
            device_id: The device; None for the largest shard (the first device's, as chunks only
                shrink).

        Raises:
            UnknownDeviceError: the device is not in the mesh.
        """
        if device_id is not None:
            return math.prod(self.local_shape(device_id)) * itemsize
        return (
            math.prod(-(-n // k) for n, k in zip(self.shape, self.shards, strict=True)) * itemsize
        )

    def __str__(self) -> str:
        return f"{self.shape} as {self.spec} on {self.mesh.shape}"
