"""Cases of operators that only move elements."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from autoshard.testing.cases.case import SIZES, Case, Maker, Shape, from_wholes, shape_of
from autoshard.testing.rules import Array, Part


def _transpose(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw)
    order = tuple(draw(st.permutations(range(len(shape)))))
    result = tuple(shape[d] for d in order)
    run = from_wholes(lambda x: x.transpose(order))
    return Case(kind, (shape,), (result,), run, {"permutation": order})


def _broadcast(draw: st.DrawFn, kind: str) -> Case:
    result = shape_of(draw)
    dims = tuple(sorted(draw(st.sets(st.integers(0, len(result) - 1)))))
    operand = tuple(1 if draw(st.booleans()) else result[d] for d in dims)

    def run(operands: list[Array], part: Part) -> list[Array]:
        aligned = [1] * len(result)
        for d, n in zip(dims, operands[0].shape, strict=True):
            aligned[d] = n
        return [np.broadcast_to(operands[0].reshape(aligned), part.shape()).copy()]

    return Case(kind, (operand,), (result,), run, {"dims": dims})


def _reshape(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw)
    sizes = [part for n in shape for part in ((n,) if n % 2 else (2, n // 2))]
    order = draw(st.permutations(sizes))
    merges = [draw(st.booleans()) for _ in order]
    result: list[int] = []
    for size, is_merged in zip(order, merges, strict=True):
        if result and is_merged:
            result[-1] *= size
        else:
            result.append(size)
    return Case(kind, (shape,), (tuple(result),), _reshaped)


def _reshaped(operands: list[Array], part: Part) -> list[Array]:
    return [operands[0].reshape(part.shape())]


def _squeeze(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw)
    ones = tuple(n for n in shape if n != 1)
    shapes = (ones, shape) if kind == "expand_dims" else (shape, ones)
    return Case(kind, shapes[:1], shapes[1:], _reshaped)


def _slice(draw: st.DrawFn, kind: str) -> Case:
    """Every second element, or some in the middle, of some dims."""
    shape = shape_of(draw)
    cuts = []
    for n in shape:
        start = draw(st.integers(0, n - 1)) if draw(st.booleans()) else 0
        cuts.append(slice(start, n, draw(st.sampled_from([1, 1, 2]))))
    result = tuple(len(range(*cut.indices(n))) for cut, n in zip(cuts, shape, strict=True))

    def run(operands: list[Array], part: Part) -> list[Array]:
        local = [
            slice(None) if kept == n else cut
            for cut, n, kept in zip(cuts, shape, result, strict=True)
        ]
        return [operands[0][tuple(local)]]

    return Case(kind, (shape,), (result,), run)


def _window(draw: st.DrawFn) -> tuple[Shape, Shape, list[Array]]:
    """A shape, the shape of a slice of it, and the slice's offsets, as scalars."""
    shape = shape_of(draw)
    part = tuple(n if draw(st.booleans()) else draw(st.integers(1, n)) for n in shape)
    starts = [np.array(draw(st.integers(0, n - m))) for n, m in zip(shape, part, strict=True)]
    return shape, part, starts


def _places(starts: list[Array], sizes: Shape, whole: Shape, cut: Shape) -> tuple[slice, ...]:
    """The slices of a shard that a window covers: a part of sliced dims, and all of the others."""
    return tuple(
        slice(None) if n == m else slice(int(start), int(start) + size)
        for start, size, n, m in zip(starts, sizes, whole, cut, strict=True)
    )


def _dynamic_slice(draw: st.DrawFn, kind: str) -> Case:
    shape, result, starts = _window(draw)

    def run(operands: list[Array], part: Part) -> list[Array]:
        x, *at = operands
        return [x[_places(at, part.shape(), shape, result)]]

    whole = np.arange(math.prod(shape)).reshape(shape)
    shapes = (shape, *[()] * len(starts))
    return Case(kind, shapes, (result,), run, operands=[whole, *starts])


def _dynamic_update_slice(draw: st.DrawFn, kind: str) -> Case:
    shape, window, starts = _window(draw)

    def run(operands: list[Array], part: Part) -> list[Array]:
        x, update, *at = operands
        result = x.copy()
        result[_places(at, update.shape, shape, window)] = update
        return [result]

    operands = [np.zeros(shape, np.int64) + 7, np.arange(math.prod(window)).reshape(window)]
    shapes = (shape, window, *[()] * len(starts))
    return Case(kind, shapes, (shape,), run, operands=[*operands, *starts])


def _pad(draw: st.DrawFn, kind: str) -> Case:
    """A pad with zeros or with an operand; padded dims may be shifted and keep their size."""
    shape, zeros = shape_of(draw), draw(st.booleans())
    padded = draw(st.sets(st.integers(0, len(shape) - 1)))
    shifted = draw(st.booleans())
    before = [int(d in padded) for d in range(len(shape))]
    result = tuple(n if shifted else n + 3 * b for n, b in zip(shape, before, strict=True))

    def run(operands: list[Array], part: Part) -> list[Array]:
        x, *value = operands
        result = np.full(part.shape(), value[0] if value else 0, x.dtype)
        kept = tuple(
            slice(0, n - b if shifted else n) for n, b in zip(x.shape, before, strict=True)
        )
        inside = x[kept]
        result[tuple(slice(b, b + n) for n, b in zip(inside.shape, before, strict=True))] = inside
        return [result]

    attributes = {"zeros": zeros} | ({"dims": tuple(padded)} if shifted else {})
    return Case(kind, (shape,) if zeros else (shape, ()), (result,), run, attributes)


def _concatenate(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw)
    dim = draw(st.integers(0, len(shape) - 1))
    sizes = draw(st.lists(SIZES, min_size=1, max_size=3))
    shapes = tuple((*shape[:dim], n, *shape[dim + 1 :]) for n in sizes)
    result = (*shape[:dim], sum(sizes), *shape[dim + 1 :])
    run = from_wholes(lambda *v: np.concatenate(v, dim))
    return Case(kind, shapes, (result,), run, {"dim": dim})


def _split(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw)
    dim = draw(st.integers(0, len(shape) - 1))
    at = draw(st.integers(1, max(1, shape[dim] - 1)))
    sizes = [n for n in (at, shape[dim] - at) if n > 0]
    results = tuple((*shape[:dim], n, *shape[dim + 1 :]) for n in sizes)
    run = from_wholes(lambda x: list(np.split(x, [at], dim))[: len(sizes)])
    return Case(kind, (shape,), results, run, {"dim": dim})


CASES: dict[str, Maker] = {
    "transpose": _transpose,
    "broadcast": _broadcast,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "expand_dims": _squeeze,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "pad": _pad,
    "concatenate": _concatenate,
    "split": _split,
}
