"""Wide-ResNet (Zagoruyko & Komodakis 2016; Alpa Table 8): bottleneck blocks with wide middles.

The original normalizes over the batch, and such a loss is no sum over examples: every microbatch
would have other statistics. So a step with `norm="batch"` runs in one microbatch. The default is
`norm="group"`, which normalizes within an example; people use it where they cut batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from zoo.convolutions import (
    Array,
    Params,
    batch_norm,
    conv,
    group_norm,
    kernel,
    max_pool,
    norm_weights,
)
from zoo.data import pictures
from zoo.example import Arguments, Example, Key, Tree, adamw
from zoo.losses import graded

_BLOCKS = {14: (1, 1, 1, 1), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
"""Blocks of three convolutions at each of four sizes, by the number of layers (He et al. 2016)."""

_KEPT = 0.9
"""The share of the running averages of statistics that a step keeps."""


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a Wide-ResNet."""

    n_layers: int
    channels: int
    """Channels of the first block's narrow convolutions; doubled three times, once a size."""

    width_factor: int
    image: int = 224
    n_classes: int = 1024


CONFIGS = {
    "wide-resnet-tiny": Config(14, 4, 2, image=16, n_classes=16),
    # A group of one channel has no variance in an image of one pixel, so this image must be large
    # enough to have more pixels at the last size.
    "wide-resnet-small": Config(14, 4, 2, image=64, n_classes=16),
    "wide-resnet-250m": Config(50, 160, 2),
    "wide-resnet-1b": Config(50, 320, 2),
    "wide-resnet-2b": Config(50, 448, 2),
    "wide-resnet-4b": Config(50, 640, 2),
    "wide-resnet-6.8b": Config(50, 320, 16),
    "wide-resnet-13b": Config(101, 320, 16),
}

Norm = Callable[[Array, Params], Array]


def _strides(config: Config) -> list[tuple[int, int]]:
    """Channels and stride of each block."""
    return [
        (config.channels * 2**i, 2 if i > 0 and j == 0 else 1)
        for i, n_blocks in enumerate(_BLOCKS[config.n_layers])
        for j in range(n_blocks)
    ]


def init(config: Config, key: Array) -> Params:
    """Random weights."""
    first, head, *keys = jax.random.split(key, 2 + len(_strides(config)))
    blocks, n_in = [], config.channels
    for (channels, stride), block_key in zip(_strides(config), keys, strict=True):
        wide, n_out = channels * config.width_factor, channels * 4
        k = jax.random.split(block_key, 4)
        block = {
            "kernels": [
                kernel(k[0], 1, n_in, channels),
                kernel(k[1], 3, channels, wide),
                kernel(k[2], 1, wide, n_out),
            ],
            "norms": [norm_weights(channels), norm_weights(wide), norm_weights(n_out)],
        }
        if stride != 1 or n_in != n_out:
            block["shortcut"] = {
                "kernel": kernel(k[3], 1, n_in, n_out),
                "norm": norm_weights(n_out),
            }
        blocks.append(block)
        n_in = n_out
    return {
        "first": {
            "kernel": kernel(first, 7, 3, config.channels),
            "norm": norm_weights(config.channels),
        },
        "blocks": blocks,
        "head": {
            "kernel": kernel(head, 1, n_in, config.n_classes)[0, 0],
            "bias": jnp.zeros(config.n_classes),
        },
    }


def logits(params: Params, images: Array, config: Config, norm: Norm) -> Array:
    """Logits (batch, n_classes) of images (batch, height, width, 3)."""
    x = conv(images, params["first"]["kernel"], 2)
    x = max_pool(jax.nn.relu(norm(x, params["first"]["norm"])), 3, 2)
    for block, (_, stride) in zip(params["blocks"], _strides(config), strict=True):
        before, x = x, x
        strides = (1, stride, 1)
        for i, (weights, of_norm) in enumerate(zip(block["kernels"], block["norms"], strict=True)):
            x = norm(conv(x, weights, strides[i]), of_norm)
            x = jax.nn.relu(x) if i < 2 else x
        if "shortcut" in block:
            before = conv(before, block["shortcut"]["kernel"], stride)
            before = norm(before, block["shortcut"]["norm"])
        x = jax.nn.relu(before + x)
    scores: Array = x.mean((1, 2)) @ params["head"]["kernel"] + params["head"]["bias"]
    return scores


def make(
    config: Config,
    *,
    batch: int,
    norm: Literal["group", "batch"] = "group",
    optimizer: optax.GradientTransformation | None = None,
) -> Example:
    """The training step for one device, which returns loss and accuracy.

    With `norm="batch"` the step's first argument holds weights and running averages.
    """

    def normed_loss(params: Params, batch: dict[str, Array], norm: Norm) -> tuple[Array, Array]:
        return graded(logits(params, batch["images"], config, norm), batch["labels"])

    plain = Example.of(
        lambda params, batch: normed_loss(params, batch, group_norm),
        lambda key: init(config, key),
        lambda key: pictures(key, batch, config.image, config.n_classes),
        optimizer,
        has_aux=True,
    )
    if norm == "group":
        return plain
    used = optimizer or adamw()

    def loss(params: Params, batch: dict[str, Array]) -> tuple[Array, tuple[Array, list[Params]]]:
        statistics: list[Params] = []

        def normed(x: Array, weights: Params) -> Array:
            x, of_layer = batch_norm(x, weights)
            statistics.append(of_layer)
            return x

        value, accuracy = normed_loss(params, batch, normed)
        return value, (accuracy, statistics)

    def step(state: Tree, opt_state: Tree, batch: Tree) -> tuple[Tree, Tree, Tree]:
        of = jax.value_and_grad(loss, has_aux=True)
        (value, (accuracy, statistics)), gradients = of(state["params"], batch)
        updates, opt_state = used.update(gradients, opt_state, state["params"])
        params = optax.apply_updates(state["params"], updates)
        averages = optax.incremental_update(statistics, state["averages"], 1 - _KEPT)
        return {"params": params, "averages": averages}, opt_state, (value, accuracy)

    def with_averages(key: Key) -> Arguments:
        params, opt_state, batch = plain.init(key)
        statistics = jax.eval_shape(loss, params, batch)[1][1]
        averages = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), statistics)
        return {"params": params, "averages": averages}, opt_state, batch

    return Example(step, with_averages)
