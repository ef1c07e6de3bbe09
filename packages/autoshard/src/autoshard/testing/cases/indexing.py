"""Cases of lookups and updates at positions given by an operand."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from autoshard.testing.cases.case import SIZES, Case, Maker, generator, places, shape_of
from autoshard.testing.rules import Array, Part


def _labels(draw: st.DrawFn, size: int) -> Array:
    return generator(draw).integers(0, size, shape_of(draw, 0, 2))


def _embedding(draw: st.DrawFn, kind: str) -> Case:
    v, d = draw(SIZES), draw(SIZES)
    ids = _labels(draw, v)
    table = generator(draw).integers(-9, 10, (v, d))

    def run(operands: list[Array], part: Part) -> list[Array]:
        """A device returns the rows that it has, and zeros for those of other devices."""
        rows = places(part.operands[0][0], v)[operands[1]]
        return [np.where(rows[..., None] >= 0, operands[0][rows], 0)]

    return Case(kind, ((v, d), ids.shape), ((*ids.shape, d),), run, operands=[table, ids])


def _embedding_gradient(draw: st.DrawFn, kind: str) -> Case:
    v, d = draw(SIZES), draw(SIZES)
    ids = _labels(draw, v)
    g = generator(draw).integers(-9, 10, (*ids.shape, d))

    def run(operands: list[Array], part: Part) -> list[Array]:
        rows = places(part.results[0][0], v)[operands[1]]
        gradient = np.zeros(part.shape(), np.int64)
        np.add.at(gradient, rows[rows >= 0], operands[0][rows >= 0])
        return [gradient]

    return Case(kind, (g.shape, ids.shape), ((v, d),), run, operands=[g, ids])


def _pick(draw: st.DrawFn, kind: str) -> Case:
    v = draw(SIZES)
    labels = _labels(draw, v)
    x = generator(draw).integers(-9, 10, (*labels.shape, v))

    def run(operands: list[Array], part: Part) -> list[Array]:
        at = places(part.operands[0][-1], v)[operands[1]]
        picked = np.take_along_axis(operands[0], at[..., None], -1)[..., 0]
        return [np.where(at >= 0, picked, 0)]

    return Case(kind, (x.shape, labels.shape), (labels.shape,), run, operands=[x, labels])


def _put(draw: st.DrawFn, kind: str) -> Case:
    """A one-hot vector for each label, times the first operand if there are two."""
    v = draw(SIZES)
    labels = _labels(draw, v)
    g = [generator(draw).integers(-9, 10, labels.shape)] * (kind == "pick_gradient")

    def run(operands: list[Array], part: Part) -> list[Array]:
        hot = operands[-1][..., None] == part.results[0][-1]
        return [hot * operands[0][..., None] if g else hot.astype(np.int64)]

    shapes = (labels.shape,) * (1 + len(g))
    return Case(kind, shapes, ((*labels.shape, v),), run, operands=[*g, labels])


def _gather(draw: st.DrawFn, kind: str) -> Case:
    """Slices `x[b, ids[b, t], :taken, :]` of x (b, v, w, d), for each b and t.

    The dim b is a batching dim, v is collapsed, w is a window dim, and d is covered entirely.
    """
    b, v, d, t = (draw(SIZES) for _ in range(4))
    w, taken, masked = 5, draw(st.sampled_from([2, 5])), draw(st.booleans())
    ids = generator(draw).integers(0, v, (b, t, 1))
    x = generator(draw).integers(-9, 10, (b, v, w, d))

    def run(operands: list[Array], part: Part) -> list[Array]:
        x, ids = operands
        rows = places(part.operands[0][1], v)[ids[..., 0]]
        slices = x[np.arange(len(x))[:, None], rows, :taken]
        return [np.where(rows[..., None, None] >= 0, slices, 0)]

    attributes = {
        "slice_sizes": (1, 1, taken, d),
        "offset_dims": (2, 3),
        "collapsed_slice_dims": (1,),
        "start_index_map": (1,),
        "operand_batching_dims": (0,),
        "start_indices_batching_dims": (0,),
        "masked": masked,
    }
    return Case(kind, (x.shape, ids.shape), ((b, t, taken, d),), run, attributes, [x, ids])


def _scatter(draw: st.DrawFn, kind: str) -> Case:
    """The inverse of `_gather`: adds, or writes; if it writes, it writes each position once."""
    b, d = draw(SIZES), draw(SIZES)
    v, t = 8, draw(st.sampled_from([1, 2, 3, 4, 6]))
    adds, masked = draw(st.booleans()), draw(st.booleans())
    rng = generator(draw)
    ids = np.stack([rng.choice(v, t, replace=adds) for _ in range(b)])[..., None]
    x, updates = rng.integers(-9, 10, (b, v, d)), rng.integers(-9, 10, (b, t, d))

    def run(operands: list[Array], part: Part) -> list[Array]:
        x, ids, updates = operands
        result = x.copy() if not adds or part.counts((1, 1)) else np.zeros_like(x)
        rows = places(part.results[0][1], v)[ids[..., 0]]
        group, local = np.nonzero(rows >= 0)
        at = (group, rows[group, local])
        if adds:
            np.add.at(result, at, updates[group, local])
        else:
            result[at] = updates[group, local]
        return [result]

    attributes = {
        "adds": adds,
        "update_window_dims": (2,),
        "inserted_window_dims": (1,),
        "scatter_dims_to_operand_dims": (1,),
        "operand_batching_dims": (0,),
        "scatter_indices_batching_dims": (0,),
        "masked": masked,
    }
    shapes = (x.shape, ids.shape, updates.shape)
    return Case(kind, shapes, (x.shape,), run, attributes, [x, ids, updates])


CASES: dict[str, Maker] = {
    "gather": _gather,
    "scatter": _scatter,
    "embedding": _embedding,
    "embedding_gradient": _embedding_gradient,
    "pick": _pick,
    "pick_gradient": _put,
    "one_hot": _put,
}
