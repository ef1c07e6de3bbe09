"""Checkers of layouts: they recompute from scratch what a layout promises."""

import itertools
import math

import numpy as np

from shardspec.layout.layout import Layout


def check_covers_once(layout: Layout) -> None:
    """Asserts that the devices that differ only along sharding axes hold every element once."""
    axes = [axis for dim in range(layout.spec.ndim) for axis in layout.spec.sharding_of(dim)]
    for group in layout.mesh.groups(tuple(axes)):
        held = np.zeros(layout.shape, int)
        for device in group:
            held[np.ix_(*layout.indices(device))] += 1
        assert (held == 1).all(), f"{layout}: group {group} holds elements {held} times"


def check_layout(layout: Layout, itemsize: int = 4) -> None:
    """Asserts that all methods of a layout agree on the shard of each device.

    These are runs, boxes, slices, offsets, local shape and bytes. Nothing is computed per element.
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
