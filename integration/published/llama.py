"""Llamas as they are trained on GPUs: fused attention, weights in float32 or in half precision."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from published.transformer import Step, adam_step, cross_entropy, state_of

HALF = jnp.dtype("bfloat16")


@dataclass(frozen=True, slots=True)
class Llama:
    """Sizes of a Llama."""

    n_layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    sequence: int
    half_weights: bool = False
    """Whether weights are kept in half precision, with originals in float32, or in float32."""


LLAMA_3_8B = Llama(32, 4096, 32, 8, 14336, 128256, 8192)


def llama_step(of: Llama, batch: int) -> Step:
    """A step of Adam on a Llama that computes in bfloat16."""
    size = of.width // of.heads
    turns = 500000.0 ** (-jnp.arange(0, size, 2) / size)
    angles = jnp.arange(of.sequence)[:, None] * turns

    def rotated(x: Any) -> Any:
        cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
        a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)

    def block(x: Any, w: Any) -> Any:
        w = jax.tree.map(lambda leaf: leaf.astype(HALF) if leaf.ndim > 1 else leaf, w)
        normed = rms_norm(x, w["norm1"])
        q, k, v = (
            (normed @ w[name]).reshape(*x.shape[:2], heads, size)
            for name, heads in (("q", of.heads), ("k", of.kv_heads), ("v", of.kv_heads))
        )
        mixed = jax.nn.dot_product_attention(
            rotated(q), rotated(k), v, is_causal=True, implementation="cudnn"
        )
        x = x + mixed.reshape(x.shape) @ w["out"]
        normed = rms_norm(x, w["norm2"])
        return x + (jax.nn.silu(normed @ w["gate"]) * (normed @ w["up"])) @ w["down"]

    def loss(weights: Any, tokens: Any, seed: Any) -> Any:
        del seed
        x = weights["embedding"].astype(HALF)[tokens]
        for w in weights["blocks"]:
            x = block(x, w)
        logits = rms_norm(x, weights["norm"]) @ weights["head"].astype(HALF)
        return cross_entropy(logits, jnp.roll(tokens, -1, axis=1))

    shape = partial(jax.ShapeDtypeStruct, dtype=HALF if of.half_weights else jnp.float32)
    of_keys = (of.width, of.kv_heads * size)
    one = {
        "norm1": shape((of.width,)), "norm2": shape((of.width,)),
        "q": shape((of.width, of.width)), "k": shape(of_keys), "v": shape(of_keys),
        "out": shape((of.width, of.width)), "gate": shape((of.width, of.hidden)),
        "up": shape((of.width, of.hidden)), "down": shape((of.hidden, of.width)),
    }  # fmt: skip
    weights = {
        "embedding": shape((of.vocabulary, of.width)),
        "blocks": [dict(one) for _ in range(of.n_layers)],
        "norm": shape((of.width,)),
        "head": shape((of.width, of.vocabulary)),
    }
    tokens = jax.ShapeDtypeStruct((batch, of.sequence), jnp.int32)
    inputs = (tokens, jax.ShapeDtypeStruct((), jnp.uint32))
    if of.half_weights:
        return adam_step(loss, weights), (*state_of(weights), inputs)
    return _adam_step(loss), (weights, [(w, w) for w in jax.tree.leaves(weights)], inputs)


def _adam_step(loss: Any) -> Any:
    """A step of Adam with weights in float32."""

    def step(weights: Any, moments: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, *batch)
        leaves, tree = jax.tree.flatten(weights)
        new = []
        for w, (first, second), g in zip(leaves, moments, jax.tree.leaves(gradients), strict=True):
            first, second = 0.9 * first + 0.1 * g, 0.95 * second + 0.05 * g * g
            w = w - 1e-4 * (first / (jnp.sqrt(second) + 1e-8) + 0.1 * w)
            new.append((w, (first, second)))
        return jax.tree.unflatten(tree, [w for w, _ in new]), [m for _, m in new], value

    return step


@jax.custom_vjp
def rms_norm(x: Any, scale: Any) -> Any:
    """Root-mean-square norm in float32; it keeps its operand and the root."""
    return _norm(x, scale)[0]


def _norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    rate = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-5)
    return (wide * rate * scale.astype(jnp.float32)).astype(x.dtype), (x, scale, rate)


def _norm_back(kept: Any, gradient: Any) -> Any:
    x, scale, rate = kept
    normed, wide = x.astype(jnp.float32) * rate, gradient.astype(jnp.float32)
    scaled = wide * scale.astype(jnp.float32)
    to_x = rate * (scaled - normed * (scaled * normed).mean(-1, keepdims=True))
    to_scale = (wide * normed).sum(tuple(range(x.ndim - 1)))
    return to_x.astype(x.dtype), to_scale.astype(scale.dtype)


rms_norm.defvjp(_norm, _norm_back)
