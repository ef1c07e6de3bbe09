"""The dynamic program of Alpa, Eq. 3: the best way to cut a suffix of the layers, for all of them.

    F(s, k, d) = min over shapes h, last layers i:  value[s, h, k, i] + F(s - 1, i + 1, d - size[h])

is the value of the layers k to L - 1 cut into s stages on d devices; F(0, L, 0) = 0. With
`np.maximum` in place of the sum it is the smallest largest value: how much memory is enough.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Cut = tuple[int, int, int]
"""First layer, last layer, index of the shape."""


def tabulate(
    values: Callable[[int], Floats],
    sizes: Sequence[int],
    n_devices: int,
    max_stages: int,
    combine: np.ufunc,
) -> list[Floats]:
    """Fill F for 0 to `max_stages` stages.

    Args:
        values: Of s, the number of stages from this one to the last, the value of each possible
            stage: shape (n_shapes, n_layers, n_layers) over shape, first and last layer; inf if it
            is not possible.
        sizes: Devices of each shape.
        n_devices: Of the cluster.
        max_stages: The largest s wanted, at most `n_layers`.
        combine: `np.add` or `np.maximum`.

    Returns:
        For each s, F(s, k, d): shape (n_layers + 1, n_devices + 1).
    """
    n_layers = values(1).shape[1]
    table = [np.full((n_layers + 1, n_devices + 1), np.inf)]
    table[0][n_layers, 0] = 0.0
    for s in range(1, max_stages + 1):
        value, previous = values(s), table[s - 1]
        current = np.full_like(previous, np.inf)
        # s stages leave at most n_layers - s layers to the left, and the s - 1 after this one as
        # many layers to the right.
        first_end, last_end = n_layers - s + 1, n_layers - s + 2
        for h, size in enumerate(sizes):
            rest = previous[1:last_end, : n_devices + 1 - size]
            best = combine(value[h, :first_end, : last_end - 1, None], rest).min(axis=1)
            np.minimum(current[:first_end, size:], best, out=current[:first_end, size:])
        table.append(current)
    return table


def trace(
    table: Sequence[Floats],
    values: Callable[[int], Floats],
    sizes: Sequence[int],
    n_stages: int,
    combine: np.ufunc,
) -> tuple[Cut, ...]:
    """One slicing whose value is F(n_stages, 0, all devices), which must be finite.

    Ties go to the smaller shape, then to the shorter stage.
    """
    cuts = []
    n_layers, devices = (size - 1 for size in table[0].shape)
    first = 0
    for s in range(n_stages, 0, -1):
        value, previous = values(s), table[s - 1]
        # The table was made of these very sums, so the minimum is found again exactly.
        h, last = next(
            (h, int(hits[0]))
            for h, size in enumerate(sizes)
            if size <= devices
            for hits in np.nonzero(
                combine(value[h, first], previous[1:, devices - size]) == table[s][first, devices]
            )
            if hits.size
        )
        cuts.append((first, last, h))
        first, devices = last + 1, devices - sizes[h]
    assert (first, devices) == (n_layers, 0)
    return tuple(cuts)
