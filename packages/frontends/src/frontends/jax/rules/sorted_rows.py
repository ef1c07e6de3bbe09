"""Products of rows that each example sorts by itself, which `frontends.jax.trace.sort` adds.

The first dim of the rows is that of the examples, so that these can be split. Without a split, rows
of all examples that belong to one group are multiplied at once, by `lax.ragged_dot`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from frontends.jax.rules.custom_op import custom_op

Array = Any

_BY_GROUP = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())


def _groups(begins: Array, ends: Array, rows: int) -> tuple[Array, Array]:
    """The rows of all examples by group, and how many each group has; the others come last.

    Args:
        begins: Where each group begins in the rows of an example, of shape (examples, groups).
        ends: Where it ends. Groups are in order; rows may belong to none.
        rows: How many rows an example has.
    """
    n = ends.shape[1]
    places = jnp.arange(rows, dtype=ends.dtype)
    group = jax.vmap(lambda end: jnp.searchsorted(end, places, side="right"))(ends)
    first = jnp.take_along_axis(begins, jnp.minimum(group, n - 1), axis=1)
    group = jnp.where(first <= places, group, n).reshape(-1)
    return jnp.argsort(group), jnp.bincount(group, length=n + 1)[:n].astype(jnp.int32)


@custom_op
def meshwright_multiply_rows(
    a: Array, b: Array, begins: Array, ends: Array, *, precision: Any
) -> Array:
    """Multiply each row with the matrix of its group; rows without a group yield zeros."""
    order, sizes = _groups(begins, ends, a.shape[1])
    rows = a.reshape(-1, a.shape[2])[order]
    products = lax.ragged_dot(rows, b, sizes, precision=precision)
    has_group = jnp.arange(len(rows))[:, None] < sizes.sum()
    products = jnp.where(has_group, products, 0)
    return products[jnp.argsort(order)].reshape(*a.shape[:2], b.shape[2])


@custom_op
def meshwright_multiply_groups(
    a: Array, b: Array, begins: Array, ends: Array, *, precision: Any
) -> Array:
    """For each group, the product of its rows of `a`, transposed, and its rows of `b`."""
    order, sizes = _groups(begins, ends, a.shape[1])
    left, right = (x.reshape(-1, x.shape[2])[order] for x in (a, b))
    return lax.ragged_dot_general(left, right, sizes, _BY_GROUP, precision=precision)
