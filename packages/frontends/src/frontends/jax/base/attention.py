"""Attention as one operator: the program of what a fused kernel computes, for any device.

A kernel such as cuDNN's keeps the scores on the chip and, for its gradient, only the logarithm of
each row's sum (FlashAttention 2, Dao 2023, arXiv 2307.08691, section 3.1). Where a device has no
such kernel, the same is computed here, a block of rows at a time, so that no more scores than those
of a block are in memory.

Arrays: queries `(B, T, N, H)`; keys `(B, S, K, H)` and values `(B, S, K, E)`, where K divides N and
each head of keys serves N / K heads of queries in a row; a bias `(B or 1, N or 1, T, S)`; lengths
`(B,)`; the result `(B, T, N, E)`; the statistics, in float32, `(B, N, T)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any
_BLOCK_SCORES = 1 << 22
"""About how many scores of a head are computed at once."""


@dataclass(frozen=True, slots=True)
class Attention:
    """What attention computes, besides arrays: an attribute of its operators."""

    scale: float
    is_causal: bool = False
    """Whether row t sees keys 0 to t only."""
    window: int | None = None
    """Row t sees keys after t - window only; None for all."""
    has_bias: bool = False
    """Whether a bias follows queries, keys and values."""
    has_lengths: bool = False
    """Whether lengths of queries and of keys follow these, each as numbers by example."""
    bias_gradient: bool = False
    """Whether the gradient of the bias is computed."""

    @property
    def is_by_place(self) -> bool:
        """Whether the result of a row depends on its number."""
        return self.is_causal or self.window is not None or self.has_lengths

    @property
    def n_operands(self) -> int:
        """How many arrays forward reads."""
        return 3 + self.has_bias + 2 * self.has_lengths

    def pairs(self, rows: int, keys: int) -> float:
        """How many pairs of a row and a key that it sees a head has, at most."""
        row = np.arange(rows)
        last = np.minimum(row + 1, keys) if self.is_causal else np.full(rows, keys)
        first = 0 if self.window is None else np.maximum(row - self.window + 1, 0)
        return float(np.maximum(last - first, 0).sum())

    def __str__(self) -> str:
        words = [f"scale {self.scale:.4g}"]
        words += ["causal"] * self.is_causal
        words += [] if self.window is None else [f"window {self.window}"]
        words += ["bias"] * self.has_bias + ["lengths"] * self.has_lengths
        return ", ".join(words)


def attend(operands: Sequence[Array], how: Attention, first_row: Array | int = 0) -> list[Array]:
    """The result and the statistics.

    Args:
        operands: Queries, keys, values, and what `how` says.
        how: What to compute.
        first_row: The number of the first row, if these are some rows of a whole.
    """
    queries, keys, values, bias, lengths = _parts(operands, how)
    grouped = _grouped(queries, keys)

    def block(rows: Array, of_bias: Array | None, first: Array) -> tuple[Array, Array]:
        scores, is_seen = _scores(rows, keys, of_bias, lengths, how, first)
        highest = jnp.max(scores, axis=-1, keepdims=True)
        highest = jnp.where(jnp.isfinite(highest), highest, 0.0)
        weights = jnp.exp(scores - highest)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        summed = _product("bkgts,bske->btkge", weights.astype(values.dtype), values)
        shape = "bkgto->btkgo"
        result = summed / jnp.maximum(jnp.einsum(shape, total), np.finfo(np.float32).tiny)
        if is_seen is not None:
            result = jnp.where(jnp.einsum(shape, is_seen.any(-1, keepdims=True)), result, 0.0)
        return result.astype(values.dtype), (highest + jnp.log(total))[..., 0]

    result, statistics = _by_rows(block, [(grouped, 1), (bias, 2)], first_row, (1, 3), keys)
    batch, rows, heads, _ = queries.shape
    return [
        result.reshape(batch, rows, heads, values.shape[-1]),
        statistics.reshape(batch, heads, rows),
    ]


def attend_backward(
    operands: Sequence[Array], how: Attention, first_row: Array | int = 0
) -> list[Array]:
    """The gradients of queries, keys and values, and of the bias if `how` says so.

    Args:
        operands: Those of `attend`, then its statistics, its result, and the result's gradient.
        how: What was computed.
        first_row: As for `attend`.
    """
    *read, statistics, result, gradient = operands
    queries, keys, values, bias, lengths = _parts(read, how)
    grouped = _grouped(queries, keys)
    result, gradient = (_grouped(x, keys) for x in (result, gradient))
    statistics = statistics.reshape(*grouped.shape[:1], *grouped.shape[2:4], -1)
    inner = jnp.sum(result.astype(jnp.float32) * gradient.astype(jnp.float32), axis=-1)
    inner = jnp.einsum("btkg->bkgt", inner)

    def block(
        rows: Array, of_bias: Array | None, logs: Array, dots: Array, given: Array, first: Array
    ) -> tuple[Array, ...]:
        scores, is_seen = _scores(rows, keys, of_bias, lengths, how, first)
        weights = jnp.exp(scores - jnp.where(jnp.isfinite(logs), logs, 0.0)[..., None])
        if of_bias is not None:  # one that masks a whole row is too large to add a logarithm to
            weights = weights / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1e-30)
        if is_seen is not None:
            weights = jnp.where(is_seen, weights, 0.0)
        of_values = _product("bkgts,btkge->bske", weights.astype(given.dtype), given)
        of_weights = _product("btkge,bske->bkgts", given, values)
        of_scores = weights * (of_weights - dots[..., None])
        low = of_scores.astype(rows.dtype)
        of_rows = _product("bkgts,bskh->btkgh", low, keys) * how.scale
        of_keys = _product("bkgts,btkgh->bskh", low, rows) * how.scale
        if bias is None or not how.bias_gradient:
            return of_rows.astype(queries.dtype), of_keys, of_values
        summed = of_scores.reshape(of_scores.shape[0], -1, *of_scores.shape[3:])
        once = tuple(d for d in (0, 1) if bias.shape[d] == 1)
        of_bias = jnp.sum(summed, once, keepdims=True).astype(bias.dtype)
        return of_rows.astype(queries.dtype), of_bias, of_keys, of_values

    blocked = [(grouped, 1), (bias, 2), (statistics, 3), (inner, 3), (gradient, 1)]
    dims = (1, 2) if bias is not None and how.bias_gradient else (1,)
    of_rows, *of_bias, of_keys, of_values = _by_rows(block, blocked, first_row, dims, keys)
    made = of_rows.reshape(queries.shape), of_keys.astype(keys.dtype)
    return [*made, of_values.astype(values.dtype), *of_bias]


def _parts(
    operands: Sequence[Array], how: Attention
) -> tuple[Array, Array, Array, Array | None, Sequence[Array]]:
    queries, keys, values, *more = operands
    return queries, keys, values, more.pop(0) if how.has_bias else None, more


def _grouped(array: Array, keys: Array) -> Array:
    """The array with one dim for the heads of keys, and one for the heads that share each."""
    batch, rows, heads, width = array.shape
    return array.reshape(batch, rows, keys.shape[2], heads // keys.shape[2], width)


def _product(formula: str, a: Array, b: Array) -> Array:
    return jnp.einsum(formula, a, b, preferred_element_type=jnp.float32)


def _scores(
    rows: Array,
    keys: Array,
    bias: Array | None,
    lengths: Sequence[Array],
    how: Attention,
    first: Array,
) -> tuple[Array, Array | None]:
    """The scores `(B, K, N / K, t, S)`, and which of them count; None if all do."""
    scores = _product("btkgh,bskh->bkgts", rows, keys) * how.scale
    if bias is not None:
        apart = (1, 1) if bias.shape[1] == 1 else scores.shape[1:3]
        scores = scores + bias.reshape(bias.shape[0], *apart, *bias.shape[2:]).astype(jnp.float32)
    if not how.is_by_place:
        return scores, None
    row = first + jnp.arange(scores.shape[3])[:, None]
    key = jnp.arange(scores.shape[4])[None]
    is_seen = jnp.ones((1, 1, 1, row.shape[0], key.shape[1]), bool)
    if how.is_causal:
        is_seen &= key <= row
    if how.window is not None:
        is_seen &= key > row - how.window
    if how.has_lengths:
        of_rows, of_keys = (n.reshape(-1, 1, 1, 1, 1) for n in lengths)
        is_seen = is_seen & (row < of_rows) & (key < of_keys)
    return jnp.where(is_seen, scores, -jnp.inf), is_seen


def _by_rows(
    block: Callable[..., tuple[Array, ...]],
    arrays: Sequence[tuple[Array | None, int]],
    first_row: Array | int,
    dims: Sequence[int],
    keys: Array,
) -> list[Array]:
    """Call `block` for some rows at a time, and put together what it returns.

    Args:
        block: Takes the rows of each array, and the number of the first of them.
        arrays: Arrays, each with the dim of its rows.
        first_row: The number of the first row.
        dims: For the first results of a block: the dim of their rows. All others are added up.
        keys: The keys.
    """
    total = next(array.shape[dim] for array, dim in arrays if array is not None)
    most = max(1, _BLOCK_SCORES // max(1, keys.shape[1]))
    n = next(n for n in range(1, max(total, 1) + 1) if total % n == 0 and total // n <= most)
    if n == 1:
        return list(block(*(array for array, _ in arrays), first_row))
    size = total // n

    def apart(array: Array, dim: int) -> Array:
        cut = array.reshape(*array.shape[:dim], n, size, *array.shape[dim + 1 :])
        return jnp.moveaxis(cut, dim, 0)

    def of_block(index: Array, rows: Sequence[Array]) -> tuple[Array, ...]:
        filled = iter(rows)
        read = [None if array is None else next(filled) for array, _ in arrays]
        return block(*read, first_row + index * size)

    def one(sums: list[Array], given: tuple[Array, list[Array]]) -> tuple[list[Array], Any]:
        made = of_block(*given)
        added = zip(sums, made[len(dims) :], strict=True)
        return [a + b for a, b in added], made[: len(dims)]

    rows = [apart(array, dim) for array, dim in arrays if array is not None]
    first = jax.eval_shape(of_block, jnp.int32(0), [array[0] for array in rows])
    zeros = [jnp.zeros(x.shape, x.dtype) for x in first[len(dims) :]]
    sums, made = lax.scan(one, zeros, (jnp.arange(n), rows))
    moved = [jnp.moveaxis(x, 0, d) for x, d in zip(made, dims, strict=True)]
    shapes = [(*x.shape[:d], total, *x.shape[d + 2 :]) for x, d in zip(moved, dims, strict=True)]
    return [*(x.reshape(shape) for x, shape in zip(moved, shapes, strict=True)), *sums]
