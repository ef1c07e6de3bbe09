"""GPT-3 by Alpa's Table 6, in plain JAX: a language model that predicts the next token.

Variants are what people do to such a model: tied or separate embeddings, bfloat16 with weights in
float32, dropout, rematerialisation, a scan over the layers, a loss with a gradient of its own, an
average of the weights over the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.example import Example
from zoo.losses import cross_entropy, cross_entropy_by_hand
from zoo.transformer import (
    Array,
    Params,
    block,
    block_weights,
    causal,
    layer_norm,
    norm_weights,
    normal,
)


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a GPT."""

    width: int
    n_layers: int
    n_heads: int
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
        config: Sizes.
        key: Of JAX.
        tied: Whether the output layer is the embedding, transposed.
        scan: Whether the blocks' weights are stacked, for a scan over them.
    """
    embedding, position, head, blocks = jax.random.split(key, 4)
    make = partial(block_weights, width=config.width, hidden=4 * config.width)
    keys = jax.random.split(blocks, config.n_layers)
    params = {
        "embedding": normal(embedding, config.vocabulary, config.width),
        "position": normal(position, config.sequence, config.width),
        "blocks": jax.vmap(make)(keys) if scan else [make(k) for k in keys],
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
    if isinstance(blocks, list):
        keys = [None] * len(blocks) if key is None else jax.random.split(key, len(blocks))
        for weights, layer_key in zip(blocks, keys, strict=True):
            x = run(x, weights, key=layer_key)
    else:
        assert key is None, "a scan over layers runs without dropout here"
        x, _ = jax.lax.scan(lambda x, weights: (run(x, weights), None), x, blocks)
    x = layer_norm(x, params["norm"])
    head = params["head"] if "head" in params else params["embedding"].T
    found: Array = x @ head.astype(dtype)
    return found


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
    average: float = 0.0,
) -> Example:
    """The training step of one device; the options are those of the module's docstring."""
    entropy = cross_entropy_by_hand if custom_vjp else cross_entropy

    def loss(params: Params, batch: dict[str, Array], *key: Array) -> Array:
        found = logits(
            params,
            batch["tokens"],
            config,
            key=key[0] if key else None,
            rate=dropout,
            dtype=jnp.dtype(dtype),
            remat=remat,
        )
        return jnp.mean(entropy(found, batch["targets"]))

    def text(key: Array) -> dict[str, Array]:
        tokens = jax.random.randint(key, (batch, config.sequence + 1), 0, config.vocabulary)
        return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}

    return Example.of(
        loss,
        lambda key: init(config, key, tied=tied, scan=scan),
        text,
        optimizer,
        has_key=dropout > 0,
        average=average,
    )
