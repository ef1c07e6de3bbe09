"""The small GPT in equinox: a model of one sequence, mapped over the batch."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from zoo.data import text
from zoo.example import Arguments, Example, adamw
from zoo.gpt import CONFIGS, Config
from zoo.losses import cross_entropy

__all__ = ["CONFIGS", "Config", "make"]

Array = jax.Array


class Block(eqx.Module):
    """Attention and MLP, each with a residual connection."""

    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    norms: list[eqx.nn.LayerNorm]

    def __init__(self, config: Config, key: Array) -> None:
        attention, mlp = jax.random.split(key)
        width = config.width
        self.attention = eqx.nn.MultiheadAttention(config.n_heads, width, key=attention)
        self.mlp = eqx.nn.MLP(width, width, 4 * width, 1, jax.nn.gelu, key=mlp)
        self.norms = [eqx.nn.LayerNorm(width) for _ in range(2)]

    def __call__(self, x: Array, mask: Array) -> Array:
        """Map x of shape (sequence, width) to the same shape."""
        normed = jax.vmap(self.norms[0])(x)
        x = x + self.attention(normed, normed, normed, mask)
        return x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))


class GPT(eqx.Module):
    """A language model with a separate output layer."""

    embed: eqx.nn.Embedding
    positions: Array
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, config: Config, key: Array) -> None:
        embed, positions, blocks, head = jax.random.split(key, 4)
        self.embed = eqx.nn.Embedding(config.vocabulary, config.width, key=embed)
        self.positions = jax.random.normal(positions, (config.sequence, config.width)) * 0.02
        self.blocks = [Block(config, k) for k in jax.random.split(blocks, config.n_layers)]
        self.norm = eqx.nn.LayerNorm(config.width)
        self.head = eqx.nn.Linear(config.width, config.vocabulary, use_bias=False, key=head)

    def __call__(self, tokens: Array) -> Array:
        """Logits (sequence, vocabulary) for tokens (sequence,)."""
        x = jax.vmap(self.embed)(tokens) + self.positions
        mask = jnp.tril(jnp.ones((len(tokens), len(tokens)), bool))
        for block in self.blocks:
            x = block(x, mask)
        return jax.vmap(self.head)(jax.vmap(self.norm)(x))


def make(
    config: Config, *, batch: int, optimizer: optax.GradientTransformation | None = None
) -> Example:
    """A step `(params, opt_state, batch)` on the arrays of the model, without its other leaves."""
    optimizer = optimizer or adamw()
    shapes = eqx.filter_eval_shape(GPT, config, jax.random.key(0))
    _, static = eqx.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def step(params: Any, opt_state: Any, batch: dict[str, Array]) -> tuple[Any, Any, Array]:
        @eqx.filter_value_and_grad
        def loss(model: GPT) -> Array:
            return jnp.mean(cross_entropy(jax.vmap(model)(batch["tokens"]), batch["targets"]))

        value, gradients = loss(eqx.combine(params, static))
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return eqx.apply_updates(params, updates), opt_state, value

    def init(key: Array) -> Arguments:
        weights, words = jax.random.split(key)
        params = eqx.filter(GPT(config, weights), eqx.is_inexact_array)
        tokens = text(words, batch, config.sequence, config.vocabulary)
        return params, optimizer.init(params), tokens

    return Example(step, init)
