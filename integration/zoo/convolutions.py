"""Layers of convolutional networks in plain JAX, which Wide-ResNet, U-Net and VGG share.

Images have the shape (batch, height, width, channels), kernels (height, width, input channels,
output channels).
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
Params = dict[str, Any]

GROUPS = 32
"""Groups of channels in a group norm (Wu & He, ECCV 2018)."""


def kernel(key: Array, size: int, n_in: int, n_out: int) -> Array:
    """A random square kernel with He et al.'s deviation, which keeps magnitudes through a ReLU."""
    deviation = math.sqrt(2 / (size * size * n_in))
    return jax.random.normal(key, (size, size, n_in, n_out), jnp.float32) * deviation


def conv(x: Array, kernel: Array, stride: int = 1) -> Array:
    """A convolution that keeps height and width, or divides them by `stride`."""
    return lax.conv_general_dilated(
        x,
        kernel.astype(x.dtype),
        window_strides=(stride, stride),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def norm_weights(channels: int) -> Params:
    """Scale and offset of a norm."""
    return {"scale": jnp.ones(channels), "offset": jnp.zeros(channels)}


def group_norm(x: Array, weights: Params) -> Array:
    """x with mean 0 and variance 1 in each example and group of channels, then scale and offset."""
    *outer, channels = x.shape
    n_groups = math.gcd(GROUPS, channels)
    wide = x.astype(jnp.float32).reshape(*outer, n_groups, channels // n_groups)
    mean = wide.mean((1, 2, 4), keepdims=True)
    variance = jnp.square(wide - mean).mean((1, 2, 4), keepdims=True)
    normed = ((wide - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)
    scaled: Array = (normed * weights["scale"] + weights["offset"]).astype(x.dtype)
    return scaled


def batch_norm(x: Array, weights: Params) -> tuple[Array, Params]:
    """x with mean 0 and variance 1 of each channel over the batch, then scale and offset.

    Also returns the statistics, for running averages.
    """
    wide = x.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    variance = jnp.square(wide - mean).mean((0, 1, 2))
    normed = (wide - mean) * lax.rsqrt(variance + 1e-5)
    result = (normed * weights["scale"] + weights["offset"]).astype(x.dtype)
    return result, {"mean": mean, "variance": variance}


def max_pool(x: Array, size: int, stride: int) -> Array:
    """The largest of each window; height and width are divided by `stride`."""
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    result: Array = lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "SAME")
    return result
