"""BERT (Devlin et al., 2019) and DNABERT (Ji et al., 2021): predict masked tokens.

A fixed number of tokens of each sequence is predicted, as in the code of BERT's authors, so that
the mean over these tokens is a mean over the batch. DNABERT reads words of six bases; its
vocabulary has 4⁶ words and five special tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from zoo.example import Example
from zoo.losses import cross_entropy
from zoo.transformer import (
    Array,
    Params,
    Sizes,
    block,
    dense,
    dense_weights,
    layer_norm,
    norm_weights,
    normal,
    stack_of_blocks,
)


@dataclass(frozen=True, slots=True)
class Config(Sizes):
    """Sizes of a BERT."""

    sequence: int = 512
    vocabulary: int = 30_522
    n_predicted: int = 76
    """Masked tokens of a sequence: 15 % of its tokens, at least one."""


CONFIGS = {
    "bert-tiny": Config(32, 2, 4, sequence=8, vocabulary=64, n_predicted=2),
    "dnabert-tiny": Config(32, 2, 4, sequence=32, vocabulary=4**2 + 5, n_predicted=4),
    "bert-base": Config(768, 12, 12),
    "bert-large": Config(1024, 24, 16),
    "dnabert": Config(768, 12, 12, vocabulary=4**6 + 5),
}


def init(config: Config, key: Array) -> Params:
    """Random weights; the output layer uses the embedding's weights and has a separate bias."""
    embedding, position, segment, head, blocks = jax.random.split(key, 5)
    return {
        "embedding": normal(embedding, config.vocabulary, config.width),
        "position": normal(position, config.sequence, config.width),
        "segment": normal(segment, 2, config.width),
        "blocks": stack_of_blocks(blocks, config),
        "norm": norm_weights(config.width),
        "head": {
            "dense": dense_weights(head, config.width, config.width),
            "norm": norm_weights(config.width),
            "bias": jnp.zeros(config.vocabulary),
        },
    }


def logits(params: Params, batch: dict[str, Array], config: Config) -> Array:
    """Logits (batch, n_predicted, vocabulary) of the masked tokens."""
    x = params["embedding"][batch["tokens"]] + params["position"]
    x = x + params["segment"][batch["segments"]]
    is_text = jnp.arange(config.sequence) < batch["lengths"][:, None]
    for weights in params["blocks"]:
        x = block(x, weights, config.n_heads, is_text[:, None, None, :])
    x = layer_norm(x, params["norm"])
    masked = jnp.take_along_axis(x, batch["positions"][..., None], axis=1)
    head = params["head"]
    masked = layer_norm(jax.nn.gelu(dense(masked, head["dense"])), head["norm"])
    scores: Array = masked @ params["embedding"].T + head["bias"]
    return scores


def make(
    config: Config, *, batch: int, optimizer: optax.GradientTransformation | None = None
) -> Example:
    """The training step for one device."""

    def loss(params: Params, batch: dict[str, Array]) -> Array:
        return jnp.mean(cross_entropy(logits(params, batch, config), batch["labels"]))

    def text(key: Array) -> dict[str, Array]:
        tokens, segments, lengths, positions, labels = jax.random.split(key, 5)
        whole, part = (batch, config.sequence), (batch, config.n_predicted)
        least = config.sequence // 2
        return {
            "tokens": jax.random.randint(tokens, whole, 0, config.vocabulary),
            "segments": jax.random.randint(segments, whole, 0, 2),
            "lengths": jax.random.randint(lengths, (batch,), least, config.sequence + 1),
            "positions": jax.random.randint(positions, part, 0, least),
            "labels": jax.random.randint(labels, part, 0, config.vocabulary),
        }

    return Example.of(loss, lambda key: init(config, key), text, optimizer)
