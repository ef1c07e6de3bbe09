"""Join the operators of a model into a few layers (Alpa Eq. 6).

Given are K operators in the order of the program, their FLOPs, and the values between them. Wanted
are L runs of operators, the layers, that

    minimise    the largest number of bytes one layer receives from those before it
    then        the variance of the layers' FLOPs
    where       every layer has at most (1 + delta) times the average FLOPs

The number of layers and the total are fixed, so least variance means least sum of squares. The two
objectives are two passes of one dynamic program, not one with pairs as values: a pair loses the
uniform prefix that receives more bytes, although a later layer may receive still more anyway.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagecut.errors import InfeasibleClusteringError, InvalidInputError

Floats = NDArray[np.float64]

_ROUNDING = 1e-9
"""Relative; FLOPs are sums of floats, and a layer of exactly the average must pass at delta = 0."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A value that one operator makes and others read; if they are in later layers, it is received."""

    producer: int
    """Index of the operator."""
    n_bytes: int
    consumers: tuple[int, ...]
    """Indices of operators after the producer. A layer with several of them receives it once."""


def cluster_operators(
    flops: Sequence[float],
    values: Sequence[Boundary],
    n_layers: int,
    delta: float = 0.5,
) -> tuple[tuple[int, int], ...]:
    """Cut the operators into `n_layers` runs that exchange little and work about the same.

    Takes O(K^2) time and O(K L) memory.

    Args:
        flops: Of each operator, in program order.
        values: What they exchange. Inputs of the whole model have no producer and are left out.
        n_layers: How many layers; at most as many as operators.
        delta: How far a layer's FLOPs may exceed the average, as a fraction of it. Alpa's
            implementation uses 0.5.

    Returns:
        First and last operator (included) of each layer.

    Raises:
        InvalidInputError: Sizes or indices are out of range.
        InfeasibleClusteringError: Some layer must exceed the limit; tells the smallest `delta`.

    Examples:
        >>> chain = [Boundary(k, n_bytes, (k + 1,)) for k, n_bytes in enumerate((8, 2, 8))]
        >>> cluster_operators((1.0, 1.0, 1.0, 1.0), chain, n_layers=2)
        ((0, 1), (2, 3))
    """
    _check(flops, values, n_layers, delta)
    n = len(flops)
    done = np.concatenate(([0.0], np.cumsum(np.asarray(flops, dtype=np.float64))))

    def work(last: int) -> Floats:
        """FLOPs of the layers that end at operator `last`, for each first operator."""
        return done[last + 1] - done[: last + 1]

    def squares(last: int) -> Floats:
        return work(last) ** 2

    average = done[-1] / n_layers
    heaviest, _ = _partition(n, n_layers, work, np.maximum, lambda last: ...)
    ...
