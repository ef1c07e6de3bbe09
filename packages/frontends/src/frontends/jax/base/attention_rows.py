"""Causal attention of a device's rows by a kernel that counts rows from zero.

The keys are taken in blocks of as many as the rows are. A kernel runs without a mask on blocks
before the rows' own, with a causal mask on that one, and not at all on those after it. The results
of blocks are put together by the sums that the kernel returns; backward, each block's gradients
follow from the sums of all (FlashAttention 2, Dao 2023, section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from frontends.jax.base.attention import Attention

Array = Any
Kernel = Callable[[Sequence[Array], Attention], list[Array]]
"""Computes attention or its gradients of whole sequences."""


def can_take_blocks(how: Attention, queries: Array, keys: Array) -> bool:
    """Whether a block of keys is seen by all rows, by those below the diagonal, or by none."""
    is_plain = not (how.window or how.has_bias or how.has_lengths)
    return how.is_causal and is_plain and keys.shape[1] % queries.shape[1] == 0


def forward(kernel: Kernel, operands: Sequence[Array], how: Attention, first_row: Array) -> Any:
    """The result of attention for some rows, and the statistics.

    Args:
        kernel: Computes them for whole sequences.
        operands: Queries of the rows, and all keys and values.
        how: What to compute.
        first_row: The number of the first row, a multiple of how many there are. It is negative if
            all keys come after the rows, as they do for some parts of a ring.
    """
    queries, keys, values = operands
    size = queries.shape[1]
    own = first_row // size
    batch, rows, heads, _ = queries.shape
    shape = (batch, rows, heads, values.shape[-1])
    none = [jnp.zeros(shape, values.dtype), jnp.full((batch, heads, rows), -jnp.inf, jnp.float32)]

    def one(carry: tuple[Array, Array], index: Array) -> tuple[tuple[Array, Array], None]:
        result, total = carry
        block = [lax.dynamic_slice_in_dim(x, index * size, size, 1) for x in (keys, values)]
        made, of_block = _by_place(kernel, how, [queries, *block], none, index, own)
        both = jnp.logaddexp(total, of_block)
        # Where no block was seen, both are minus infinity.
        parts = (total, of_block)
        kept, added = (jnp.where(jnp.isneginf(p), 0.0, jnp.exp(p - both)) for p in parts)
        kept, added = (jnp.swapaxes(part, 1, 2)[..., None] for part in (kept, added))
        return (result * kept + made.astype(jnp.float32) * added, both), None

    # The rows' own block comes first, so that the sums are finite from then on.
    blocks = (own + jnp.arange(keys.shape[1] // size)) % (keys.shape[1] // size)
    start = jnp.zeros(shape, jnp.float32), none[1]
    (result, total), _ = lax.scan(one, start, blocks)
    return [result.astype(values.dtype), total]


def backward(kernel: Kernel, operands: Sequence[Array], how: Attention, first_row: Array) -> Any:
    """The gradients of some rows, and the parts that these have of those of keys and values.

    Args:
        kernel: Computes gradients for whole sequences.
        operands: Those of `forward`, then its statistics, its result, and the result's gradient.
        how: What was computed.
        first_row: The number of the first row.
    """
    queries, keys, values, *given = operands
    size = queries.shape[1]
    own = first_row // size

    def one(total: Array, index: Array) -> tuple[Array, tuple[Array, Array]]:
        block = [lax.dynamic_slice_in_dim(x, index * size, size, 1) for x in (keys, values)]
        none = [jnp.zeros(x.shape, x.dtype) for x in (queries, *block)]
        made = _by_place(kernel, how, [queries, *block, *given], none, index, own)
        return total + made[0].astype(jnp.float32), (made[1], made[2])

    start = jnp.zeros(queries.shape, jnp.float32)
    total, blocks = lax.scan(one, start, jnp.arange(keys.shape[1] // size))
    of_keys, of_values = (
        jnp.moveaxis(x, 0, 1).reshape(whole.shape)
        for x, whole in zip(blocks, (keys, values), strict=True)
    )
    return [total.astype(queries.dtype), of_keys, of_values]


def _by_place(
    kernel: Kernel,
    how: Attention,
    operands: Sequence[Array],
    none: Sequence[Array],
    index: Array,
    own: Array,
) -> list[Array]:
    """What the kernel makes of a block before, at or after the rows' own."""
    branches = [
        lambda: kernel(operands, replace(how, is_causal=False)),
        lambda: kernel(operands, how),
        lambda: [*none],
    ]
    made: list[Array] = lax.switch(jnp.clip(jnp.sign(index - own) + 1, 0, 2), branches)
    return made
