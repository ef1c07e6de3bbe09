"""How long does it take to plan a resharding, and what does the search save?

Baseline: what one writes without a search, one collective at a time: reduce, gather everything,
slice. Each round plans one pair of specs of a 24 x 24 float32 matrix, so the median is that of a
plan, and the IQR tells how much plans differ. The pairs are all that `reshard` accepts on a 2 x 4
mesh, and every 31st on 2 x 2 x 2. `uncached` starts each plan with an empty cache, `again` with a
full one; `no_estimate` is the uncached search as plain Dijkstra. Each plan is executed in numpy and
compared with slicing; the bytes that a device receives are summed over all pairs.

Not shown: larger meshes, tensors of more dims, and how often a planner hits the cache.
"""

import pytest
from shardspec import Layout, Mesh, ReshardPlan, Spec, Step, reshard
from shardspec.search import _Search, cheapest_moves
from shardspec.testing import check_plan, every_spec

STRIDES = {"2x4": 1, "2x2x2": 31}
"""By mesh: of its pairs, one in so many is planned."""

meshes = pytest.mark.parametrize("mesh", STRIDES)


def layout_pairs(mesh):
    lengths = tuple(map(int, mesh.split("x")))
    placed = Mesh(lengths, tuple("xyz"[: len(lengths)]))
    layouts = [Layout((24, 24), placed, spec) for spec in every_spec(placed, ndim=2)]
    pairs = [
        (src, dst)
        for src in layouts
        for dst in layouts
        if src != dst and set(dst.spec.partial) <= set(src.spec.partial)
    ]
    return pairs[:: STRIDES[mesh]]


def gather_then_slice(src, dst):
    """A plan over the replicated layout, each collective over one axis."""
    steps = []
    dims, partial = [list(axes) for axes in src.spec.dims], list(src.spec.partial)

    def add(kind, axis, dim, reduction=None):
        before = steps[-1].dst if steps else src
        after = Layout(src.shape, src.mesh, Spec(tuple(map(tuple, dims)), tuple(partial)))
        steps.append(Step(kind, (axis,), dim, None, reduction, before, after))

    for reduced in reversed(src.spec.partial):
        if reduced not in dst.spec.partial:
            partial.remove(reduced)
            add("all_reduce", reduced.axis, None, reduced.kind)
    for dim, axes in enumerate(dims):
        while axes:
            add("all_gather", axes.pop(), dim)
    for dim, axes in enumerate(dst.spec.dims):
        for axis in axes:
            dims[dim].append(axis)
            add("slice", axis, dim)
    return ReshardPlan(src, dst, tuple(steps))


def measure(benchmark, planner, pairs, prepare=lambda: None):
    """Time one pair a round, then check the plans of all pairs; return the bytes they receive."""
    coming = iter(pairs)

    def setup():
        prepare()
        return next(coming), {}

    benchmark.pedantic(planner, setup=setup, rounds=len(pairs))
    plans = [planner(*pair) for pair in pairs]
    for plan in plans:
        check_plan(plan)
    return sum(plan.received_bytes(itemsize=4) for plan in plans)


@meshes
def test_gather_then_slice(benchmark, mesh):
    measure(benchmark, gather_then_slice, layout_pairs(mesh))


@meshes
@pytest.mark.parametrize("search", ["uncached", "no_estimate", "again"])
def test_reshard(benchmark, monkeypatch, search, mesh):
    pairs = layout_pairs(mesh)
    cheapest_moves.cache_clear()
    naive = sum(gather_then_slice(*pair).received_bytes(itemsize=4) for pair in pairs)
    best = sum(reshard(*pair).received_bytes(itemsize=4) for pair in pairs)
    if search == "no_estimate":
        monkeypatch.setattr(_Search, "estimate", lambda self, state: 0)
    prepare = (lambda: None) if search == "again" else cheapest_moves.cache_clear

    received = measure(benchmark, reshard, pairs, prepare)

    assert received == best < naive
    benchmark.extra_info["baseline"] = f"test_gather_then_slice[{mesh}]"
    benchmark.extra_info["bytes received"] = f"{received / naive:.2f} of the baseline's"
