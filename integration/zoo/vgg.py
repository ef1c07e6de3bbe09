"""VGG (Simonyan & Zisserman, ICLR 2015), also with a class for each face (Rhino §7.4, Table 3).

With a million classes, the last matrix holds 4.1 billion of the 4.2 billion weights, and no single
device can hold it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
import optax

from zoo.convolutions import Array, Params, conv, kernel, max_pool
from zoo.data import pictures
from zoo.example import Example
from zoo.losses import cross_entropy
from zoo.transformer import dropout

_RATE = 0.5
"""Rate of dropout in the two hidden dense layers (§3.1)."""


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a VGG."""

    depths: tuple[int, ...]
    """Number of convolutions at each of five sizes; after each, a 2 x 2 pool halves the size."""

    channels: int = 64
    """Channels at the first size; each next size has twice as many, up to eight times."""

    hidden: int = 4096
    image: int = 224
    n_classes: int = 1000


VGG13, VGG19 = (2, 2, 2, 2, 2), (2, 2, 4, 4, 4)

CONFIGS = {
    "vgg13-tiny": Config(VGG13, 4, 32, image=32, n_classes=64),
    "vgg19-tiny": Config(VGG19, 4, 32, image=32, n_classes=64),
    "vgg13": Config(VGG13),
    "vgg19": Config(VGG19),
    "vgg13-1m": Config(VGG13, n_classes=1_000_000),
    "vgg19-1m": Config(VGG19, n_classes=1_000_000),
}


def init(config: Config, key: Array) -> Params:
    """Random weights."""
    keys = iter(jax.random.split(key, sum(config.depths) + 3))
    sizes: list[list[Params]] = []
    n_in = 3
    for i, depth in enumerate(config.depths):
        n_out = config.channels * min(2**i, 8)
        sizes.append([])
        for _ in range(depth):
            sizes[-1].append(
                {"kernel": kernel(next(keys), 3, n_in, n_out), "bias": jnp.zeros(n_out)}
            )
            n_in = n_out
    features = n_in * (config.image // 2 ** len(config.depths)) ** 2
    widths = (features, config.hidden, config.hidden, config.n_classes)
    dense = [
        {"kernel": kernel(next(keys), 1, a, b)[0, 0], "bias": jnp.zeros(b)}
        for a, b in pairwise(widths)
    ]
    return {"convolutions": sizes, "dense": dense}


def logits(params: Params, images: Array, key: Array | None) -> Array:
    """Logits (batch, n_classes) of images (batch, height, width, 3); dropout only with a key."""
    x = images
    for size in params["convolutions"]:
        for weights in size:
            x = jax.nn.relu(conv(x, weights["kernel"]) + weights["bias"])
        x = max_pool(x, 2, 2)
    x = x.reshape(x.shape[0], -1)
    keys = (None, None) if key is None else tuple(jax.random.split(key))
    *hidden, head = params["dense"]
    for weights, k in zip(hidden, keys, strict=True):
        x = dropout(jax.nn.relu(x @ weights["kernel"] + weights["bias"]), k, _RATE)
    scores: Array = x @ head["kernel"] + head["bias"]
    return scores


def make(
    config: Config,
    *,
    batch: int,
    has_dropout: bool = False,
    optimizer: optax.GradientTransformation | None = None,
) -> Example:
    """The training step for one device, which returns the loss."""

    def loss(params: Params, batch: dict[str, Array], key: Array | None = None) -> Array:
        return jnp.mean(cross_entropy(logits(params, batch["images"], key), batch["labels"]))

    return Example.of(
        loss,
        lambda key: init(config, key),
        lambda key: pictures(key, batch, config.image, config.n_classes),
        optimizer,
        has_key=has_dropout,
    )
