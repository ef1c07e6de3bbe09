"""Cases of contractions and convolutions."""

from __future__ import annotations

from string import ascii_lowercase

import numpy as np
from hypothesis import strategies as st

from autoshard.testing.cases.case import SIZES, Case, Maker, Shape, from_wholes
from autoshard.testing.rules import Array, Part


def _einsum(draw: st.DrawFn, kind: str) -> Case:
    sizes = {letter: draw(SIZES) for letter in "abcd"}
    word = st.lists(st.sampled_from("abcd"), unique=True, max_size=3).map("".join)
    words = draw(st.lists(word, min_size=1, max_size=3))
    letters = sorted(set("".join(words)))
    kept = draw(st.lists(st.sampled_from(letters), unique=True)) if letters else []
    formula = ",".join(words) + "->" + "".join(kept)
    shapes = tuple(tuple(sizes[letter] for letter in word) for word in words)
    result = tuple(sizes[letter] for letter in kept)
    run = from_wholes(lambda *v: np.asarray(np.einsum(formula, *v)))
    return Case(kind, shapes, (result,), run, {"formula": formula})


def _dot_general(draw: st.DrawFn, kind: str) -> Case:
    groups = [draw(st.integers(0, 2)) for _ in range(4)]
    names = iter(ascii_lowercase)
    batch, summed, left, right = ([next(names) for _ in range(n)] for n in groups)
    sizes = {letter: draw(SIZES) for letter in (*batch, *summed, *left, *right)}
    x = draw(st.permutations([*batch, *summed, *left]))
    y = draw(st.permutations([*batch, *summed, *right]))
    result = [*batch, *(c for c in x if c in left), *(c for c in y if c in right)]
    formula = f"{''.join(x)},{''.join(y)}->{''.join(result)}"

    def shape(letters: list[str]) -> Shape:
        return tuple(sizes[letter] for letter in letters)

    def dims(letters: list[str]) -> tuple[Shape, Shape]:
        return tuple(map(x.index, letters)), tuple(map(y.index, letters))

    return Case(
        kind,
        (shape(x), shape(y)),
        (shape(result),),
        from_wholes(lambda *v: np.asarray(np.einsum(formula, *v))),
        {"contracting": dims(summed), "batch": dims(batch)},
    )


_TAPS, _SPACE = 2, 5


def _forward(x: Array, w: Array) -> Array:
    """`x[n, g, c, s], w[g, o, c, k] -> y[n, g, o, q]`, without padding."""
    taps = range(w.shape[-1])
    q = x.shape[-1] - len(taps) + 1
    parts = [np.einsum("ngcq,goc->ngoq", x[..., t : t + q], w[..., t]) for t in taps]
    return np.asarray(sum(parts))


def _data_gradient(w: Array, y: Array) -> Array:
    taps, q = w.shape[-1], y.shape[-1]
    shape = (y.shape[0], w.shape[0], w.shape[2], q + taps - 1)
    x = np.zeros(shape, np.int64)
    for t in range(taps):
        x[..., t : t + q] += np.einsum("ngoq,goc->ngcq", y, w[..., t])
    return x


def _kernel_gradient(x: Array, y: Array) -> Array:
    q = y.shape[-1]
    taps = range(x.shape[-1] - q + 1)
    return np.stack([np.einsum("ngcq,ngoq->goc", x[..., t : t + q], y) for t in taps], axis=-1)


def _convolution(draw: st.DrawFn, kind: str) -> Case:
    small = st.sampled_from([1, 2, 3, 4])
    n, groups, c, o = (draw(small) for _ in range(4))
    batch_groups = draw(st.booleans())
    computes = "result" if batch_groups else draw(st.sampled_from(["data", "kernel", "result"]))
    # in the order (first, second, space), before the layout of each permutes it
    canonical = {
        "data": (groups * n, c, _SPACE) if batch_groups else (n, groups * c, _SPACE),
        "kernel": (groups * o, c, _TAPS),
        "result": (n, groups * o, _SPACE - _TAPS + 1),
    }
    layouts = {what: tuple(draw(st.permutations(range(3)))) for what in canonical}
    shapes = {
        what: tuple(shape[layouts[what].index(d)] for d in range(3))
        for what, shape in canonical.items()
    }
    read = [what for what in canonical if what != computes]

    def run(operands: list[Array], part: Part) -> list[Array]:
        held = dict(zip(read, operands, strict=True))
        local = {what: v.transpose(layouts[what]) for what, v in held.items()}
        shape = tuple(part.shape()[d] for d in layouts[computes])
        sizes = {what: v.shape for what, v in local.items()} | {computes: shape}
        if batch_groups:
            n_groups = sizes["data"][0] // sizes["result"][0]
            x = local["data"].reshape(n_groups, -1, *sizes["data"][1:]).swapaxes(0, 1)
        else:
            n_groups = sizes["data"][1] // sizes["kernel"][1]
            if "data" in local:
                x = local["data"].reshape(sizes["data"][0], n_groups, -1, sizes["data"][2])
        if "kernel" in local:
            w = local["kernel"].reshape(n_groups, -1, *sizes["kernel"][1:])
        if "result" in local:
            y = local["result"].reshape(sizes["result"][0], n_groups, -1, sizes["result"][2])
        if computes == "result":
            computed = _forward(x, w)
        elif computes == "data":
            computed = _data_gradient(w, y)
        else:
            computed = _kernel_gradient(x, y)
        return [computed.reshape(shape).transpose(np.argsort(layouts[computes]))]

    return Case(
        kind,
        tuple(shapes[what] for what in read),
        (shapes[computes],),
        run,
        {
            **layouts,
            "computes": computes,
            **{"batch_groups" if batch_groups else "groups": groups},
        },
    )


CASES: dict[str, Maker] = {
    "einsum": _einsum,
    "dot_general": _dot_general,
    "convolution": _convolution,
}
