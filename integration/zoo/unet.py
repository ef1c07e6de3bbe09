"""U-Net with attention, as diffusion models have it (Ho et al., NeurIPS 2020, Appendix B).

The way up reads the results of the way down again, so values skip over stages of a pipeline. The
step draws noise and times from its key, so that a microbatch gets the numbers of its examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from zoo.convolutions import Array, Params, conv, group_norm, kernel, norm_weights
from zoo.example import Example

_MOST_TIME = 1000
"""Number of diffusion steps (Ho et al. §4)."""


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a U-Net."""

    channels: int
    multiples: tuple[int, ...]
    """Multiples of the channels at each size; the next size has half the height and width."""

    n_blocks: int = 2
    attention: tuple[int, ...] = (16,)
    """Heights at which blocks attend to the whole image."""

    image: int = 32

    @property
    def down(self) -> list[tuple[int, int]]:
        """Channels and height of each block on the way down."""
        return [
            (self.channels * m, self.image >> i)
            for i, m in enumerate(self.multiples)
            for _ in range(self.n_blocks)
        ]


CONFIGS = {
    "unet-tiny": Config(8, (1, 2), n_blocks=1, attention=(4,), image=8),
    "unet-29m": Config(128, (1, 2, 2, 2)),
    "unet-93m": Config(128, (1, 1, 2, 2, 4, 4), image=256),
}


def _block_weights(key: Array, n_in: int, n_out: int, n_time: int, attends: bool) -> Params:
    k = jax.random.split(key, 6)
    weights: Params = {
        "norms": [norm_weights(n_in), norm_weights(n_out)],
        "kernels": [kernel(k[0], 3, n_in, n_out), kernel(k[1], 3, n_out, n_out)],
        "time": kernel(k[2], 1, n_time, n_out)[0, 0],
    }
    if n_in != n_out:
        weights["shortcut"] = kernel(k[3], 1, n_in, n_out)
    if attends:
        weights["attention"] = {
            "norm": norm_weights(n_out),
            "inputs": kernel(k[4], 1, n_out, 3 * n_out)[0, 0].reshape(n_out, 3, n_out),
            "output": kernel(k[5], 1, n_out, n_out)[0, 0],
        }
    return weights


def init(config: Config, key: Array) -> Params:
    """Random weights."""
    keys = iter(jax.random.split(key, 8 * len(config.down)))
    n_time = 4 * config.channels
    down, up, skips, n = [], [], [config.channels], config.channels
    for i, (channels, height) in enumerate(config.down):
        block = _block_weights(next(keys), n, channels, n_time, height in config.attention)
        n = channels
        skips.append(n)
        if (i + 1) % config.n_blocks == 0 and i + 1 < len(config.down):
            block["resize"] = kernel(next(keys), 3, n, n)
        down.append(block)
    middle = [_block_weights(next(keys), n, n, n_time, attends) for attends in (True, False)]
    for i, (channels, height) in enumerate(reversed(config.down)):
        n_in, attends = n + skips.pop(), height in config.attention
        block = _block_weights(next(keys), n_in, channels, n_time, attends)
        n = channels
        if (i + 1) % config.n_blocks == 0 and i + 1 < len(config.down):
            block["resize"] = kernel(next(keys), 3, n, n)
        up.append(block)
    return {
        "time": [
            kernel(next(keys), 1, config.channels, n_time)[0, 0],
            kernel(next(keys), 1, n_time, n_time)[0, 0],
        ],
        "first": kernel(next(keys), 3, 3, config.channels),
        "down": down,
        "middle": middle,
        "up": up,
        "norm": norm_weights(n),
        "last": kernel(next(keys), 3, n, 3),
    }


def _attention(x: Array, weights: Params) -> Array:
    batch, height, width, channels = x.shape
    normed = group_norm(x, weights["norm"]).reshape(batch, height * width, channels)
    query, key, value = jnp.moveaxis(jnp.einsum("bpc,cnd->bpnd", normed, weights["inputs"]), 2, 0)
    shares = jax.nn.softmax(jnp.einsum("bpc,bqc->bpq", query, key) / math.sqrt(channels), -1)
    mixed: Array = jnp.einsum("bpq,bqc->bpc", shares, value) @ weights["output"]
    return x + mixed.reshape(x.shape)


def _block(x: Array, time: Array, weights: Params) -> Array:
    y = conv(jax.nn.silu(group_norm(x, weights["norms"][0])), weights["kernels"][0])
    y = y + (jax.nn.silu(time) @ weights["time"])[:, None, None, :]
    y = conv(jax.nn.silu(group_norm(y, weights["norms"][1])), weights["kernels"][1])
    y = y + (conv(x, weights["shortcut"]) if "shortcut" in weights else x)
    return _attention(y, weights["attention"]) if "attention" in weights else y


def _doubled(x: Array) -> Array:
    """x at twice the height and width: each pixel becomes four equal pixels."""
    batch, height, width, channels = x.shape
    x = jnp.broadcast_to(x[:, :, None, :, None], (batch, height, 2, width, 2, channels))
    return x.reshape(batch, 2 * height, 2 * width, channels)


def noise_of(params: Params, images: Array, time: Array, config: Config) -> Array:
    """The noise that the network predicts in images (batch, height, width, 3) at times (batch,)."""
    half = config.channels // 2
    angles = time[:, None] * jnp.exp(-math.log(10_000) * jnp.arange(half) / (half - 1))
    t = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
    t = jax.nn.silu(t @ params["time"][0]) @ params["time"][1]
    x = conv(images, params["first"])
    skips = [x]
    for weights in params["down"]:
        x = _block(x, t, weights)
        skips.append(x)
        if "resize" in weights:
            x = conv(x, weights["resize"], 2)
    for weights in params["middle"]:
        x = _block(x, t, weights)
    for weights in params["up"]:
        x = _block(jnp.concatenate([x, skips.pop()], -1), t, weights)
        if "resize" in weights:
            x = conv(_doubled(x), weights["resize"])
    return conv(jax.nn.silu(group_norm(x, params["norm"])), params["last"])


def make(
    config: Config, *, batch: int, optimizer: optax.GradientTransformation | None = None
) -> Example:
    """The training step for one device; the loss is the mean squared error of predicted noise."""
    betas = jnp.linspace(1e-4, 0.02, _MOST_TIME)

    def loss(params: Params, images: Array, key: Array) -> Array:
        of_time, of_noise = jax.random.split(key)
        time = jax.random.randint(of_time, images.shape[:1], 0, _MOST_TIME)
        noise = jax.random.normal(of_noise, images.shape)
        kept = jnp.cumprod(1 - betas)[time][:, None, None, None]
        noisy = jnp.sqrt(kept) * images + jnp.sqrt(1 - kept) * noise
        return jnp.mean(jnp.square(noise - noise_of(params, noisy, time, config)))

    def pictures(key: Array) -> Array:
        return jax.random.uniform(key, (batch, config.image, config.image, 3), minval=-1)

    return Example.of(loss, lambda key: init(config, key), pictures, optimizer, has_key=True)
