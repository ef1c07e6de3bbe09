"""The small GPT in flax nnx, as a function of its state: so nnx's guide to JAX transforms says."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from zoo.data import text
from zoo.example import Arguments, Example, adamw
from zoo.gpt import CONFIGS, Config
from zoo.losses import cross_entropy

__all__ = ["CONFIGS", "Config", "make"]

Array = jax.Array


class Block(nnx.Module):
    """Attention and MLP, each with a residual connection."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        width = config.width
        self.attention = nnx.MultiHeadAttention(config.n_heads, width, decode=False, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])

    def __call__(self, x: Array, mask: Array) -> Array:
        """Map x of shape (batch, sequence, width) to the same shape."""
        x = x + self.attention(self.norms[0](x), mask=mask)
        result: Array = x + self.down(nnx.gelu(self.up(self.norms[1](x))))
        return result


class GPT(nnx.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(config.vocabulary, config.width, rngs=rngs)
        self.positions = nnx.Embed(config.sequence, config.width, rngs=rngs)
        self.blocks = nnx.List([Block(config, rngs) for _ in range(config.n_layers)])
        self.norm = nnx.LayerNorm(config.width, rngs=rngs)

    def __call__(self, tokens: Array) -> Array:
        """Logits (batch, sequence, vocabulary) for tokens (batch, sequence)."""
        x = self.embed(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        logits: Array = self.embed.attend(self.norm(x))
        return logits


def make(
    config: Config, *, batch: int, optimizer: optax.GradientTransformation | None = None
) -> Example:
    """A step `(state, batch) -> (state, loss)` on the state of model and optimizer."""
    transformation = optimizer or adamw()

    def build(key: Array) -> tuple[GPT, nnx.Optimizer[GPT]]:
        model = GPT(config, nnx.Rngs(key))
        return model, nnx.Optimizer(model, transformation, wrt=nnx.Param)

    definition = nnx.graphdef(nnx.eval_shape(lambda: build(jax.random.key(0))))

    def step(state: Any, batch: dict[str, Array]) -> tuple[Any, Array]:
        model, optimizer = nnx.merge(definition, state)

        def loss(model: GPT) -> Array:
            return jnp.mean(cross_entropy(model(batch["tokens"]), batch["targets"]))

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), value

    def init(key: Array) -> Arguments:
        weights, words = jax.random.split(key)
        tokens = text(words, batch, config.sequence, config.vocabulary)
        return nnx.state(build(weights)), tokens

    return Example(step, init, batch_argnums=(1,))
