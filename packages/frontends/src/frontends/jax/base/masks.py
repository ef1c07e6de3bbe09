"""Gathers and scatters whose indexed operand is split: each device handles indices in its part.

An embedding table that is split by rows is read like Megatron's vocabulary-parallel embedding
(Shoeybi et al. 2019, §3): a device makes zeros for the rows that it lacks, and the sum over all
devices is the lookup. A scatter drops the update of a row that another device has.
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
    """Whether the dims that a gather or scatter indexes may be split.

    Booleans cannot be summed over devices, so a gather of booleans is not split. In mode CLIP the
    bound of an index depends on the size of its slice, so all indexed dims must be such that an
    index picks a single element.
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
    """Gather from this device's part; the results are partial sums.

    They are partial over the axes that split the indexed dims. Where an index is outside the whole
    operand, the first device writes the fill value and the others write zeros.

    Args:
        equation: The gather from the whole operand.
        operands: This device's part of the operand, and the indices.
        params: Parameters of the gather from the part.
        spec: The operand's layout; None for a literal, which is whole.
        mesh: The mesh of the layout.
    """
    numbers = params["dimension_numbers"]
    split = _split(numbers.collapsed_slice_dims, spec)
    if spec is None or not split:
        return _compat.bind(equation, operands, params)
    table, indices = operands
    whole, is_filled = aval(equation.invars[0]).shape, params["mode"] == _FILL
    indices = _integers(indices, whole, numbers.start_index_map, params["mode"])
    is_local: Array = True
    for dim in split:
        column = numbers.start_index_map.index(dim)
        index, start = indices[..., column], _start(table, dim, spec, mesh)
        in_part = (index >= start) & (index < start + table.shape[dim])
        local = jnp.where(in_part, index - start, 0)
        if is_filled:
            is_outside = (index < 0) | (index >= whole[dim])
            in_part = jnp.where(is_outside, start == 0, in_part)
            local = jnp.where(is_outside, -1, local)
        is_local = is_local & in_part
        indices = indices.at[..., column].set(local)
    params = params | {"indices_are_sorted": False}
    (gathered,) = _compat.bind(equation, (table, indices), params)
    outer = [d for d in range(gathered.ndim) if d not in numbers.offset_dims]
    mask = lax.broadcast_in_dim(is_local, gathered.shape, outer)
    return [jnp.where(mask, gathered, jnp.zeros_like(gathered))]


def scatter_part(
    equation: JaxprEqn,
    operands: Sequence[Array],
    params: dict[str, Any],
    spec: Spec | None,
    mesh: Mesh,
) -> list[Array]:
    """Scatter into this device's part; updates of other parts are dropped. See `gather_part`."""
    numbers = params["dimension_numbers"]
    split = _split(numbers.inserted_window_dims, spec)
    if spec is None or not split:
        return _compat.bind(equation, operands, params)
    target, indices, updates = operands
    indexed = numbers.scatter_dims_to_operand_dims
    indices = _integers(indices, aval(equation.invars[0]).shape, indexed, params["mode"])
    for dim in split:
        column = indexed.index(dim)
        index, start = indices[..., column], _start(target, dim, spec, mesh)
        in_part = (index >= start) & (index < start + target.shape[dim])
        indices = indices.at[..., column].set(jnp.where(in_part, index - start, -1))
    params = params | {"mode": _FILL, "indices_are_sorted": False, "unique_indices": False}
    return _compat.bind(equation, (target, indices, updates), params)


def _split(dims: Sequence[int], spec: Spec | None) -> list[int]:
    return [] if spec is None else [dim for dim in dims if spec.plain_dims[dim]]


def _integers(indices: Array, whole: Sequence[int], indexed: Sequence[int], mode: Any) -> Array:
    """The indices in a signed type, as they may become negative, and clipped in mode CLIP."""
    if indices.dtype not in (np.int32, np.int64):
        indices = indices.astype(np.int32)
    if mode != GatherScatterMode.CLIP:
        return indices
    return jnp.clip(indices, 0, np.array([whole[dim] - 1 for dim in indexed], indices.dtype))


def _start(part: Array, dim: int, spec: Spec, mesh: Mesh) -> Array:
    """The index of the whole dim at which this device's part begins."""
    axes = tuple(mesh.axis_names[axis] for axis in spec.plain_dims[dim])
    return lax.axis_index(axes) * part.shape[dim]
