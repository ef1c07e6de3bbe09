"""The parts of a tensor that a process has: of DTensors, tensors, arrays of numpy and of JAX.

Everything becomes tensors of torch on the CPU here, because torch has all element types.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossmesh.base.geometry import Box, shard_boxes
from crossmesh.base.tensor import dtype_name
from crossmesh.errors import MissingExtraError, ShardError

try:
    import torch
    import torch.distributed as dist
    from shardspec.notation.torch import from_placements
    from torch.distributed.tensor import DTensor
except ImportError:
    raise MissingExtraError("crossmesh.sync", "torch") from None

from crossmesh.engines.torch_dtypes import check_plain, name_of, span, writable

_OF_SIZE = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}

State = Mapping[str, object] | torch.nn.Module
"""What is published or updated: tensors or arrays by name, also in mappings within mappings, or a
module with its parameters and buffers."""


@dataclass(frozen=True, slots=True)
class LocalParts:
    """A tensor, and the parts of it that are here."""

    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    dtype: str
    """Name of the element type."""
    parts: tuple[tuple[Box, Any], ...]
    """Boxes of the whole tensor, each with the tensor of torch, or the array of numpy or JAX, that
    is this box; none twice."""

    @property
    def described(self) -> tuple[object, ...]:
        """All but the elements."""
        return self.shape, self.dtype, tuple(box for box, _ in self.parts)

    @property
    def n_bytes(self) -> int:
        """Bytes of all parts here."""
        return sum(as_tensor(part).nbytes for _, part in self.parts)

    def __str__(self) -> str:
        return f"{self.dtype} of {self.shape}"


def parts_of(name: str, value: object) -> LocalParts:
    """The parts that this process has of a value of a state.

    Raises:
        ShardError: It is neither a tensor nor an array, has no elements in memory, or is partial.
    """
    if isinstance(value, DTensor):
        return _of_dtensor(name, value)
    if isinstance(value, torch.Tensor):
        if value.is_quantized or value.is_nested:
            raise ShardError(
                "a tensor of a state has plain elements; "
                f"got a quantized or nested one for {name!r}"
            )
        check_plain(name, value)
        whole = value.detach()
        return LocalParts(tuple(value.shape), name_of(value.dtype), ((_whole(value.shape), whole),))
    if isinstance(value, np.ndarray):
        try:
            as_tensor(value)
        except (TypeError, ValueError, AttributeError, NotImplementedError):
            raise ShardError(
                "an array of numpy has an element type that torch has, in the byte order of the "
                f"machine, and no negative strides; got {value.dtype} with the strides "
                f"{value.strides} for {name!r}; copy it"
            ) from None
        return LocalParts(value.shape, dtype_name(value.dtype), ((_whole(value.shape), value),))
    if is_jax(value):
        return _of_jax(name, value)
    raise ShardError(
        "a state has DTensors, tensors, or arrays of numpy or JAX, by name; "
        f"got {type(value).__name__} for {name!r}; leave it out"
    )


def is_jax(value: object) -> bool:
    """Whether it is an array of JAX, which nobody has to have imported."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def as_tensor(part: Any) -> torch.Tensor:
    """A part as a tensor of torch: in the same memory where that is possible, or a copy."""
    if isinstance(part, torch.Tensor):
        return part.detach()
    array = np.asarray(part)
    if array.dtype.kind != "V":
        return torch.from_numpy(writable(array))
    # An element type that numpy has by ml_dtypes.
    same = torch.from_numpy(writable(array.view(_OF_SIZE[array.itemsize])))
    return same.view(getattr(torch, dtype_name(array.dtype)))


def as_array(tensor: torch.Tensor, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The same memory as an array of a dtype of numpy or ml_dtypes with elements of this size."""
    try:
        return tensor.numpy()
    except TypeError:
        same = getattr(torch, np.dtype(_OF_SIZE[dtype.itemsize]).name)
        return tensor.view(same).numpy().view(dtype)


def _of_dtensor(name: str, value: DTensor) -> LocalParts:
    spec = value._spec
    layout = from_placements(spec.placements, spec.mesh, spec.shape, spec.shard_order)
    if layout.spec.partial:
        raise ShardError(
            "a weight is whole, not a partial sum; "
            f"got {layout.spec} for {name!r}; redistribute it first"
        )
    local = value.to_local().detach()
    check_plain(name, local)
    rank = dist.get_rank()
    parts = []
    if rank in layout.mesh.device_ids:
        for box, offset in shard_boxes(layout, rank):
            place = tuple(
                slice(at, at + stop - start) for at, (start, stop) in zip(offset, box, strict=True)
            )
            parts.append((box, local[place]))
    return LocalParts(tuple(value.shape), name_of(value.dtype), tuple(parts))


def _of_jax(name: str, value: Any) -> LocalParts:
    if value.is_deleted():
        raise ShardError(
            f"an array of a state has elements; got one that was donated or deleted for {name!r}"
        )
    parts: dict[Box, Any] = {}
    for shard in value.addressable_shards:
        box = tuple(
            (index.indices(length)[:2])
            for index, length in zip(shard.index, value.shape, strict=True)
        )
        parts.setdefault(box, shard.data)
    return LocalParts(value.shape, dtype_name(value.dtype), tuple(parts.items()))


def _whole(shape: tuple[int, ...]) -> Box:
    return tuple((0, length) for length in shape)


def values_of(state: State) -> dict[str, object]:
    """The values of a state by name; those of a module are the ones that it has now.

    In a mapping within a mapping, as parameters of Flax are, a name is `outer.inner`.

    Raises:
        ShardError: It is neither a module nor a mapping of names.
    """
    if isinstance(state, torch.nn.Module):
        return dict(state.state_dict())
    values: dict[str, object] = {}
    _collect(state, "", values)
    return values


def _collect(state: object, before: str, values: dict[str, object]) -> None:
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise ShardError(
            f"a state is a module, or tensors or arrays by name; got {type(state).__name__}; "
            "pass a mapping with texts as names"
        )
    for name, value in state.items():
        if isinstance(value, Mapping):
            _collect(value, f"{before}{name}.", values)
        elif before + name in values:
            raise ShardError(f"a state has every name once; got {before + name!r} twice")
        else:
            values[before + name] = value


def nested_like(state: Mapping[str, object], values: Mapping[str, object]) -> dict[str, object]:
    """Values by name, in mappings within mappings as those of a state.

    Examples:
        >>> nested_like({"a": {"b": 0}, "c": 0}, {"a.b": 1, "c": 2})
        {'a': {'b': 1}, 'c': 2}
    """

    def nested(part: Mapping[str, object], before: str) -> dict[str, object]:
        return {
            name: nested(value, f"{before}{name}.")
            if isinstance(value, Mapping)
            else values[before + name]
            for name, value in part.items()
        }

    return nested(state, "")


def checked(state: State) -> dict[str, LocalParts]:
    """The parts of all values of a state.

    Raises:
        ShardError: It is no state, or a value of it is no tensor or array.
    """
    return {name: parts_of(name, value) for name, value in values_of(state).items()}


def tied(parts: Mapping[str, LocalParts]) -> list[list[str]]:
    """The names of tensors that lie in the same memory, as tied weights do, group by group.

    Arrays of JAX are not among them: nobody can change two of them by one write.
    """
    spans = sorted(
        (*span(as_tensor(part)), name)
        for name, of_name in parts.items()
        for _, part in of_name.parts
        if isinstance(part, torch.Tensor | np.ndarray) and 0 not in part.shape
    )
    groups: list[set[str]] = []
    end = 0
    for start, stop, name in spans:
        if start >= end:
            groups.append(set())
        groups[-1].add(name)
        end = max(end, stop)
    return [sorted(group) for group in groups if len(group) > 1]


def with_tied(names: set[str], groups: Iterable[Iterable[str]]) -> set[str]:
    """The names, and those that are tied to them.

    Examples:
        >>> sorted(with_tied({"a"}, [["b", "c"], ["a", "b"], ["d", "e"]]))
        ['a', 'b', 'c']
    """
    sets = [set(group) for group in groups]
    before: set[str] = set()
    while before != names:
        before = names
        names = names.union(*(group for group in sets if not names.isdisjoint(group)))
    return names
