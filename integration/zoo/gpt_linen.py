"""The small GPT in flax linen, with a TrainState, as its users write it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from zoo.data import text
from zoo.example import Arguments, Example, adamw
from zoo.gpt import CONFIGS, Config
from zoo.losses import cross_entropy

__all__ = ["CONFIGS", "Config", "make"]

Array = jax.Array


class Block(nn.Module):
    """Attention and MLP, each with a residual connection."""

    config: Config

    @nn.compact
    def __call__(self, x: Array, mask: Array) -> Array:
        """Map x of shape (batch, sequence, width) to the same shape."""
        normed = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=self.config.n_heads)(normed, mask=mask)
        hidden = nn.gelu(nn.Dense(4 * self.config.width)(nn.LayerNorm()(x)))
        result: Array = x + nn.Dense(self.config.width)(hidden)
        return result


class GPT(nn.Module):
    """A language model whose output layer is its embedding."""

    config: Config

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        """Logits (batch, sequence, vocabulary) for tokens (batch, sequence)."""
        config = self.config
        embed = nn.Embed(config.vocabulary, config.width)
        positions = nn.Embed(config.sequence, config.width)(jnp.arange(config.sequence))
        x, mask = embed(tokens) + positions, nn.make_causal_mask(tokens)
        for _ in range(config.n_layers):
            x = Block(config)(x, mask)
        logits: Array = embed.attend(nn.LayerNorm()(x))
        return logits


def make(
    config: Config, *, batch: int, optimizer: optax.GradientTransformation | None = None
) -> Example:
    """A step `(state, batch) -> (state, loss)`."""
    model, optimizer = GPT(config), optimizer or adamw()

    def step(state: TrainState, batch: dict[str, Array]) -> tuple[TrainState, Array]:
        def loss(params: Any) -> Array:
            logits = state.apply_fn({"params": params}, batch["tokens"])
            return jnp.mean(cross_entropy(logits, batch["targets"]))

        value, gradients = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradients), value

    def init(key: Array) -> Arguments:
        weights, words = jax.random.split(key)
        tokens = text(words, batch, config.sequence, config.vocabulary)
        params = model.init(weights, tokens["tokens"])["params"]
        state = TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)
        return state, tokens

    return Example(step, init, batch_argnums=(1,))
