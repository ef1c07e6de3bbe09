"""Blocks of transformers in plain JAX, which GPT, BERT, ViT and the mixture of experts share.

Arrays have the shape (batch, sequence, width); weights are dicts of arrays. Norms and losses are
computed in float32, whatever the type of the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array
Params = dict[str, Any]

INIT_SCALE = 0.02
"""Deviation of random weights, as in GPT-2 and BERT."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that every transformer has."""

    width: int
    n_layers: int
    n_heads: int


def normal(key: Array, *shape: int) -> Array:
    """Random weights of deviation `INIT_SCALE`."""
    return jax.random.normal(key, shape, jnp.float32) * INIT_SCALE


def norm_weights(width: int) -> Params:
    """Scale and offset of a layer norm."""
    return {"scale": jnp.ones(width), "offset": jnp.zeros(width)}


def dense_weights(key: Array, n_in: int, n_out: int) -> Params:
    """Weights of a dense layer: a matrix and a bias."""
    return {"kernel": normal(key, n_in, n_out), "bias": jnp.zeros(n_out)}


def attention_weights(key: Array, width: int) -> Params:
    """Weights of an attention: query, key, value and output, and the norm before them."""
    keys = jax.random.split(key, 4)
    names = ("query", "key", "value", "output")
    weights = {n: dense_weights(k, width, width) for n, k in zip(names, keys, strict=True)}
    return {"norm": norm_weights(width), **weights}


def mlp_weights(key: Array, width: int, hidden: int) -> Params:
    """Weights of an MLP: two dense layers, and the norm before them."""
    up, down = jax.random.split(key)
    return {
        "norm": norm_weights(width),
        "up": dense_weights(up, width, hidden),
        "down": dense_weights(down, hidden, width),
    }


def block_weights(key: Array, width: int, hidden: int) -> Params:
    """Weights of a block: an attention and an MLP."""
    attention_key, mlp_key = jax.random.split(key)
    return {
        "attention": attention_weights(attention_key, width),
        "mlp": mlp_weights(mlp_key, width, hidden),
    }


def stack_of_blocks(key: Array, sizes: Sizes) -> list[Params]:
    """Weights of a block for each layer; the hidden layers have four times the width."""
    keys = jax.random.split(key, sizes.n_layers)
    return [block_weights(k, sizes.width, 4 * sizes.width) for k in keys]


def layer_norm(x: Array, weights: Params) -> Array:
    """x with mean 0 and variance 1 along the last dim, then scale and offset."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = jnp.square(wide - mean).mean(-1, keepdims=True)
    normed = (wide - mean) * jax.lax.rsqrt(variance + 1e-5)
    result: Array = (normed * weights["scale"] + weights["offset"]).astype(x.dtype)
    return result


def dense(x: Array, weights: Params) -> Array:
    """A dense layer on the last dim of x: the product with a matrix, plus a bias."""
    result: Array = x @ weights["kernel"].astype(x.dtype) + weights["bias"].astype(x.dtype)
    return result


def attention(x: Array, weights: Params, n_heads: int, mask: Array | None = None) -> Array:
    """Multi-head attention on the layer norm of x.

    Args:
        x: Shape (batch, sequence, width).
        weights: Weights of `attention_weights`.
        n_heads: Number of heads, which divides the width.
        mask: True where a query (next to last dim) may attend to a key (last dim).
    """
    batch, sequence, width = x.shape
    normed = layer_norm(x, weights["norm"])

    def heads(name: str) -> Array:
        return dense(normed, weights[name]).reshape(batch, sequence, n_heads, width // n_heads)

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(width // n_heads)
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    shares = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, value).reshape(batch, sequence, width)
    return dense(mixed, weights["output"])


def mlp(x: Array, weights: Params) -> Array:
    """Two dense layers with GELU between them, on the layer norm of x."""
    hidden = jax.nn.gelu(dense(layer_norm(x, weights["norm"]), weights["up"]))
    return dense(hidden, weights["down"])


def dropout(x: Array, key: Array | None, rate: float) -> Array:
    """x with a share of its elements zeroed at random and the rest scaled up; x without a key."""
    if key is None or not rate:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))


def block(
    x: Array,
    weights: Params,
    n_heads: int,
    mask: Array | None = None,
    key: Array | None = None,
    rate: float = 0.0,
) -> Array:
    """Attention and MLP, each with dropout and a residual connection."""
    keys = (None, None) if key is None else tuple(jax.random.split(key))
    x = x + dropout(attention(x, weights["attention"], n_heads, mask), keys[0], rate)
    return x + dropout(mlp(x, weights["mlp"]), keys[1], rate)


def causal(sequence: int) -> Array:
    """The mask by which a token attends to itself and to earlier tokens."""
    return jnp.tril(jnp.ones((sequence, sequence), bool))
