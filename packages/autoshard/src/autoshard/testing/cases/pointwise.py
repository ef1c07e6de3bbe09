"""Cases of elementwise operators and optimizer updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from autoshard.rules.pointwise import NONLINEAR
from autoshard.testing.cases.case import Case, Maker, Shape, from_wholes, generator, shape_of
from autoshard.testing.rules import Array


def _broadcastable(draw: st.DrawFn, shape: Shape) -> Shape:
    """A shape that broadcasts to this one."""
    kept = shape[draw(st.integers(0, len(shape))) :]
    return tuple(1 if draw(st.booleans()) else size for size in kept)


def _function(n: int, function: Callable[..., Any], *, broadcast: bool = True) -> Maker:
    """Cases of an operator of `n` operands, the first of which has the result's shape."""

    def make(draw: st.DrawFn, kind: str) -> Case:
        shape = shape_of(draw, 0)
        others = [_broadcastable(draw, shape) if broadcast else shape for _ in range(n - 1)]
        results = function(*(np.zeros(shape),) * n)
        n_results = len(results) if isinstance(results, list) else 1
        return Case(kind, (shape, *others), (shape,) * n_results, from_wholes(function))

    return make


def _nonlinear(draw: st.DrawFn, kind: str) -> Case:
    n = draw(st.integers(1, 3))
    return _function(n, lambda *v: 1 + sum(x**2 for x in v))(draw, kind)


def _div(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw)
    rng = generator(draw)
    # powers of two, so that quotients and their sums are exact
    operands = [rng.integers(-9, 10, shape) * 1.0, 2.0 ** rng.integers(0, 3, shape[-1:])]
    run = from_wholes(lambda x, y: x / y)
    return Case(kind, (shape, shape[-1:]), (shape,), run, operands=operands)


def _select(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw)
    run = from_wholes(lambda p, x, y: np.asarray(np.where(p > 0, x, y)))
    return Case(kind, (shape,) * 3, (shape,), run)


def _power(draw: st.DrawFn, kind: str) -> Case:
    shape, exponent = shape_of(draw), draw(st.integers(0, 3))
    run = from_wholes(lambda x: x**exponent)
    return Case(kind, (shape,), (shape,), run, {"exponent": exponent})


def _convert(draw: st.DrawFn, kind: str) -> Case:
    """A conversion to float64, which is exact, or to a count of tens, which loses precision."""
    shape, exact = shape_of(draw), draw(st.booleans())
    run = from_wholes(lambda x: x.astype(np.float64) if exact else x // 10)
    return Case(kind, (shape,), (shape,), run, {"exact": exact})


def _bitcast(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw)
    if draw(st.booleans()):
        return Case(kind, (shape,), (shape,), from_wholes(lambda x: x.view(np.uint64)))
    halves = (*shape, 2)
    run = from_wholes(lambda x: np.ascontiguousarray(x).view(np.int32).reshape(halves))
    return Case(kind, (shape,), (halves,), run)


def _adam(p: Array, g: Array, m: Array, v: Array) -> list[Array]:
    m, v = 3 * m + g, 2 * v + g**2
    return [p - m // (1 + abs(v)), m, v]


CASES: dict[str, Maker] = {
    **dict.fromkeys(NONLINEAR, _nonlinear),
    "add": _function(2, lambda x, y: x + y),
    "sub": _function(2, lambda x, y: x - y),
    "neg": _function(1, lambda x: -x),
    "copy": _function(1, lambda x: x),
    "real": _function(1, np.real),
    "imag": _function(1, lambda x: np.imag(x * (2 + 3j)).astype(np.int64)),
    "mul": _function(2, lambda x, y: x * y),
    "div": _div,
    "derivative": _function(2, lambda g, x: g * (1 - x**2)),
    "select_n": _select,
    "integer_pow": _power,
    "convert": _convert,
    "bitcast": _bitcast,
    "sgd": _function(2, lambda p, g: p - 2 * g, broadcast=False),
    "momentum": _function(3, lambda p, g, m: [p - 3 * m - g, 3 * m + g], broadcast=False),
    "adagrad": _function(3, lambda p, g, v: [p - g // (1 + v**2), v + g**2], broadcast=False),
    "adam": _function(4, _adam, broadcast=False),
    "adamw": _function(4, _adam, broadcast=False),
    "lion": _function(3, lambda p, g, m: [p - np.sign(m + g), 3 * m + g], broadcast=False),
    "rmsprop": _function(3, lambda p, g, v: [p - g // (1 + v**2), v + g**2], broadcast=False),
}
