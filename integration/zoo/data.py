"""Random batches: text with the next tokens as targets, and images with a label each."""

from __future__ import annotations

import jax

Array = jax.Array


def text(key: Array, batch: int, sequence: int, vocabulary: int) -> dict[str, Array]:
    """Tokens of shape (batch, sequence), and the tokens that follow them as targets."""
    tokens = jax.random.randint(key, (batch, sequence + 1), 0, vocabulary)
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


def pictures(key: Array, batch: int, size: int, n_classes: int) -> dict[str, Array]:
    """Square images (batch, size, size, 3), and labels (batch,)."""
    images, labels = jax.random.split(key)
    return {
        "images": jax.random.normal(images, (batch, size, size, 3)),
        "labels": jax.random.randint(labels, (batch,), 0, n_classes),
    }
