"""State as whole arrays in the memory of a process, and back in the shardings of a plan."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from frontends.jax.base import _compat
from frontends.jax.base.arguments import numbers_of
from frontends.jax.base.stacked_array import StackedArray, StackedSharding
from frontends.run.mpi import import_mpi


def whole(leaf: Any) -> Any:
    """A leaf of a step's state as a whole array; in a run of several processes, all call it.

    Returns:
        A numpy array. Typed keys stay keys, on one device, and a scalar of weak type becomes a
        Python number.
    """
    if not isinstance(leaf, jax.Array):
        return leaf
    if isinstance(leaf, StackedArray):
        return np.concatenate([whole(piece) for piece in leaf.pieces], leaf.cut.axis)
    if _compat.holds_keys(leaf):
        return _compat.wrap_keys(whole(_compat.key_data(leaf)), leaf.dtype)
    if leaf.is_fully_addressable:
        return leaf.item() if leaf.weak_type and not leaf.shape else np.array(leaf)
    local = [(s.index, np.asarray(s.data)) for s in leaf.addressable_shards if s.replica_id == 0]
    array = np.empty(leaf.shape, leaf.dtype)
    for parts in import_mpi().COMM_WORLD.allgather(local):
        for index, part in parts:
            array[index] = part
    return array


def place(leaf: Any, home: NamedSharding | StackedSharding, weak_type: bool) -> Any:
    """A whole leaf, which every process has, in the sharding in which a plan keeps it.

    Args:
        leaf: An array, typed keys or a number.
        home: The sharding of the leaf, or of its numbers if it holds keys.
        weak_type: Whether its dtype is to be weak.
    """
    if _compat.holds_keys(leaf):
        keys = _compat.with_whole_keys(place(_compat.key_data(leaf), home, False), leaf.dtype)
        return _compat.wrap_keys(keys, leaf.dtype)
    numbers = np.asarray(leaf, numbers_of(leaf).dtype)
    if isinstance(home, StackedSharding):
        pieces = zip(home.cut.pieces(numbers), home.pieces, strict=True)
        return StackedArray(home.cut.axis, [place(*piece, weak_type) for piece in pieces])
    placed = jax.make_array_from_callback(
        numbers.shape, home, lambda index: numbers[index], dtype=numbers.dtype
    )
    return _compat.as_weak(placed) if weak_type else placed
