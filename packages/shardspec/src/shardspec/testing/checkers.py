"""Checkers: assert from scratch what layouts and plans promise."""

import itertools
import math

import numpy as np

from ..layout import Layout
from ..shards import assemble, shard
from ..simulate import simulate
from ..spec import Spec
from ..step import ReshardPlan, Step


def check_covers_once(layout: Layout) -> None:
    """Assert that each replica group holds every element of the tensor exactly once.

    A replica group: the devices with equal coordinates along the axes that shard nothing.
    """
    axes = [axis for dim in range(layout.spec.ndim) for axis in layout.spec.sharding_of(dim)]
    for group in layout.mesh.groups(tuple(axes)):
        held = np.zeros(layout.shape, int)
        for device in group:
            held[np.ix_(*layout.indices(device))] += 1
        assert (held == 1).all(), f"{layout}: group {group} holds elements {held} times"


def check_layout(layout: Layout, itemsize: int = 4) -> None:
    """Assert that all that a layout says about a device's shard is one and the same shard.

    The runs, boxes, indices, slices, offsets, local shape and bytes; nothing is made per element.
    """
    largest = 0
    for device in layout.mesh.device_ids:
        runs, offsets = layout.runs(device), layout.offsets(device)
        name = f"{layout}: device {device}"
        for n, of_dim, offset in zip(layout.shape, runs, offsets, strict=True):
            bounds = [*itertools.chain(*of_dim)]
            assert all(a < b for a, b in itertools.pairwise(bounds)), f"{name} has runs {of_dim}"
            assert not bounds or 0 <= bounds[0] < bounds[-1] <= n, f"{name} has runs {of_dim}"
            assert 0 <= offset <= n, f"{name} starts at {offset} of {n}"
            assert not of_dim or offset == of_dim[0][0], f"{name} starts at {offset}, not {of_dim}"
        sizes = tuple(sum(stop - start for start, stop in of_dim) for of_dim in runs)
        local = layout.local_shape(device)
        padded = [rule == "padded" for rule in layout.rules]
        assert all(
            room >= size if has_padding else room == size
            for room, size, has_padding in zip(local, sizes, padded, strict=True)
        ), f"{name} holds {sizes} in an array of {local}"
        assert layout.local_bytes(itemsize, device) == math.prod(local) * itemsize, name
        largest = max(largest, layout.local_bytes(itemsize, device))
        boxes = layout.boxes(device)
        blocks = itertools.product(*(itertools.starmap(slice, of_dim) for of_dim in runs))
        assert list(boxes) == list(blocks), f"{name} has boxes {boxes} of runs {runs}"
        if layout.is_contiguous:
            slices = layout.slices(device)
            assert tuple(s.start for s in slices) == offsets, f"{name}: {slices}"
            assert tuple(s.stop - s.start for s in slices) == sizes, f"{name}: {slices}"
    assert layout.local_bytes(itemsize) == largest, f"{layout}: the largest shard is {largest}"


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
