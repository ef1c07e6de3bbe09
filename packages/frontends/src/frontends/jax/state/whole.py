"""State as whole arrays in the memory of a process, and back in the shardings of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from frontends.errors import PlanError
from frontends.jax.base import _compat
from frontends.jax.base.arguments import numbers_of
from frontends.jax.base.stacked_array import StackedArray, StackedSharding
from frontends.jax.run.processes import exchange


def whole(tree: Any) -> Any:
    """State as whole arrays; in a run of several processes, all call it with the same tree.

    Args:
        tree: A tree of leaves of a step's state.

    Returns:
        The same tree of numpy arrays. Typed keys stay keys, on one device, and a scalar of weak
        type becomes a Python number.

    Raises:
        PlanError: Processes call it with different trees.
        DeviceError: Another process does something else.
    """
    leaves, structure = jax.tree.flatten(tree)
    here = [array.is_fully_addressable for leaf in leaves for array in _arrays_of(leaf)]
    if jax.process_count() > 1:
        # A stage's state may lie in one process, for which it looks like an array of its own.
        everywhere = exchange(here, "read whole state")
        sizes = [len(flags) for flags in everywhere]
        if len(set(sizes)) > 1:
            raise PlanError(
                "all processes ask for the same state as whole arrays; by process, they gave trees "
                f"of {', '.join(map(str, sizes))} arrays: pass the same tree everywhere"
            )
        here = [all(flags) for flags in zip(*everywhere, strict=True)]
    is_here = iter(here)
    return jax.tree.unflatten(structure, [_whole(leaf, is_here) for leaf in leaves])


def _arrays_of(leaf: Any) -> list[jax.Array]:
    """The arrays that JAX has for a leaf."""
    if isinstance(leaf, StackedArray):
        return list(leaf.pieces)
    if not isinstance(leaf, jax.Array):
        return []
    return [_compat.key_data(leaf) if _compat.holds_keys(leaf) else leaf]


def _whole(leaf: Any, is_here: Iterator[bool]) -> Any:
    """A whole leaf.

    Args:
        leaf: The leaf.
        is_here: For each array of this and the next leaves, whether each process has all of it.
    """
    arrays = [_numbers(array, next(is_here)) for array in _arrays_of(leaf)]
    if not arrays:
        return leaf
    if isinstance(leaf, StackedArray):
        return np.concatenate(arrays, leaf.cut.axis)
    (array,) = arrays
    if _compat.holds_keys(leaf):
        return _compat.wrap_keys(array, leaf.dtype)
    return array.item() if leaf.weak_type and not leaf.shape else array


def _numbers(leaf: jax.Array, is_here: bool) -> np.ndarray[Any, Any]:
    if is_here:
        return np.array(leaf)
    local = [(s.index, np.asarray(s.data)) for s in leaf.addressable_shards if s.replica_id == 0]
    array = np.empty(leaf.shape, leaf.dtype)
    for parts in exchange(local, "read whole state"):
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
