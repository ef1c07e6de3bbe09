"""Hypothesis strategies and checkers, for our tests and our siblings' (extra `testing`)."""

import math
from collections.abc import Iterator
from typing import get_args

import numpy as np
from hypothesis import strategies as st

from .layout import Layout
from .mesh import Mesh
from .partial import Partial, Reduction
from .shards import assemble, shard
from .simulate import simulate
from .spec import Spec
from .step import ReshardPlan, Step

Dims = tuple[tuple[int, ...], ...]


@st.composite
def meshes(draw: st.DrawFn, *, min_ndim: int = 1, max_ndim: int = 3, max_length: int = 4) -> Mesh:
    """Meshes with axes `a`, `b`, ... and device ids in any order, with gaps."""
    lengths = st.integers(1, max_length)
    shape = tuple(draw(st.lists(lengths, min_size=min_ndim, max_size=max_ndim)))
    size = math.prod(shape)
    ids = draw(st.permutations(range(size + 2)))[:size]
    return Mesh(shape, tuple("abcdefghij"[: len(shape)]), tuple(ids))


@st.composite
def specs(draw: st.DrawFn, mesh: Mesh, ndim: int, *, partial: bool = True) -> Spec:
    """Specs of tensors with `ndim` dims on `mesh`, partial results of at most one kind."""
    unused, partly = -1, -2
    places = st.sampled_from([unused, *([partly] if partial else []), *range(ndim)])
    kind = draw(st.sampled_from(get_args(Reduction)))
    dims: list[tuple[int, ...]] = [()] * ndim
    partials = []
    for axis in draw(st.permutations(range(mesh.ndim))):
        place = draw(places)
        if place == partly:
            partials.append(Partial(axis, kind))
        elif place != unused:
            dims[place] += (axis,)
    return Spec(tuple(dims), tuple(partials))


@st.composite
def layouts(
    draw: st.DrawFn, *, even: bool = False, max_rank: int = 3, partial: bool = True
) -> Layout:
    """Layouts of small tensors; unless `even`, with any sizes, 0 among them."""
    mesh = draw(meshes())
    spec = draw(specs(mesh, draw(st.integers(0, max_rank)), partial=partial))
    sizes = st.integers(0, 2) if even else st.integers(0, 9)
    shape = tuple(draw(sizes) * (mesh.axis_size(axes) if even else 1) for axes in spec.plain_dims)
    return Layout(shape, mesh, spec)


@st.composite
def layout_pairs(
    draw: st.DrawFn, *, max_rank: int = 3, max_length: int = 3
) -> tuple[Layout, Layout]:
    """Pairs that `reshard` accepts: both even, and the second without new partial results."""
    mesh = draw(meshes(max_length=max_length))
    rank = draw(st.integers(0, max_rank))
    src = draw(specs(mesh, rank))
    to = draw(specs(mesh, rank, partial=False))
    kept = tuple(p for p in src.partial if p.axis not in to.axes and draw(st.booleans()))
    shape = tuple(
        math.lcm(mesh.axis_size(a), mesh.axis_size(b)) * draw(st.sampled_from([1, 2, 0]))
        for a, b in zip(src.plain_dims, to.plain_dims, strict=True)
    )
    return Layout(shape, mesh, src), Layout(shape, mesh, Spec(to.dims, kept))


def every_spec(mesh: Mesh, ndim: int, *, partial: bool = True) -> Iterator[Spec]:
    """All specs of tensors with `ndim` dims on `mesh`, with partial sums or without."""

    def place(axis: int, dims: Dims, partials: tuple[Partial, ...]) -> Iterator[Spec]:
        if axis == mesh.ndim:
            yield Spec(dims, partials)
            return
        yield from place(axis + 1, dims, partials)
        if partial:
            yield from place(axis + 1, dims, (*partials, Partial(axis)))
        for dim, axes in enumerate(dims):
            for at in range(len(axes) + 1):
                longer = (*axes[:at], axis, *axes[at:])
                yield from place(axis + 1, (*dims[:dim], longer, *dims[dim + 1 :]), partials)

    yield from place(0, ((),) * ndim, ())


def check_covers_once(layout: Layout) -> None:
    """Assert that each replica group holds every element of the tensor exactly once.

    A replica group: the devices with equal coordinates along the axes that shard nothing.
    """
    axes = layout.spec.axes
    for group in layout.mesh.groups(axes):
        held = np.zeros(layout.shape, int)
        for device in group:
            slices = layout.slices(device)
            assert held[slices].shape == layout.local_shape(device), f"{layout}: device {device}"
            held[slices] += 1
        assert (held == 1).all(), f"{layout}: group {group} holds elements {held} times"


def check_plan(plan: ReshardPlan, *, seed: int = 0) -> None:
    """Assert that a plan's steps are what they say, and bring each device its part of `dst`.

    The data is judged against slicing the whole tensor directly, without looking at the steps.
    """
    at = plan.src
    for step in plan.steps:
        assert step.src == at, f"{step} does not continue {at}"
        assert (step.dst.shape, step.dst.mesh) == (at.shape, at.mesh), f"{step} changes the tensor"
        assert step.dst.is_even, f"{step} ends in an uneven layout"
        assert step.dst.spec == _after(step), f"{step} is not what its fields say"
        at = step.dst
    assert at == plan.dst, f"the plan ends in {at} instead of {plan.dst}"

    whole = np.random.default_rng(seed).integers(-99, 99, plan.src.shape)
    held = simulate(plan, shard(plan.src, whole, seed=seed))
    np.testing.assert_array_equal(assemble(plan.dst, held), whole, err_msg=str(plan))
    if not plan.dst.spec.is_partial:
        for device in plan.dst.mesh.device_ids:
            expected = whole[plan.dst.slices(device)]
            np.testing.assert_array_equal(held[device], expected, err_msg=str(plan))


def _after(step: Step) -> Spec:
    """The spec that a step must lead to, from its other fields."""
    spec = step.src.spec
    dims = list(spec.dims)
    partial = spec.partial
    loses = step.dim if step.kind in ("all_gather", "all_to_all") else None
    gains = step.to_dim if step.kind == "all_to_all" else None if loses is not None else step.dim
    if loses is not None:
        kept = len(dims[loses]) - len(step.axes)
        assert dims[loses][kept:] == step.axes, f"{step}: {step.axes} are not the minor-most axes"
        dims[loses] = dims[loses][:kept]
    if gains is not None:
        dims[gains] += step.axes
    if step.reduction is not None:
        assert {p.kind for p in partial if p.axis in step.axes} == {step.reduction}
        partial = tuple(p for p in partial if p.axis not in step.axes)
        assert len(partial) == len(spec.partial) - len(step.axes), f"{step} reduces what is whole"
    return Spec(tuple(dims), partial)
