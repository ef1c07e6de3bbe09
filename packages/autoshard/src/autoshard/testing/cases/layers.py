"""Cases of layers that frameworks have as one operator."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from autoshard.testing.cases.case import SIZES, Case, Maker, generator, places, shape_of, softmax
from autoshard.testing.rules import Array, Part


def _normalised(x: Array, dims: tuple[int, ...]) -> Array:
    centred = x - x.mean(axis=dims, keepdims=True)
    return np.asarray(centred / np.sqrt(1 + (centred**2).mean(axis=dims, keepdims=True)))


def _norm(draw: st.DrawFn, kind: str) -> Case:
    batch, weights = shape_of(draw, 0, 2), shape_of(draw, 1, 2)
    dims = tuple(range(-len(weights), 0))
    n = 2 if kind == "layer_norm" else 1

    def run(operands: list[Array], part: Part) -> list[Array]:
        x, scale, *shift = operands
        return [_normalised(x, dims) * scale + (shift[0] if shift else 0)]

    shape = (*batch, *weights)
    return Case(kind, (shape, *[weights] * n), (shape,), run)


def _norm_gradient(draw: st.DrawFn, kind: str) -> Case:
    batch, weights = shape_of(draw, 0, 2), shape_of(draw, 1, 2)
    dims = tuple(range(-len(weights), 0))
    every = tuple(range(len(batch)))
    n = 2 if kind == "layer_norm_gradient" else 1

    def run(operands: list[Array], part: Part) -> list[Array]:
        """Not the true gradient, but sums and products over the same dims."""
        g, x, scale = operands
        y = _normalised(x, dims)
        dx = g * scale - (g * scale * y).sum(axis=dims, keepdims=True) * y
        return [dx, (g * y).sum(axis=every), g.sum(axis=every)][: 1 + n]

    shape = (*batch, *weights)
    return Case(kind, (shape, shape, weights), (shape, *[weights] * n), run)


def _batch_norm(draw: st.DrawFn, kind: str) -> Case:
    shape = shape_of(draw, 2, 4)
    dim = draw(st.integers(0, len(shape) - 1))
    others = tuple(d for d in range(len(shape)) if d != dim)

    def run(operands: list[Array], part: Part) -> list[Array]:
        x, scale, shift = operands
        along = [-1 if d == dim else 1 for d in range(len(shape))]
        y = _normalised(x, others) * scale.reshape(along) + shift.reshape(along)
        return [y, x.mean(axis=others)]

    channels = (shape[dim],)
    return Case(kind, (shape, channels, channels), (shape, channels), run, {"dim": dim})


def _cross_entropy(draw: st.DrawFn, kind: str) -> Case:
    *batch, v = shape_of(draw, 1, 3)
    rng = generator(draw)
    x, labels = rng.integers(-3, 4, (*batch, v)), rng.integers(0, v, batch)

    def run(operands: list[Array], part: Part) -> list[Array]:
        x, labels = operands
        chosen = np.take_along_axis(softmax(x), labels[..., None], -1)[..., 0]
        return [-np.log(chosen)]

    shapes = (x.shape, labels.shape)
    return Case(kind, shapes, (labels.shape,), run, operands=[x, labels])


def _cross_entropy_gradient(draw: st.DrawFn, kind: str) -> Case:
    *batch, v = shape_of(draw, 1, 3)
    rng = generator(draw)
    x, labels = rng.integers(-3, 4, (*batch, v)), rng.integers(0, v, batch)
    g = rng.integers(-9, 10, batch)

    def run(operands: list[Array], part: Part) -> list[Array]:
        g, x, labels = operands
        return [g[..., None] * (softmax(x) - (labels[..., None] == np.arange(v)))]

    shapes = (g.shape, x.shape, labels.shape)
    return Case(kind, shapes, (x.shape,), run, operands=[g, x, labels])


def _attention(draw: st.DrawFn, kind: str) -> Case:
    b, g, r, t, s, d, e = (draw(st.sampled_from([1, 2, 3, 4])) for _ in range(7))

    def run(operands: list[Array], part: Part) -> list[Array]:
        q, k, v = operands
        q = q.reshape(q.shape[0], k.shape[1], -1, *q.shape[2:])
        weights = softmax(np.einsum("bgrtd,bgsd->bgrts", q, k) / 9)
        mixed = np.einsum("bgrts,bgse->bgrte", weights, v)
        return [mixed.reshape(part.shape())]

    shapes = ((b, g * r, t, d), (b, g, s, d), (b, g, s, e))
    return Case(kind, shapes, ((b, g * r, t, e),), run)


def _moe(draw: st.DrawFn, kind: str) -> Case:
    g, t, d, e, c = (draw(SIZES) for _ in range(5))
    k = draw(st.sampled_from([1, 2]))
    rng = generator(draw)
    expert, place = rng.integers(0, e, (g, t, k)), rng.integers(0, c + 1, (g, t, k))
    weights, x = rng.integers(-9, 10, (g, t, k)), rng.integers(-9, 10, (g, t, d))
    y = rng.integers(-9, 10, (e, g, c, d))

    def routes(expert: Array, place: Array, experts: Array, room: Array) -> Array:
        """1 where a token's choice is an expert and slot of this part, shape (g, t, k, e, c)."""
        at, slot = places(experts, e)[expert], places(room, c + 1)[place]
        hot = at[..., None, None] == np.arange(len(experts))[:, None]
        return np.asarray(hot & (slot[..., None, None] == np.arange(len(room))), np.int64)

    def dispatch(operands: list[Array], part: Part) -> list[Array]:
        x, expert, place = operands
        experts, _, room, _ = part.results[0]
        return [np.einsum("gtkec,gtd->egcd", routes(expert, place, experts, room), x)]

    def combine(operands: list[Array], part: Part) -> list[Array]:
        y, expert, place, weights = operands
        experts, _, room, _ = part.operands[0]
        hot = routes(expert, place, experts, room)
        return [np.einsum("gtkec,egcd,gtk->gtd", hot, y, weights)]

    if kind == "moe_dispatch":
        tokens = [x, expert, place]
        return Case(kind, tuple(v.shape for v in tokens), (y.shape,), dispatch, operands=tokens)
    results = [y, expert, place, weights]
    return Case(kind, tuple(v.shape for v in results), (x.shape,), combine, operands=results)


CASES: dict[str, Maker] = {
    "layer_norm": _norm,
    "rms_norm": _norm,
    "layer_norm_gradient": _norm_gradient,
    "rms_norm_gradient": _norm_gradient,
    "batch_norm": _batch_norm,
    "cross_entropy": _cross_entropy,
    "cross_entropy_gradient": _cross_entropy_gradient,
    "attention": _attention,
    "moe_dispatch": _moe,
    "moe_combine": _moe,
}
