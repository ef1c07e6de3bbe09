"""Decoders as Megatron-LM and its successors train them, written for one device.

Weights are kept in half precision, beside them in float32 for Adam. As in these programs, norms,
softmax and the loss are functions of their own that keep little for backward, and masks of dropout
take a byte an element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

Step = tuple[Callable[..., Any], tuple[Any, ...]]
"""A training step, and the shapes of its arguments: state and batch."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a decoder."""

    n_layers: int
    width: int
    heads: int
    sequence: int
    vocabulary: int
    remat: bool
    """Whether backward computes each block again."""
    dropout: bool = True
    half: str = "bfloat16"


def decoder_step(of: Decoder, batch: int) -> Step:
    """A step of Adam on a GPT-3 style decoder."""
    h, half = of.width, jnp.dtype(of.half)

    def block(x: Any, w: Any, seed: Any) -> Any:
        normed = layer_norm(x, w["norm1"], w["shift1"])
        mixed = normed @ w["qkv"] + w["qkv_bias"]
        parts = mixed.reshape(*mixed.shape[:2], of.heads, 3, h // of.heads)
        query, key, value = (parts[:, :, :, i] for i in range(3))
        scores = jnp.einsum("bqnd,bknd->bnqk", query, key)
        weights = causal_softmax(scores, 1 / math.sqrt(h // of.heads))
        if of.dropout:
            weights = dropout(weights, seed)
        context = jnp.einsum("bnqk,bknd->bqnd", weights, value).reshape(x.shape)
        out = context @ w["out"] + w["out_bias"]
        x = x + (dropout(out, seed + 1) if of.dropout else out)
        normed = layer_norm(x, w["norm2"], w["shift2"])
        out = gelu(normed @ w["up"] + w["up_bias"]) @ w["down"] + w["down_bias"]
        return x + (dropout(out, seed + 2) if of.dropout else out)

    run = jax.checkpoint(block) if of.remat else block

    def loss(weights: Any, tokens: Any, seed: Any) -> Any:
        x = weights["embedding"][tokens] + weights["position"]
        if of.dropout:
            x = dropout(x, seed)
        for index, w in enumerate(weights["blocks"]):
            x = run(x, w, seed + 3 * index)
        x = layer_norm(x, weights["norm"], weights["shift"])
        return cross_entropy(x @ weights["head"], jnp.roll(tokens, -1, axis=1))

    def shape(*sizes: int) -> Any:
        return jax.ShapeDtypeStruct(sizes, half)

    one = {
        "norm1": shape(h), "shift1": shape(h), "qkv": shape(h, 3 * h), "qkv_bias": shape(3 * h),
        "out": shape(h, h), "out_bias": shape(h), "norm2": shape(h), "shift2": shape(h),
        "up": shape(h, 4 * h), "up_bias": shape(4 * h),
        "down": shape(4 * h, h), "down_bias": shape(h),
    }  # fmt: skip
    weights = {
        "embedding": shape(of.vocabulary, h),
        "position": shape(of.sequence, h),
        "blocks": [dict(one) for _ in range(of.n_layers)],
        "norm": shape(h),
        "shift": shape(h),
        "head": shape(h, of.vocabulary),
    }
    return adam_step(loss, weights), (*state_of(weights), batch_of(batch, of.sequence))


def adam_step(loss: Callable[..., Any], weights: Any) -> Callable[..., Any]:
    """A step of Adam with weights in half precision and their originals in float32."""

    def step(weights: Any, masters: Any, moments: Any, batch: Any) -> Any:
        tokens, seed = batch
        value, gradients = jax.value_and_grad(loss)(weights, tokens, seed)

        def update(master: Any, moment: Any, gradient: Any) -> Any:
            g = gradient.astype(jnp.float32)
            first, second = 0.9 * moment[0] + 0.1 * g, 0.95 * moment[1] + 0.05 * g * g
            master = master - 1e-4 * (first / (jnp.sqrt(second) + 1e-8) + 0.1 * master)
            return master, (first, second)

        new = [
            update(*each) for each in zip(masters, moments, jax.tree.leaves(gradients), strict=True)
        ]
        halves = [
            master.astype(weight.dtype)
            for (master, _), weight in zip(new, jax.tree.leaves(weights), strict=True)
        ]
        return (
            jax.tree.unflatten(jax.tree.structure(weights), halves),
            [master for master, _ in new],
            [moment for _, moment in new],
            value,
        )

    return step


def state_of(weights: Any) -> tuple[Any, Any, Any]:
    """The shapes of weights, of their originals in float32, and of Adam's moments."""
    full = [jax.ShapeDtypeStruct(w.shape, jnp.float32) for w in jax.tree.leaves(weights)]
    return weights, full, [(leaf, leaf) for leaf in full]


def batch_of(batch: int, sequence: int) -> Any:
    """The shapes of tokens, and of the seed of dropout."""
    return (
        jax.ShapeDtypeStruct((batch, sequence), jnp.int32),
        jax.ShapeDtypeStruct((), jnp.uint32),
    )


def dropout(x: Any, seed: Any, keep: float = 0.9) -> Any:
    """Dropout with a generator that counts, as cuRAND's Philox does: no bits are read or kept.

    All examples have the same mask, so that it does not depend on how the batch is cut.
    """
    bits = seed
    for axis in range(1, x.ndim):
        bits = (bits ^ jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)) * jnp.uint32(2654435761)
    return jnp.where(bits < jnp.uint32(keep * 2**32), x * (1 / keep), 0).astype(x.dtype)


@jax.custom_vjp
def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    """Layer norm in float32; it keeps its operand, mean and deviation."""
    return _norm(x, scale, shift)[0]


def _norm(x: Any, scale: Any, shift: Any) -> Any:
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.square(wide - mean).mean(-1, keepdims=True) + 1e-5)
    result = (wide - mean) * rate * scale.astype(jnp.float32) + shift.astype(jnp.float32)
    return result.astype(x.dtype), (x, scale, mean, rate)


def _norm_back(kept: Any, gradient: Any) -> Any:
    x, scale, mean, rate = kept
    normed = (x.astype(jnp.float32) - mean) * rate
    wide = gradient.astype(jnp.float32)
    scaled = wide * scale.astype(jnp.float32)
    first = scaled.mean(-1, keepdims=True)
    second = (scaled * normed).mean(-1, keepdims=True)
    axes = tuple(range(x.ndim - 1))
    to_scale, to_shift = (wide * normed).sum(axes), wide.sum(axes)
    to_x = rate * (scaled - first - normed * second)
    return to_x.astype(x.dtype), to_scale.astype(scale.dtype), to_shift.astype(scale.dtype)


layer_norm.defvjp(_norm, _norm_back)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def causal_softmax(scores: Any, scale: float) -> Any:
    """Scaled softmax over the keys before each query; it keeps its result."""
    size = scores.shape[-1]
    wide = scores.astype(jnp.float32) * scale
    row = jax.lax.broadcasted_iota(jnp.int32, (size, size), 0)
    column = jax.lax.broadcasted_iota(jnp.int32, (size, size), 1)
    wide = jnp.where(column <= row, wide, -10000.0)
    powers = jnp.exp(wide - wide.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True)).astype(scores.dtype)


def _softmax_back(scale: float, result: Any, gradient: Any) -> Any:
    wide, to = result.astype(jnp.float32), gradient.astype(jnp.float32)
    product = wide * to
    return (scale * (product - wide * product.sum(-1, keepdims=True)).astype(result.dtype),)


causal_softmax.defvjp(lambda s, scale: (causal_softmax(s, scale),) * 2, _softmax_back)


@jax.custom_vjp
def gelu(x: Any) -> Any:
    """GELU by tanh; it keeps its operand."""
    return jax.nn.gelu(x)


gelu.defvjp(lambda x: (jax.nn.gelu(x), x), lambda x, to: jax.vjp(jax.nn.gelu, x)[1](to))


def cross_entropy(logits: Any, targets: Any) -> Any:
    """The mean loss of tokens, in float32."""
    wide = logits.astype(jnp.float32)
    log_sums = jax.nn.logsumexp(wide, axis=-1)
    chosen = jnp.take_along_axis(wide, targets[..., None], axis=-1)[..., 0]
    return (log_sums - chosen).mean()
