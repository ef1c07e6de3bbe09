"""The gradient of a max-pool, by arithmetic that XLA fuses.

XLA rewrites a `select_and_scatter` on CPUs and GPUs alike (`SelectAndScatterExpander`, in both
`cpu_compiler.cc` and `gpu_compiler.cc`): it numbers the elements along each dim, reduces windows of
elements and numbers to a place each, and scatters into zeros. On CPUs numbers and zeros are arrays:
for images five times what was pooled. Here the elements of a window are compared one by one, and
for each offset in a window the gradients that belong there are spread over the image. XLA makes one
loop of it; where windows are padded, the padded image is an array as it was before.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any

_MOST = 16
"""Elements of a window, each of which is some lines of the program: those of four by four."""


def can_unroll(params: dict[str, Any]) -> bool:
    """Whether windows are so small that a program may name each of their elements.

    Args:
        params: Of `select_and_scatter_add`.
    """
    window: tuple[int, ...] = params["window_dimensions"]
    return prod(window) <= _MOST


def unrolled(source: Array, operand: Array, params: dict[str, Any]) -> Array:
    """What `select_and_scatter_add` computes, in its order: of equal elements the same is chosen.

    Sums of gradients, where windows overlap, are added in the order of windows, too.

    Args:
        source: The pooled array's gradient.
        operand: What was pooled.
        params: Of `select_and_scatter_add`.
    """
    strides, padding, select = (
        params[name] for name in ("window_strides", "padding", "select_prim")
    )
    edge = _largest(operand.dtype)
    padded = lax.pad(
        operand, -edge if select is lax.ge_p else edge, [(low, high, 0) for low, high in padding]
    )
    extents = [(n - 1) * stride + 1 for n, stride in zip(source.shape, strides, strict=True)]
    offsets = [*product(*map(range, params["window_dimensions"]))]

    def elements(offset: tuple[int, ...]) -> Array:
        """Those at one place of each window."""
        ends = [start + extent for start, extent in zip(offset, extents, strict=True)]
        return lax.slice(padded, offset, ends, strides)

    def spread(number: int) -> Array:
        """The gradients of windows that chose one place, where this is in the operand."""
        mine = jnp.where(chosen == number, source, zero)
        before = [start - low for start, (low, _) in zip(offsets[number], padding, strict=True)]
        sizes = zip(operand.shape, before, extents, strides, strict=True)
        return lax.pad(mine, zero, [(b, n - b - extent, s - 1) for n, b, extent, s in sizes])

    best, chosen = elements(offsets[0]), jnp.zeros(source.shape, jnp.uint8)
    for number, offset in enumerate(offsets[1:], 1):
        element = elements(offset)
        stays = select.bind(best, element)
        best, chosen = (
            jnp.where(stays, best, element),
            jnp.where(stays, chosen, jnp.uint8(number)),
        )
    zero = jnp.zeros((), source.dtype)
    return reduce(lax.add, map(spread, reversed(range(len(offsets)))))


def _largest(dtype: Any) -> Any:
    infinity = np.asarray(np.inf, dtype)
    if np.isinf(infinity):
        return infinity
    return jnp.finfo(dtype).max  # type: ignore[no-untyped-call]
