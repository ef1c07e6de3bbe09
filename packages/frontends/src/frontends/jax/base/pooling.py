"""The gradient of max-pooling as arithmetic that XLA fuses.

XLA rewrites a `select_and_scatter` on CPUs and GPUs alike (`SelectAndScatterExpander`, in both
`cpu_compiler.cc` and `gpu_compiler.cc`): it numbers the elements along each dim, reduces each
window of elements and numbers to one position, and scatters into zeros. On CPUs the numbers and
zeros are arrays in memory: for images, five times the bytes of the array that was pooled. Here the
elements of a window are compared one by one, and for each offset in a window the gradients that
belong to it are spread over the image. XLA fuses this into one loop; where windows are padded, the
padded image is an array in memory, as it was before.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from frontends.jax.base import _compat

Array = Any

_MOST = 16
"""Most elements of a window, those of 4 x 4: each element adds some lines to the program."""


def can_unroll(params: dict[str, Any]) -> bool:
    """Whether windows are small enough for a program with a few lines for each element.

    Args:
        params: The parameters of `select_and_scatter_add`.
    """
    window: tuple[int, ...] = params["window_dimensions"]
    return prod(window) <= _MOST


def unrolled(source: Array, operand: Array, params: dict[str, Any]) -> Array:
    """The result of `select_and_scatter_add`, computed in the same order.

    So it chooses the same one of equal elements, and where windows overlap it adds up gradients in
    the order of the windows.

    Args:
        source: The gradient of the result of pooling.
        operand: The array that was pooled.
        params: The parameters of `select_and_scatter_add`.
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
        """The element at `offset` of every window."""
        ends = [start + extent for start, extent in zip(offset, extents, strict=True)]
        return lax.slice(padded, offset, ends, strides)

    def spread(number: int) -> Array:
        """The gradients of windows that chose this offset, at its positions in the operand."""
        selected = jnp.where(chosen == number, source, zero)
        before = [start - low for start, (low, _) in zip(offsets[number], padding, strict=True)]
        sizes = zip(operand.shape, before, extents, strides, strict=True)
        return lax.pad(selected, zero, [(b, n - b - extent, s - 1) for n, b, extent, s in sizes])

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
    return _compat.finfo(dtype).max
