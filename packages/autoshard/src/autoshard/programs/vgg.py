"""A training step of VGG13: convolutions with few parameters, then dense layers with many."""

from __future__ import annotations

import math

from autoshard.graph.graph import Graph
from autoshard.programs.program import FIRST, Optimizer, StepBuilder
from autoshard.rules import labelled
from autoshard.rules.convolutions import Computes

CHANNELS = ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512))
"""Output channels of the convolutions before each pooling: configuration B of Simonyan and
Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015,
table 1."""
DENSE = (4096, 4096, 1000)
"""Widths of the dense layers (ibid.)."""
IMAGE = 224
"""Pixels on each side of the image (ibid.)."""


def vgg13_step(*, batch: int, dtype: str = "float32", optimizer: Optimizer = "adam") -> Graph:
    """A training step of VGG13, without biases, and with a square loss."""
    p = StepBuilder(dtype=dtype)
    x = p.input("images", batch, 3, IMAGE, IMAGE)
    layer = 0
    for block in CHANNELS:
        for channels in block:
            layer += 1
            w = p.parameter(f"conv{layer}", channels, p.shape(x)[1], 3, 3)
            x = p.unary("relu", convolution(p, x, w))
        x = max_pool(p, x)
    x = p.reshape(x, batch, math.prod(p.shape(x)[1:]))
    for number, width in enumerate(DENSE, start=1):
        if number > 1:
            x = p.unary("relu", x)
        x = p.einsum("bi,ij->bj", x, p.parameter(f"dense{number}", p.shape(x)[1], width))
    return p.finish(p.mean(p.mul(x, x)), optimizer)


def convolution(p: StepBuilder, x: str, w: str) -> str:
    """A padded 3 x 3 convolution: x (n, c, h, w) and w (o, c, r, s) give (n, o, h, w).

    Batch and channels may be split; the image may not, since each part would need a halo of its
    neighbours.
    """
    image, kernel = p.shape(x), p.shape(w)
    result = (image[0], kernel[0], *image[2:])
    flops = 2.0 * math.prod(result) * math.prod(kernel[1:])

    def apply(computes: Computes, shape: tuple[int, ...], *operands: str) -> str:
        dims = (0, 1, 2, 3)
        return p.apply(
            "convolution",
            shape,
            *operands,
            flops=flops,
            data=dims,
            kernel=dims,
            result=dims,
            computes=computes,
        )

    return p.record(
        apply("result", result, x, w),
        (x, lambda g: apply("data", image, w, g)),
        (w, lambda g: apply("kernel", kernel, x, g)),
    )


def max_pool(p: StepBuilder, x: str) -> str:
    """The maximum of each 2 x 2 pixels."""
    image = p.shape(x)
    pooled = (*image[:2], image[2] // 2, image[3] // 2)
    forward = labelled("nchw->ncij", (image,), (pooled,), whole="hwij")
    back = labelled("ncij,nchw->nchw", (pooled, image), (image,), whole="hwij", linear=FIRST)
    n = float(math.prod(image))
    return p.record(
        p.emit("reduce_window_max", (x,), forward, n),
        (x, lambda g: p.emit("select_and_scatter_add", (g, x), back, n)),
    )
