"""Random rules with a program for each, and a check of what a strategy computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from shardspec import Layout, Mesh, assemble, shard

from autoshard.rule import Rule
from autoshard.rules import (
    broadcast,
    einsum,
    elementwise,
    labelled,
    reduction,
    reshape,
    transpose,
    whole,
)
from autoshard.strategy import Strategy

Whole = NDArray[np.int64]
Slices = tuple[slice, ...]


def meshes() -> st.SearchStrategy[Mesh]:
    """Small meshes of one to three axes, some of size 1."""
    shapes = st.sampled_from([(2,), (4,), (2, 2), (1, 2), (2, 1), (2, 3), (2, 2, 2)])
    return shapes.map(lambda shape: Mesh(shape, ("x", "y", "z")[: len(shape)]))


@dataclass(frozen=True, slots=True)
class Case:
    """A rule with a program for it."""

    rule: Rule
    run: Callable[[list[Whole], list[Slices], list[tuple[int, ...]]], list[Whole]]
    """(a device's shards of the operands, which slices they are, shapes of its shards of the
    results) -> its shards of the results."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """An operator of each of the rule helpers, with dims that often divide by a mesh's axes."""
    sizes = st.sampled_from([1, 2, 3, 4, 6, 8])
    maker = draw(st.sampled_from(sorted(_MAKERS)))
    return _MAKERS[maker](*(draw(sizes) for _ in range(4)))


def _elementwise(a: int, b: int, c: int, d: int) -> Case:
    rule = elementwise(((a, b), (1, b), (b,)), (a, b), linear=((0, 1), (2,)))
    return Case(rule, lambda v, at, to: [(v[0] + v[1]) * v[2]])


def _nonlinear(a: int, b: int, c: int, d: int) -> Case:
    return Case(elementwise(((a, b, c),), (a, b, c)), lambda v, at, to: [v[0] ** 2])


def _einsum(a: int, b: int, c: int, d: int) -> Case:
    rule = einsum("bik,bkj->bij", (a, b, c), (a, c, d))
    return Case(rule, lambda v, at, to: [np.einsum("bik,bkj->bij", v[0], v[1])])


def _outer(a: int, b: int, c: int, d: int) -> Case:
    rule = einsum("ik,j->ij", (a, b), (c,))
    return Case(rule, lambda v, at, to: [np.einsum("ik,j->ij", v[0], v[1])])


def _reduction(a: int, b: int, c: int, d: int) -> Case:
    rule = reduction((a, b, c), (0, 2))
    return Case(rule, lambda v, at, to: [v[0].sum(axis=(0, 2))])


def _maximum(a: int, b: int, c: int, d: int) -> Case:
    rule = reduction((a, b, c), (1,), "max", keepdims=True)
    return Case(rule, lambda v, at, to: [v[0].max(axis=1, keepdims=True)])


def _merge(a: int, b: int, c: int, d: int) -> Case:
    return Case(reshape((a, b, c), (a * b, c)), lambda v, at, to: [v[0].reshape(to[0])])


def _split(a: int, b: int, c: int, d: int) -> Case:
    return Case(reshape((a * b, c), (a, b, 1, c)), lambda v, at, to: [v[0].reshape(to[0])])


def _regroup(a: int, b: int, c: int, d: int) -> Case:
    return Case(reshape((a * b, c), (b, a * c)), lambda v, at, to: [v[0].reshape(to[0])])


def _transpose(a: int, b: int, c: int, d: int) -> Case:
    rule = transpose((a, b, c), (2, 0, 1))
    return Case(rule, lambda v, at, to: [v[0].transpose(2, 0, 1)])


def _broadcast(a: int, b: int, c: int, d: int) -> Case:
    rule = broadcast((a, 1), (b, a, c), (1, 2))
    return Case(rule, lambda v, at, to: [np.broadcast_to(v[0], to[0])])


def _lookup(a: int, b: int, c: int, d: int) -> Case:
    """Rows of a table that may be split along the rows: each device adds what it has."""
    rule = labelled("vd,t->td", ((a, b), (c,)), ((c, b),), linear=((0,),))

    def run(v: list[Whole], at: list[Slices], to: list[tuple[int, ...]]) -> list[Whole]:
        rows = v[1] % a - at[0][0].start
        mine = (rows >= 0) & (rows < len(v[0]))
        return [np.where(mine[:, None], v[0][np.where(mine, rows, 0)], 0)]

    return Case(rule, run)


def _cumulative(a: int, b: int, c: int, d: int) -> Case:
    rule = labelled("it->it", ((a, b),), ((a, b),), whole="t", linear=((0,),))
    return Case(rule, lambda v, at, to: [v[0].cumsum(axis=1)])


def _two_results(a: int, b: int, c: int, d: int) -> Case:
    """One result keeps the factor that the other sums over."""
    rule = labelled("ij->ij,i", ((a, b),), ((a, b), (a,)), linear=((0,),))
    return Case(rule, lambda v, at, to: [3 * v[0], v[0].sum(axis=1)])


def _whole(a: int, b: int, c: int, d: int) -> Case:
    rule = whole(((a, b), (c,)), ((b, a),))
    return Case(rule, lambda v, at, to: [np.sort(v[0], axis=None).reshape(b, a) + v[1].sum()])


_MAKERS: dict[str, Callable[[int, int, int, int], Case]] = {
    "broadcast": _broadcast,
    "cumulative": _cumulative,
    "einsum": _einsum,
    "elementwise": _elementwise,
    "lookup": _lookup,
    "maximum": _maximum,
    "merge": _merge,
    "nonlinear": _nonlinear,
    "outer": _outer,
    "reduction": _reduction,
    "regroup": _regroup,
    "split": _split,
    "transpose": _transpose,
    "two_results": _two_results,
    "whole": _whole,
}


def check_strategy(case: Case, mesh: Mesh, strategy: Strategy, seed: int) -> None:
    """Run an operator on every device under a strategy, and compare with running it whole."""
    rng = np.random.default_rng(seed)
    rule = case.rule
    operands: list[Any] = [rng.integers(-9, 10, shape) for shape in rule.operand_shapes]
    everything = [tuple(slice(0, n) for n in shape) for shape in rule.operand_shapes]
    expected = case.run(operands, everything, list(rule.result_shapes))
    sources = [
        Layout(shape, mesh, spec)
        for shape, spec in zip(rule.operand_shapes, strategy.operand_specs, strict=True)
    ]
    targets = [
        Layout(shape, mesh, spec)
        for shape, spec in zip(rule.result_shapes, strategy.result_specs, strict=True)
    ]
    shards = [shard(layout, v, seed=seed) for layout, v in zip(sources, operands, strict=True)]
    made = {
        device: case.run(
            [shard_of[device] for shard_of in shards],
            [layout.slices(device) for layout in sources],
            [layout.local_shape(device) for layout in targets],
        )
        for device in mesh.device_ids
    }
    for position, layout in enumerate(targets):
        found = assemble(layout, {device: results[position] for device, results in made.items()})
        np.testing.assert_array_equal(found, expected[position])
