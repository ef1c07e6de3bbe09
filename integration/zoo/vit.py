"""Vision Transformer (Dosovitskiy et al., ICLR 2021, Table 1): images as sequences of patches."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from zoo.data import pictures
from zoo.example import Example
from zoo.losses import graded
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
    """Sizes of a ViT."""

    patch: int = 16
    image: int = 224
    n_classes: int = 1000


CONFIGS = {
    "vit-tiny": Config(32, 2, 4, patch=4, image=8, n_classes=16),
    "vit-base-16": Config(768, 12, 12),
    "vit-large-16": Config(1024, 24, 16),
    "vit-huge-14": Config(1280, 32, 16, patch=14),
}


def init(config: Config, key: Array) -> Params:
    """Random weights."""
    patch, token, position, head, blocks = jax.random.split(key, 5)
    n_patches = (config.image // config.patch) ** 2
    return {
        "patch": {
            "kernel": normal(patch, config.patch, config.patch, 3, config.width),
            "bias": jnp.zeros(config.width),
        },
        "class": normal(token, 1, 1, config.width),
        "position": normal(position, n_patches + 1, config.width),
        "blocks": stack_of_blocks(blocks, config),
        "norm": norm_weights(config.width),
        "head": dense_weights(head, config.width, config.n_classes),
    }


def logits(params: Params, images: Array, config: Config) -> Array:
    """Logits (batch, n_classes) of images (batch, height, width, 3)."""
    patches = jax.lax.conv_general_dilated(
        images,
        params["patch"]["kernel"],
        window_strides=(config.patch, config.patch),
        padding="VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    n = images.shape[0]
    x = (patches + params["patch"]["bias"]).reshape(n, -1, config.width)
    token = jnp.broadcast_to(params["class"], (n, 1, config.width))
    x = jnp.concatenate([token, x], axis=1) + params["position"]
    for weights in params["blocks"]:
        x = block(x, weights, config.n_heads)
    return dense(layer_norm(x[:, 0], params["norm"]), params["head"])


def make(
    config: Config, *, batch: int, optimizer: optax.GradientTransformation | None = None
) -> Example:
    """The training step for one device, which returns loss and accuracy."""

    def loss(params: Params, batch: dict[str, Array]) -> tuple[Array, Array]:
        return graded(logits(params, batch["images"], config), batch["labels"])

    return Example.of(
        loss,
        lambda key: init(config, key),
        lambda key: pictures(key, batch, config.image, config.n_classes),
        optimizer,
        has_aux=True,
    )
