"""Cases of control flow, whose bodies compute on shards as on whole tensors."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from autoshard.graph.graph import Graph
from autoshard.rules.builder import GraphBuilder
from autoshard.testing.cases.case import SIZES, Case, Maker, generator
from autoshard.testing.rules import Array, Part


def _cell(b: int, d: int, mixes: bool) -> Graph:
    """A body from (w, h, n, x) to (h * w + x, maybe normalised along d; n + 1; h)."""
    graph = GraphBuilder()
    w, h = graph.input("w", d), graph.input("h", b, d)
    n, x = graph.input("n"), graph.input("x", b, d)
    new = graph.add(graph.mul(h, w), x)
    if mixes:
        new = graph.apply("softmax", new, dims=(1,))
    graph.output(new)
    graph.output(graph.apply("add_one", n))
    graph.output(graph.apply("copy", h))
    return graph.build()


def _mixed(h: Array, mixes: bool) -> Array:
    return h - h.sum(axis=1, keepdims=True) if mixes else h


def _sum_over_rows(graph: GraphBuilder, x: str) -> str:
    _, d = graph.shape(x)
    return graph.apply("reduce_sum", x, shape=(d,), dims=(0,))


def _summing_scan(draw: st.DrawFn, kind: str) -> Case:
    """The backward of a recurrence, which sums over b: into a carry, and step by step.

    Where it applies a nonlinear function to the sum, or counts its steps, b stays whole.
    """
    b, d, t = draw(SIZES), draw(SIZES), draw(st.integers(1, 3))
    ends = draw(st.sampled_from(["", "", "squared", "counted"]))
    counts, is_squared = ends == "counted", ends == "squared"
    graph = GraphBuilder()
    w, g = graph.input("w", d), graph.input("g", d)
    n = graph.input("n") if counts else ""
    h, x = graph.input("h", b, d), graph.input("x", b, d)
    total = graph.add(graph.mul(g, w), _sum_over_rows(graph, graph.mul(h, x)))
    graph.output(graph.apply("square", total) if is_squared else total)
    if counts:
        graph.output(graph.apply("square", n))
    graph.output(graph.mul(h, w))
    graph.output(_sum_over_rows(graph, h))

    def run(operands: list[Array], part: Part) -> list[Array]:
        w, g, *n, h, x = operands
        g = g if part.counts((2 + counts, 0)) else 0 * g
        sums = []
        for row in x:
            sums.append(h.sum(0))
            total = g * w + (h * row).sum(0)
            g, h = total**2 if is_squared else total, h * w
            n = [one**2 for one in n]
        return [g, *n, h, np.stack(sums)]

    more = ((),) if counts else ()
    rng = generator(draw)
    numbers = [rng.integers(-2, 3, shape) for shape in ((d,), (d,), *more, (b, d), (t, b, d))]
    return Case(
        kind,
        ((d,), (d,), *more, (b, d), (t, b, d)),
        ((d,), *more, (b, d), (t, d)),
        run,
        {"body": graph.build(), "n_constants": 1, "n_carry": 2 + counts},
        numbers,
    )


def _totalling_scan(draw: st.DrawFn, kind: str) -> Case:
    """Iterations that only add to the carry, if there is one, so that they can be split.

    If the carry is also read otherwise, they cannot.
    """
    b, t = draw(SIZES), draw(SIZES)
    ends = draw(st.sampled_from(["", "nothing", "read", "returned"]))
    adds = ends != "nothing"
    graph = GraphBuilder()
    total = graph.input("total", b) if adds else ""
    x = graph.input("x", b)
    square = graph.apply("square", x)
    if adds:
        added = graph.add(square, total)
        graph.output(graph.mul(added, x) if ends == "read" else added)
    graph.output(graph.apply("copy", total) if ends == "returned" else graph.apply("neg", square))

    def run(operands: list[Array], part: Part) -> list[Array]:
        *total, x = operands
        if ends == "" and not part.counts((1, 0)):
            total = [0 * total[0]]
        rows = []
        for row in x:
            rows.append(total[0] if ends == "returned" else -(row**2))
            total = [(one + row**2) * (row if ends == "read" else 1) for one in total]
        return [*total, np.stack(rows)]

    numbers = [generator(draw).integers(-2, 3, shape) for shape in ((b,), (t, b))][not adds :]
    return Case(
        kind,
        tuple(array.shape for array in numbers),
        tuple(array.shape for array in numbers),
        run,
        {"body": graph.build(), "n_constants": 0, "n_carry": int(adds)},
        numbers,
    )


def _scan(draw: st.DrawFn, kind: str) -> Case:
    which = draw(st.sampled_from(["", "", "sums", "totals"]))
    if which:
        return (_summing_scan if which == "sums" else _totalling_scan)(draw, kind)
    b, d, t, mixes = draw(SIZES), draw(SIZES), draw(st.integers(1, 3)), draw(st.booleans())
    rng = generator(draw)
    w, h, x = (rng.integers(-2, 3, shape) for shape in ((d,), (b, d), (t, b, d)))

    def run(operands: list[Array], part: Part) -> list[Array]:
        w, h, n, x = operands
        before = []
        for row in x:
            before.append(h)
            h, n = _mixed(h * w + row, mixes), n + 1
        return [h, n, np.stack(before)]

    return Case(
        kind,
        ((d,), (b, d), (), (t, b, d)),
        ((b, d), (), (t, b, d)),
        run,
        {"body": _cell(b, d, mixes), "n_constants": 1, "n_carry": 2},
        [w, h, np.array(0), x],
    )


def _branch(b: int, d: int, mixes: bool, transposes: bool) -> Graph:
    graph = GraphBuilder()
    x, y = graph.input("x", b, d), graph.input("y", b, d)
    result = graph.apply("softmax", x, dims=(1,)) if mixes else graph.mul(x, y)
    if transposes:
        result = graph.transpose(graph.transpose(result, 1, 0), 1, 0)
    graph.output(result)
    graph.output(graph.apply("exp", y))
    return graph.build()


def _cond(draw: st.DrawFn, kind: str) -> Case:
    b, d = draw(SIZES), draw(SIZES)
    mixes = [draw(st.booleans()) for _ in range(draw(st.integers(1, 3)))]
    branches = [_branch(b, d, mix, draw(st.booleans())) for mix in mixes]
    choice = np.array(draw(st.integers(0, len(mixes) - 1)))
    rng = generator(draw)

    def run(operands: list[Array], part: Part) -> list[Array]:
        choice, x, y = operands
        return [_mixed(x, True) if mixes[int(choice)] else x * y, y**2]

    return Case(
        kind,
        ((), (b, d), (b, d)),
        ((b, d), (b, d)),
        run,
        {"branches": branches},
        [choice, *(rng.integers(-9, 10, (b, d)) for _ in range(2))],
    )


def _while(draw: st.DrawFn, kind: str) -> Case:
    """A loop that doubles x while a counter, or x's largest element if it `looks`, is small."""
    b, d, looks = draw(SIZES), draw(SIZES), draw(st.booleans())
    condition = GraphBuilder()
    limit, n, x = condition.input("limit"), condition.input("n"), condition.input("x", b, d)
    if looks:
        n = condition.apply("reduce_max", x, shape=(), dims=(0, 1))
    condition.output(condition.apply("lt", n, limit, dtype="bool"))
    body = GraphBuilder()
    w, n, x = body.input("w", d), body.input("n"), body.input("x", b, d)
    body.output(body.apply("add_one", n))
    body.output(body.add(body.add(x, x), w))

    def run(operands: list[Array], part: Part) -> list[Array]:
        limit, w, n, x = operands
        while (x.max() if looks else n) < limit:
            n, x = n + 1, x + x + w
        return [n, x]

    rng = generator(draw)
    operands = [np.array(3), rng.integers(1, 3, d), np.array(0), rng.integers(1, 9, (b, d))]
    return Case(
        kind,
        ((), (d,), (), (b, d)),
        ((), (b, d)),
        run,
        {
            "condition": condition.build(),
            "body": body.build(),
            "n_condition_constants": 1,
            "n_body_constants": 1,
        },
        operands,
    )


CASES: dict[str, Maker] = {"scan": _scan, "cond": _cond, "while": _while}
