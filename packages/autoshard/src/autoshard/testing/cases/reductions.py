"""Cases of reductions, and of operators that need all of a dim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from autoshard.testing.cases.case import (
    Case,
    Maker,
    Shape,
    from_wholes,
    generator,
    shape_of,
    softmax,
)
from autoshard.testing.rules import Array, Part


def _dims(draw: st.DrawFn, n: int) -> tuple[int, ...]:
    return tuple(sorted(draw(st.sets(st.integers(0, n - 1), min_size=1))))


def _reduction(function: Callable[..., Any], *, boolean: bool = False) -> Maker:
    """Cases of a reduction by a numpy function, with or without `keepdims`."""

    def make(draw: st.DrawFn, kind: str) -> Case:
        shape = shape_of(draw)
        dims, keepdims = _dims(draw, len(shape)), draw(st.booleans())
        run = from_wholes(lambda x: np.asarray(function(x, axis=dims, keepdims=keepdims)))
        operand = generator(draw).integers(-2, 3, shape)
        result = tuple(
            1 if d in dims else n for d, n in enumerate(shape) if keepdims or d not in dims
        )
        operands = [operand > 0 if boolean else operand]
        return Case(kind, (shape,), (result,), run, {"dims": dims}, operands)

    return make


def _mean(draw: st.DrawFn, kind: str) -> Case:
    """A device divides by the number of elements of the whole tensor, not of its shard."""
    shape = shape_of(draw)
    dims = _dims(draw, len(shape))
    count = np.prod([shape[d] for d in dims])
    run = from_wholes(lambda x: np.asarray(x.sum(axis=dims) / count))
    result = tuple(n for d, n in enumerate(shape) if d not in dims)
    return Case(kind, (shape,), (result,), run, {"dims": dims})


def _along(function: Callable[..., Any], n_operands: int = 1, keeps: bool = True) -> Maker:
    """Cases of a function along one dim, which the result has or lacks."""

    def make(draw: st.DrawFn, kind: str) -> Case:
        shape = shape_of(draw)
        dim = draw(st.integers(0, len(shape) - 1))
        run = from_wholes(lambda *v: np.asarray(function(*v, axis=dim)))
        result = shape if keeps else shape[:dim] + shape[dim + 1 :]
        return Case(kind, (shape,) * n_operands, (result,), run, {"dims": (dim,)})

    return make


def _logsumexp(x: Array, axis: int) -> Array:
    return np.asarray(np.log(np.exp(x).sum(axis=axis)))


def _gradient(g: Array, y: Array, axis: int) -> Array:
    return np.asarray(y * (g - (g * y).sum(axis=axis, keepdims=True)))


def _roll(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw)
    dims, by = _dims(draw, len(shape)), draw(st.integers(-3, 3))
    run = from_wholes(lambda x: np.roll(x, (by,) * len(dims), dims))
    return Case(kind, (shape,), (shape,), run, {"dims": dims})


def _rev(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw)
    dims = _dims(draw, len(shape))
    return Case(kind, (shape,), (shape,), from_wholes(lambda x: np.flip(x, dims)), {"dims": dims})


def _variadic(draw: st.DrawFn, kind: str) -> Case:
    """XLA's general reduce of two arrays: the largest element, and its partner in the other one."""
    shape = shape_of(draw)
    dim = draw(st.integers(0, len(shape) - 1))
    result = shape[:dim] + shape[dim + 1 :]

    def run(operands: list[Array], part: Part) -> list[Array]:
        x, y = operands
        at = np.expand_dims(x.argmax(axis=dim), dim)
        return [np.take_along_axis(v, at, dim).squeeze(dim) for v in (x, y)]

    return Case(kind, (shape,) * 2, (result,) * 2, run, {"dims": (dim,)})


def _neighbours(draw: st.DrawFn) -> tuple[Shape, Shape, int]:
    """A shape, the shape with one more element along some dim, and this dim."""
    shape = shape_of(draw)
    dim = draw(st.integers(0, len(shape) - 1))
    return shape, (*shape[:dim], shape[dim] + 1, *shape[dim + 1 :]), dim


def _window(function: Callable[[Array, Array], Array]) -> Maker:
    """Cases of a function of each two neighbours along a dim."""

    def make(draw: st.DrawFn, kind: str) -> Case:
        pooled, shape, dim = _neighbours(draw)
        last = pooled[dim]

        def run(x: Array) -> Array:
            return function(x.take(range(last), dim), x.take(range(1, last + 1), dim))

        return Case(kind, (shape,), (pooled,), from_wholes(run), {"dims": (dim,)})

    return make


def _window_gradient(draw: st.DrawFn, kind: str) -> Case:
    """The gradient of each two neighbours' maximum goes to the larger of the two."""
    pooled, shape, dim = _neighbours(draw)

    def spread(source: Array, x: Array) -> Array:
        source, x = np.moveaxis(source, dim, 0), np.moveaxis(x, dim, 0)
        result, is_later = np.zeros_like(x), x[1:] > x[:-1]
        result[1:] += np.where(is_later, source, 0)
        result[:-1] += np.where(is_later, 0, source)
        return np.moveaxis(result, 0, dim)

    return Case(kind, (pooled, shape), (shape,), from_wholes(spread), {"dims": (dim,)})


CASES: dict[str, Maker] = {
    "reduce_sum": _reduction(np.sum),
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_prod": _reduction(np.prod),
    "reduce_and": _reduction(np.all, boolean=True),
    "reduce_or": _reduction(np.any, boolean=True),
    "reduce_mean": _mean,
    "reduce": _variadic,
    "window": _window(np.maximum),
    "window_sum": _window(np.add),
    "window_max_gradient": _window_gradient,
    "argmax": _along(np.argmax, keeps=False),
    "argmin": _along(np.argmin, keeps=False),
    "logsumexp": _along(_logsumexp, keeps=False),
    "softmax": _along(softmax),
    "log_softmax": _along(lambda x, axis: np.log(softmax(x, axis))),
    "softmax_gradient": _along(_gradient, 2),
    "log_softmax_gradient": _along(lambda g, y, axis: g - y * g.sum(axis=axis, keepdims=True), 2),
    "fft": _along(np.fft.fft),
    "rev": _rev,
    "roll": _roll,
}
