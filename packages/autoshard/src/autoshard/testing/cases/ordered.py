"""Cases of operators that need a dim in order, need whole matrices, or create arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from autoshard.testing.cases.case import SIZES, Case, Maker, from_wholes, generator, shape_of
from autoshard.testing.rules import Array, Part


def _one_dim(function: Callable[..., Any]) -> Maker:
    def make(draw: st.DrawFn, kind: str) -> Case:
        shape = shape_of(draw)
        dim = draw(st.integers(0, len(shape) - 1))
        run = from_wholes(lambda x: np.asarray(function(x, axis=dim)))
        operand = generator(draw).integers(-2, 3, shape)
        return Case(kind, (shape,), (shape,), run, {"dim": dim}, [operand])

    return make


def _sort(draw: st.DrawFn, kind: str) -> Case:
    """A sort of keys, with values that follow them."""
    shape = shape_of(draw)
    dim = draw(st.integers(0, len(shape) - 1))

    def run(operands: list[Array], part: Part) -> list[Array]:
        keys, values = operands
        order = np.argsort(keys, axis=dim, kind="stable")
        return [np.take_along_axis(v, order, dim) for v in (keys, values)]

    return Case(kind, (shape,) * 2, (shape,) * 2, run, {"dim": dim})


def _top_k(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw)
    dim = len(shape) - 1
    k = draw(st.integers(1, shape[dim]))
    result = (*shape[:dim], k)

    def run(operands: list[Array], part: Part) -> list[Array]:
        order = np.argsort(-operands[0], axis=dim, kind="stable")[..., :k]
        return [np.take_along_axis(operands[0], order, dim), order]

    return Case(kind, (shape,), (result,) * 2, run, {"dim": dim})


def _matrix(function: Callable[[Array], Any], n_results: int = 1) -> Maker:
    """A decomposition of positive definite matrices."""

    def make(draw: st.DrawFn, kind: str) -> Case:
        n = draw(st.integers(1, 4))
        batch = shape_of(draw, 0, 2)
        root = generator(draw).integers(-3, 4, (*batch, n, n))
        matrix = root @ root.swapaxes(-1, -2) + 5.0 * np.eye(n)
        results = [np.asarray(v).shape for v in _listed(function(matrix))]
        run = from_wholes(lambda x: _listed(function(x)))
        return Case(kind, ((*batch, n, n),), tuple(results), run, operands=[matrix])

    return make


def _listed(results: Any) -> list[Array]:
    return list(results) if isinstance(results, tuple) else [results]


def _lu(x: Array) -> Array:
    """An LU decomposition without pivots, with both factors in one matrix."""
    lu = x.copy()
    for k in range(x.shape[-1]):
        lu[..., k + 1 :, k] /= lu[..., k, None, k]
        lu[..., k + 1 :, k + 1 :] -= lu[..., k + 1 :, k, None] * lu[..., k, None, k + 1 :]
    return lu


def _schur(x: Array) -> tuple[Array, Array]:
    """Of a symmetric matrix: its eigenvalues on the diagonal, and its eigenvectors."""
    values, vectors = np.linalg.eigh(x)
    return values[..., None] * np.eye(x.shape[-1]), vectors


def _solve(draw: st.DrawFn, kind: str) -> Case:
    """One equation for each vector, the first operand, which a problem has one dim of."""
    n, batch = draw(st.integers(1, 4)), shape_of(draw, 0, 2)
    vector = generator(draw).integers(-9, 10, (*batch, n)).astype(np.float64)
    matrix = generator(draw).integers(-2, 3, (*batch, n, n)) + 9.0 * np.eye(n)
    run = from_wholes(lambda v, m: [np.linalg.solve(m, v[..., None])[..., 0]])
    shapes = (vector.shape, matrix.shape)
    return Case(kind, shapes, (vector.shape,), run, {"n_dims": 1}, [vector, matrix])


def _triangular_solve(draw: st.DrawFn, kind: str) -> Case:
    n, m, batch = draw(st.integers(1, 4)), draw(SIZES), shape_of(draw, 0, 2)
    left_side = draw(st.booleans())
    a = np.tril(generator(draw).integers(-2, 3, (*batch, n, n)), -1) + 1.0 * np.eye(n)
    b = generator(draw).integers(-9, 10, (*batch, n, m)).astype(np.float64)
    if not left_side:
        b = b.swapaxes(-1, -2).copy()

    def run(operands: list[Array], part: Part) -> list[Array]:
        a, b = operands
        if left_side:
            return [np.linalg.solve(a, b)]
        return [np.linalg.solve(a.swapaxes(-1, -2), b.swapaxes(-1, -2)).swapaxes(-1, -2)]

    return Case(kind, (a.shape, b.shape), (b.shape,), run, {"left_side": left_side}, [a, b])


def _full(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw, 0)

    def run(operands: list[Array], part: Part) -> list[Array]:
        return [np.full(part.shape(), operands[0])]

    return Case(kind, ((),), (shape,), run)


def _iota(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw)
    dim = draw(st.integers(0, len(shape) - 1))

    def run(operands: list[Array], part: Part) -> list[Array]:
        counted = part.results[0][dim].reshape([-1 if d == dim else 1 for d in range(len(shape))])
        return [np.broadcast_to(counted, part.shape()).copy()]

    return Case(kind, (), (shape,), run)


def _numbers(key: Array, part: Part, shape: tuple[int, ...]) -> Array:
    """Counter-based random numbers: each depends on the key and on the element's position."""
    counter = np.zeros((1,) * len(shape), np.int64)
    for d, index in enumerate(part.results[0]):
        counter = counter * shape[d] + index.reshape(
            [-1 if e == d else 1 for e in range(len(shape))]
        )
    return np.asarray((counter * 2654435761 + key.sum() * 40503) % 65537)


def _random(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw)
    return Case(kind, ((2,),), (shape,), lambda v, part: [_numbers(v[0], part, shape)])


def _dropout(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw)

    def run(operands: list[Array], part: Part) -> list[Array]:
        return [np.where(_numbers(operands[1], part, shape) % 2, 2 * operands[0], 0)]

    return Case(kind, (shape, (2,)), (shape,), run)


CASES: dict[str, Maker] = {
    "sort": _sort,
    "top_k": _top_k,
    "cumsum": _one_dim(np.cumsum),
    "cumprod": _one_dim(np.cumprod),
    "cummax": _one_dim(np.maximum.accumulate),
    "cummin": _one_dim(np.minimum.accumulate),
    "cumlogsumexp": _one_dim(np.logaddexp.accumulate),
    "cholesky": _matrix(np.linalg.cholesky),
    "eig": _matrix(lambda x: tuple(np.linalg.eig(x))),
    "factorization": _solve,
    "schur": _matrix(_schur),
    "eigh": _matrix(lambda x: tuple(np.linalg.eigh(x))),
    "lu": _matrix(_lu),
    "qr": _matrix(lambda x: tuple(np.linalg.qr(x))),
    "svd": _matrix(lambda x: tuple(np.linalg.svd(x))),
    "triangular_solve": _triangular_solve,
    "iota": _iota,
    "full": _full,
    "random": _random,
    "dropout": _dropout,
}
