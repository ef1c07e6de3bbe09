"""Gathers and scatters on part of what they index: each device does what falls into its part.

A table of tokens that is split by its rows is read as Megatron's vocabulary-parallel embedding is
(Shoeybi et al. 2019, §3): a device makes zeros for the rows that it lacks, and the sum over all of
them is the lookup. An update of a row is dropped where another device has the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import GatherScatterMode
from shardspec import Mesh, Spec

from frontends.jax.base import _compat
from frontends.jax.base._compat import JaxprEqn, aval

Array = Any
_FILL = GatherScatterMode.FILL_OR_DROP


def can_mask(equation: JaxprEqn) -> bool:
    """Whether what a gather or scatter indexes may be split.

    Truth values cannot be summed; and an index that is clipped depends on the size of its slice, so
    all entries of an index must then be about single elements.
    """
    numbers, mode = equation.params["dimension_numbers"], equation.params["mode"]
    if equation.primitive.name == "gather":
        if aval(equation.outvars[0]).dtype == np.bool_:
            return False
        single, indexed = numbers.collapsed_slice_dims, numbers.start_index_map
    else:
        single, indexed = numbers.inserted_window_dims, numbers.scatter_dims_to_operand_dims
    if mode == GatherScatterMode.CLIP:
        return set(single) == set(indexed)
    return set(single) <= set(indexed) and mode in (_FILL, GatherScatterMode.PROMISE_IN_BOUNDS)


def gather_part(
    equation: JaxprEqn,
    operands: Sequence[Array],
    params: dict[str, Any],
    spec: Spec | None,
    mesh: Mesh,
) -> list[Array]:
    """A gather whose results are partial sums over the axes that split what it indexes.

    An index that is outside the whole operand is left to the first device to fill.

    Args:
        equation: The gather of the whole operand.
        operands: Its part on this device, and the places.
        params: Of the part.
        spec: The operand's layout; None for a literal, which is whole.
        mesh: Of the layout.
    """
    numbers = params["dimension_numbers"]
    split = _split(numbers.collapsed_slice_dims, spec)
    if spec is None or not split:
        return _compat.bind(equation, operands, params)
    table, places = operands
    whole, is_filled = aval(equation.invars[0]).shape, params["mode"] == _FILL
    places = _integers(places, whole, numbers.start_index_map, params["mode"])
    is_mine: Array = True
    for dim in split:
        column = numbers.start_index_map.index(dim)
        index, start = places[..., column], _start(table, dim, spec, mesh)
        mine = (index >= start) & (index < start + table.shape[dim])
        local = jnp.where(mine, index - start, 0)
        if is_filled:
            is_outside = (index < 0) | (index >= whole[dim])
            mine = jnp.where(is_outside, start == 0, mine)
            local = jnp.where(is_outside, -1, local)
        is_mine = is_mine & mine
        places = places.at[..., column].set(local)
    params = params | {"indices_are_sorted": False}
    (found,) = _compat.bind(equation, (table, places), params)
    outer = [d for d in range(found.ndim) if d not in numbers.offset_dims]
    mask = lax.broadcast_in_dim(is_mine, found.shape, outer)
    return [jnp.where(mask, found, jnp.zeros_like(found))]


def scatter_part(
    equation: JaxprEqn,
    operands: Sequence[Array],
    params: dict[str, Any],
    spec: Spec | None,
    mesh: Mesh,
) -> list[Array]:
    """A scatter that drops what belongs into another device's part; see `gather_part`."""
    numbers = params["dimension_numbers"]
    split = _split(numbers.inserted_window_dims, spec)
    if spec is None or not split:
        return _compat.bind(equation, operands, params)
    target, places, updates = operands
    indexed = numbers.scatter_dims_to_operand_dims
    places = _integers(places, aval(equation.invars[0]).shape, indexed, params["mode"])
    for dim in split:
        column = indexed.index(dim)
        index, start = places[..., column], _start(target, dim, spec, mesh)
        mine = (index >= start) & (index < start + target.shape[dim])
        places = places.at[..., column].set(jnp.where(mine, index - start, -1))
    params = params | {"mode": _FILL, "indices_are_sorted": False, "unique_indices": False}
    return _compat.bind(equation, (target, places, updates), params)


def _split(dims: Sequence[int], spec: Spec | None) -> list[int]:
    return [] if spec is None else [dim for dim in dims if spec.plain_dims[dim]]


def _integers(places: Array, whole: Sequence[int], indexed: Sequence[int], mode: Any) -> Array:
    """The indices as numbers below zero, too, and clipped if that is what the equation does."""
    if places.dtype not in (np.int32, np.int64):
        places = places.astype(np.int32)
    if mode != GatherScatterMode.CLIP:
        return places
    return jnp.clip(places, 0, np.array([whole[dim] - 1 for dim in indexed], places.dtype))


def _start(part: Array, dim: int, spec: Spec, mesh: Mesh) -> Array:
    """Where this device's part begins."""
    axes = tuple(mesh.axis_names[axis] for axis in spec.plain_dims[dim])
    return lax.axis_index(axes) * part.shape[dim]
