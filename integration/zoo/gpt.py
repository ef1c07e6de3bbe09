"""GPT-3 at the sizes of Alpa's Table 6, in plain JAX: it predicts the next token.

The variants are what people do to such a model: tied or separate embeddings, bfloat16 with weights
in float32, dropout, rematerialization, a scan over the layers, a loss with a custom gradient or
over texts of different lengths, an average of the weights over the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.data import text
from zoo.example import Example
from zoo.losses import cross_entropy, cross_entropy_by_hand
from zoo.transformer import (
    Array,
    Params,
    Sizes,
    block,
    causal,
    layer_norm,
    norm_weights,
    normal,
    stack_of_blocks,
)


@dataclass(frozen=True, slots=True)
class Config(Sizes):
    """Sizes of a GPT."""

    sequence: int = 1024
    vocabulary: int = 51_200


CONFIGS = {
    "gpt-tiny": Config(32, 2, 4, sequence=8, vocabulary=64),
    "gpt-small": Config(64, 4, 4, sequence=16, vocabulary=128),
    # Alpa, Table 6; the sequence and the vocabulary are from appendix B.
    "gpt-350m": Config(1024, 24, 16),
    "gpt-1.3b": Config(2048, 24, 32),
    "gpt-2.6b": Config(2560, 32, 32),
    "gpt-6.7b": Config(4096, 32, 32),
    "gpt-15b": Config(5120, 48, 32),
    "gpt-39b": Config(8192, 48, 64),
}


def init(config: Config, key: Array, *, tied: bool = True, scan: bool = False) -> Params:
    """Random weights.

    Args:
        config: The sizes of the model.
        key: A random key of JAX.
        tied: Whether the output layer is the embedding, transposed.
        scan: Whether the weights of the blocks are stacked, for a scan over them.
    """
    embedding, position, head, blocks = jax.random.split(key, 4)
    layers = stack_of_blocks(blocks, config)
    params = {
        "embedding": normal(embedding, config.vocabulary, config.width),
        "position": normal(position, config.sequence, config.width),
        "blocks": jax.tree.map(lambda *of: jnp.stack(of), *layers) if scan else layers,
        "norm": norm_weights(config.width),
    }
    if not tied:
        params["head"] = normal(head, config.width, config.vocabulary)
    return params


def logits(
    params: Params,
    tokens: Array,
    config: Config,
    *,
    key: Array | None = None,
    rate: float = 0.0,
    dtype: Any = jnp.float32,
    remat: bool = False,
) -> Array:
    """Logits (batch, sequence, vocabulary) of the next token, for tokens (batch, sequence)."""
    x = (params["embedding"][tokens] + params["position"]).astype(dtype)
    run: Callable[..., Array] = partial(
        block, n_heads=config.n_heads, mask=causal(config.sequence), rate=rate
    )
    if remat:
        run = jax.checkpoint(run)
    blocks = params["blocks"]
    keys = None if key is None else jax.random.split(key, config.n_layers)
    if isinstance(blocks, list):
        for i, weights in enumerate(blocks):
            x = run(x, weights, key=None if keys is None else keys[i])
    else:
        x, _ = jax.lax.scan(lambda x, of: (run(x, of[0], key=of[1]), None), x, (blocks, keys))
    x = layer_norm(x, params["norm"])
    head = params["head"] if "head" in params else params["embedding"].T
    scores: Array = x @ head.astype(dtype)
    return scores


def make(
    config: Config,
    *,
    batch: int,
    optimizer: optax.GradientTransformation | None = None,
    tied: bool = True,
    scan: bool = False,
    remat: bool = False,
    dropout: float = 0.0,
    dtype: str = "float32",
    custom_vjp: bool = False,
    padded: bool = False,
    average: float = 0.0,
) -> Example:
    """The training step for one device; the docstring of this module names the variants."""
    entropy = cross_entropy_by_hand if custom_vjp else cross_entropy

    def loss(params: Params, batch: dict[str, Array], *key: Array) -> Array:
        scores = logits(
            params,
            batch["tokens"],
            config,
            key=key[0] if key else None,
            rate=dropout,
            dtype=jnp.dtype(dtype),
            remat=remat,
        )
        entropies = entropy(scores, batch["targets"])
        if not padded:
            return jnp.mean(entropies)
        is_text = jnp.arange(config.sequence) < batch["lengths"][:, None]
        return jnp.sum(jnp.where(is_text, entropies, 0.0)) / jnp.sum(is_text)

    def texts(key: Array) -> dict[str, Array]:
        tokens = text(key, batch, config.sequence, config.vocabulary)
        if padded:
            tokens["lengths"] = jax.random.randint(key, (batch,), 1, config.sequence + 1)
        return tokens

    return Example.of(
        loss,
        lambda key: init(config, key, tied=tied, scan=scan),
        texts,
        optimizer,
        has_key=dropout > 0,
        average=average,
    )
