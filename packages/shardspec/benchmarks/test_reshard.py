"""How does the time to plan a resharding grow with the number of axes and devices?

The baseline is what one writes without a planner, one collective at a time: reduce, gather
everything, slice. Cases and columns are as in `test_baselines.py`, which compares `reshard` with
other planners; of a case with more than 100 pairs, 100 are drawn. "inf" is a pair for which nothing
needs to move.

Not shown: uneven and strided shards, and limits on memory or collectives.
"""

import itertools

import numpy as np
import pytest
from cases import ITEMSIZE, Case, Price, Shardspec, measure
from shardspec import Layout, Mesh, ReshardPlan, Spec, Step, reshard
from shardspec.testing import every_spec


class GatherThenSlice:
    """Plans over the replicated layout, each collective over one axis."""

    def prepare(self, src, dst):
        return src, dst

    def plan(self, src, dst):
        steps = []
        dims, partial = [list(axes) for axes in src.spec.dims], list(src.spec.partial)

        def add(kind, axis, dim, reduction=None):
            before = steps[-1].dst if steps else src
            after = Layout(src.shape, src.mesh, Spec(tuple(map(tuple, dims)), tuple(partial)))
            steps.append(Step(kind, (axis,), dim, None, reduction, before, after))

        for reduced in reversed(src.spec.partial):
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

    def price(self, src, dst):
        plan = self.plan(src, dst)
        return Price(plan.total_bytes(ITEMSIZE), plan.n_collectives)


PLANNERS = {"gather then slice": GatherThenSlice, "reshard": Shardspec}
CASES = [
    *(Case((2,) * n, rank, at_most=100) for rank in (2, 3) for n in range(1, 7)),
    *(Case((n, n), 2, at_most=100) for n in (4, 16, 64, 256)),
    *(Case((2,) * n, 2, partial=True, at_most=100) for n in range(1, 7)),
]


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_plan(benchmark, case, planner):
    measure(benchmark, PLANNERS[planner](), case.pairs())
    if planner == "reshard":
        benchmark.extra_info["baseline"] = f"test_plan[{case}-gather then slice]"


def small_pairs(mesh_shape, rank):
    """Pairs as in a `Case`, of a tensor small enough to count every element."""
    mesh = Mesh(mesh_shape, tuple("abc"[: len(mesh_shape)]))
    layouts = [Layout((mesh.size,) * rank, mesh, spec) for spec in every_spec(mesh, rank)]
    pairs = [pair for pair in itertools.product(layouts, repeat=2) if not pair[1].spec.is_partial]
    return pairs[:: 1 + len(pairs) // 1000]


def owned(layout):
    """Which device has which element, or a partial sum of it: shape (devices, *layout.shape)."""
    holds = np.zeros((layout.mesh.size, *layout.shape), bool)
    for device in layout.mesh.device_ids:
        holds[device][np.ix_(*layout.indices(device))] = True
    return holds


def fewest_messages(src, dst):
    """The least number of elements that all devices receive, counted element by element.

    A device receives what it wants and does not hold. If `u` devices have different partial sums of
    an element, `u - 1` of these are passed on before one device has the sum; each other device that
    wants it receives something after that. If no device that wants it had a partial sum of it, one
    more message is needed to bring it there.
    """
    held, wanted = owned(src), owned(dst)
    parts = src.mesh.axis_size(partial.axis for partial in src.spec.partial)
    if parts == 1:
        return (wanted & ~held).sum()
    return (parts - 1 + wanted.sum(0) - (wanted & held).any(0)).sum()


@pytest.mark.parametrize("mesh_shape", [(2, 2), (4, 2), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_bound_agrees_with_a_count_of_elements(mesh_shape, rank):
    for src, dst in small_pairs(mesh_shape, rank):
        assert reshard(src, dst).lower_bound_bytes(1) == fewest_messages(src, dst), (src, dst)


@pytest.mark.parametrize("mesh_shape", [(2, 2), (4, 2), (2, 2, 2)], ids=str)
def test_steps_bring_what_devices_lack(mesh_shape):
    for src, dst in small_pairs(mesh_shape, rank=2):
        for step in reshard(src, dst).steps:
            if not (step.is_local or step.src.spec.is_partial):
                lacking = (owned(step.dst) & ~owned(step.src)).sum()
                assert step.total_bytes(1) == lacking, step
