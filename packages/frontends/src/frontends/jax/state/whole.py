"""State as whole arrays in the memory of a process, and back to where a plan keeps it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from frontends.jax.base import _compat
from frontends.jax.base.arguments import numbers_of
from frontends.run.mpi import import_mpi


def whole(leaf: Any) -> Any:
    """A leaf of a step's state, whole; where there are several processes, all of them call it.

    Returns:
        A numpy array; keys stay keys, on one device, and numbers like Python's become such.
    """
    if not isinstance(leaf, jax.Array):
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return _compat.wrap_keys(whole(_compat.key_data(leaf)), leaf.dtype)
    if leaf.is_fully_addressable:
        return leaf.item() if leaf.weak_type and not leaf.shape else np.array(leaf)
    mine = [(s.index, np.asarray(s.data)) for s in leaf.addressable_shards if s.replica_id == 0]
    made = np.empty(leaf.shape, leaf.dtype)
    for parts in import_mpi().COMM_WORLD.allgather(mine):
        for index, part in parts:
            made[index] = part
    return made


def place(leaf: Any, home: NamedSharding, weak_type: bool) -> Any:
    """A whole leaf where a plan keeps it; every process has the same, and takes its own parts.

    Args:
        leaf: An array, typed keys or a number.
        home: Of its numbers, if it holds keys.
        weak_type: Whether it takes the type of what it meets.
    """
    if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        keys = _compat.with_whole_keys(place(_compat.key_data(leaf), home, False), leaf.dtype)
        return _compat.wrap_keys(keys, leaf.dtype)
    numbers = np.asarray(leaf, numbers_of(leaf).dtype)
    placed = jax.make_array_from_callback(
        numbers.shape, home, lambda index: numbers[index], dtype=numbers.dtype
    )
    return _compat.as_weak(placed) if weak_type else placed
