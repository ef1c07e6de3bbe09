"""Arrays with a dim for layers, of which each piece lies on the devices of its stage.

A state's leaf that is stacked over layers is one array for the user. In a pipeline, its layers lie
in several stages, and no sharding of JAX says so: stages may have different numbers of layers and
of devices. A `StackedArray` holds the pieces as arrays of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from frontends.errors import DeviceError
from frontends.jax.base import _compat


class Cut(NamedTuple):
    """An array as pieces of equal size along an axis."""

    axis: int
    n: int

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape of a piece."""
        shape = list(whole)
        shape[self.axis] //= self.n
        return tuple(shape)

    def slices(self, piece: int, whole: Sequence[int]) -> tuple[slice, ...]:
        """Where a piece is in the whole."""
        size = whole[self.axis] // self.n
        before = (slice(None),) * self.axis
        return (*before, slice(piece * size, (piece + 1) * size))

    def pieces(self, whole: Any) -> list[Any]:
        """The pieces of an array; those of a `StackedArray` that is cut alike lie where they are.

        Other arrays must lie in this process.
        """
        if isinstance(whole, StackedArray) and whole.cut == self:
            return list(whole.pieces)
        array = np.asarray(whole)
        return [array[self.slices(i, array.shape)] for i in range(self.n)]


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of an array that a device has, as in `jax.Array.addressable_shards`."""

    device: Any
    index: tuple[slice, ...]
    replica_id: int
    data: jax.Array


class StackedSharding(jax.sharding.Sharding):
    """Says where each piece of a stacked array lies.

    Args:
        cut: How the array is cut into pieces.
        pieces: The sharding of each piece.
    """

    def __init__(self, cut: Cut, pieces: Sequence[NamedSharding]) -> None:
        self.cut, self.pieces = cut, tuple(pieces)

    def __repr__(self) -> str:
        return f"StackedSharding(axis={self.cut.axis}, pieces={list(self.pieces)})"

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, StackedSharding) and self.cut == other.cut
        return same and self.pieces == other.pieces  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.cut, self.pieces))

    @property
    def device_set(self) -> set[Any]:
        """All devices that have a part of the array."""
        return set().union(*(piece.device_set for piece in self.pieces))

    @property
    def num_devices(self) -> int:
        """One: to compute with the array, JAX puts it together on one device, as if it lay there.

        `device_set` has the devices of the pieces.
        """
        return 1

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all of them are of this process."""
        return all(piece.is_fully_addressable for piece in self.pieces)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each has the whole array."""
        return False

    @property
    def memory_kind(self) -> str | None:
        """The kind of memory that the array is in."""
        return self.pieces[0].memory_kind

    def is_equivalent_to(self, other: Any, ndim: int) -> bool:
        """Whether arrays of this many dims lie the same way by both."""
        if not isinstance(other, StackedSharding) or self.cut != other.cut:
            return False
        pairs = zip(self.pieces, other.pieces, strict=True)
        return all(ours.is_equivalent_to(theirs, ndim) for ours, theirs in pairs)

    def _to_xla_hlo_sharding(self, num_dimensions: int) -> NoReturn:
        """What JAX asks first when it is to make an array by a sharding."""
        raise DeviceError(
            "no sharding of JAX says that the layers of an array lie in several stages, so JAX "
            f"cannot make an array by {self}: step.init and step.load_state_dict make state there"
        )

    def check_compatible_aval(self, shape: tuple[int, ...]) -> None:
        """Check that an array of this shape can be cut so."""
        if shape[self.cut.axis] % self.cut.n:
            raise ValueError(f"an array of shape {shape} cannot be cut as {self}")


class StackedArray(jax.Array):
    """An array in pieces along an axis, each of which may lie on other devices.

    All that JAX and numpy do with an array, they do with this one: it is put together then, in the
    memory of this process. A parallel step that is called with it uses the pieces where they lie.

    Args:
        axis: The axis along which the pieces follow each other.
        pieces: Arrays of the same shape and dtype. In a run of several processes, those of other
            processes have no data here.
    """

    __slots__ = ("cut", "pieces")
    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 100

    def __init__(self, axis: int, pieces: Sequence[jax.Array]) -> None:
        self.cut, self.pieces = Cut(axis, len(pieces)), tuple(pieces)

    def __repr__(self) -> str:
        axis, n = self.cut
        return f"StackedArray(shape={self.shape}, dtype={self.dtype}, {n} pieces in dim {axis})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        axis, n = self.cut
        shape = list(self.pieces[0].shape)
        shape[axis] *= n
        return tuple(shape)

    @property
    def dtype(self) -> Any:
        """The type of its elements."""
        return self.pieces[0].dtype

    @property
    def weak_type(self) -> bool:
        """Whether its dtype is weak."""
        return bool(self.pieces[0].weak_type)

    @property
    def aval(self) -> Any:
        """Shape and dtype, as JAX has them."""
        return _compat.aval_of(self.shape, self.dtype, self.weak_type)

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return self.pieces[0].ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the whole array."""
        return self.size * self.itemsize

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return int(self.dtype.itemsize)

    @property
    def sharding(self) -> Any:
        """Where the pieces lie."""
        return StackedSharding(self.cut, [cast(NamedSharding, p.sharding) for p in self.pieces])

    @property
    def format(self) -> None:
        """No layout in memory of its own."""
        return None

    @property
    def committed(self) -> bool:
        """False: it may be combined with any array, as it is put together for that."""
        return False

    _committed = committed

    def devices(self) -> set[Any]:
        """All devices that have a part of the array."""
        return self.sharding.device_set  # type: ignore[no-any-return]

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all of it is in this process."""
        return all(piece.is_fully_addressable for piece in self.pieces)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device has all of it."""
        return False

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts that devices of this process have."""
        shards = []
        for number, piece in enumerate(self.pieces):
            begin = number * piece.shape[self.cut.axis]
            for shard in piece.addressable_shards:
                index = list(shard.index)
                first, last, _ = index[self.cut.axis].indices(piece.shape[self.cut.axis])
                index[self.cut.axis] = slice(begin + first, begin + last)
                shards.append(Shard(shard.device, tuple(index), shard.replica_id, shard.data))
        return shards

    @property
    def global_shards(self) -> list[Shard]:
        """The parts that devices of all processes have; known if all are of this one."""
        self._check_addressable()
        return self.addressable_shards

    def addressable_data(self, index: int) -> jax.Array:
        """The numbers of one of the parts that this process has."""
        return self.addressable_shards[index].data

    @property
    def device(self) -> Any:
        """Where the pieces lie; there are several devices."""
        return self.sharding

    def whole(self) -> np.ndarray[Any, Any]:
        """The array, put together in the memory of this process.

        Raises:
            DeviceError: Pieces lie in other processes.
        """
        self._check_addressable()
        parts: list[Any] = jax.device_get(list(self.pieces))
        return np.concatenate(parts, self.cut.axis)

    def _check_addressable(self) -> None:
        if not self.is_fully_addressable:
            raise DeviceError(
                f"an array is put together where all its pieces are; {self!r} has some in other "
                "processes: step.state_dict(state) gathers state in all of them"
            )

    def __array__(
        self, dtype: Any = None, context: None = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        """The array for numpy; it is always a copy."""
        if copy is False:
            raise ValueError(f"{self!r} has no array of its own that could be given without a copy")
        whole = self.whole()
        return whole if dtype is None else whole.astype(dtype)

    def __reduce__(self) -> Any:
        return jnp.asarray, (self.whole(),)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[jax.Array]:
        return iter(self._joined())

    def _joined(self) -> jax.Array:
        """The array as one of JAX, on the first device of this process."""
        return jnp.asarray(self.whole())

    def block_until_ready(self) -> Self:
        """Wait until all pieces are computed."""
        jax.block_until_ready(list(self.pieces))
        return self

    def copy_to_host_async(self) -> None:
        """Begin to copy the pieces to the memory of this process."""
        for piece in self.pieces:
            piece.copy_to_host_async()

    def copy(self) -> StackedArray:
        """Another such array, with copies of the pieces."""
        return StackedArray(self.cut.axis, [piece.copy() for piece in self.pieces])

    def is_ready(self) -> bool:
        """Whether all pieces are computed."""
        return all(cast(Any, piece).is_ready() for piece in self.pieces)

    def delete(self) -> None:
        """Delete all pieces."""
        for piece in self.pieces:
            piece.delete()

    def is_deleted(self) -> bool:
        """Whether a piece was deleted."""
        return any(piece.is_deleted() for piece in self.pieces)


def _delegate() -> None:
    """Let the methods of arrays that are not defined above run on the array as one of JAX."""

    def method(name: str) -> Any:
        def run(self: StackedArray, *args: Any, **kwargs: Any) -> Any:
            return getattr(self._joined(), name)(*args, **kwargs)

        run.__name__ = name
        return run

    def attribute(name: str) -> Any:
        return property(lambda self: getattr(self._joined(), name))

    comparisons = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
    of_concrete = (  # jax.Array does not name them
        *("__bool__", "__complex__", "__dlpack__", "__dlpack_device__", "__float__"),
        *("__index__", "__int__", "tobytes", "tolist"),
    )
    for name in (*dir(jax.Array), *of_concrete):
        is_private = name.startswith("_") and not name.startswith("__")
        of_all = dir(object) if name not in comparisons else ()
        if name in vars(StackedArray) or name in of_all or is_private:
            continue
        is_method = callable(getattr(_compat.ArrayImpl, name))
        setattr(StackedArray, name, method(name) if is_method else attribute(name))


_delegate()
_compat.register_array(StackedArray, lambda array: array.aval, np.asarray)
