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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagecut.errors import InfeasibleClusteringError, InvalidInputError

Floats = NDArray[np.float64]

_ROUNDING = 1e-9
"""Relative; FLOPs are sums of floats, and a layer of exactly the average must pass at delta = 0."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A value that one operator makes and others read, perhaps in later layers."""

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

    Takes O(K^2) time, as layers end within (1 + delta) K / L operators, and O(K L) memory.

    Args:
        flops: Of each operator, in program order.
        values: What they exchange. Inputs of the whole model have no producer and are left out.
        n_layers: How many layers; at most as many as operators.
        delta: How far a layer's FLOPs may exceed the average, as a fraction of it. Alpa gives no
            value; 0.5 is ours, and should be raised if one operator outweighs the others.

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
    # In units of the average, so that squares stay near 1. A model without any work has no average.
    done = np.concatenate(([0.0], np.cumsum(np.asarray(flops, dtype=np.float64))))
    done *= n_layers / done[-1] if done[-1] > 0 else 1.0
    limit = (1 + delta) * (1 + _ROUNDING)

    n = len(flops)
    least, _ = _partition(
        n,
        n_layers,
        ((start, received) for start, received, _ in _runs(values, done, limit)),
        np.maximum,
    )
    if least == np.inf:
        heaviest, _ = _partition(
            n,
            n_layers,
            ((start, work) for start, _, work in _runs(values, done, np.inf)),
            np.maximum,
        )
        raise InfeasibleClusteringError(
            f"a layer has at most 1 + delta times the average FLOPs; got delta={delta}, but "
            f"{n} operators in n_layers={n_layers} need delta={heaviest - 1}; "
            "raise delta or take fewer layers",
            smallest_delta=heaviest - 1,
        )
    _, layers = _partition(
        n,
        n_layers,
        (
            (start, np.where(received <= least, work**2, np.inf))
            for start, received, work in _runs(values, done, limit)
        ),
        np.add,
    )
    return layers


def _runs(
    values: Sequence[Boundary], done: Floats, limit: float
) -> Iterator[tuple[int, Floats, Floats]]:
    """Of each last operator, in order: the runs that end there and have at most `limit` work.

    Yields:
        The first operator of the longest; then, from that run to the shortest, the bytes received,
        C(i, k) of Eq. 6, and the work. The arrays are empty if the last operator alone is too much.
    """
    n = len(done) - 1
    # A run receives a value at its first consumer in the run: from each consumer the value arrives
    # for the runs that begin after the consumer before it, or after the producer.
    arrivals: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    for value in values:
        before = value.producer
        for consumer in sorted(set(value.consumers)):
            arrivals[consumer].append((before + 1, value.n_bytes))
            before = consumer
    received = np.zeros(n)
    for last in range(n):
        for first, n_bytes in arrivals[last]:
            received[first : last + 1] += n_bytes
        start = min(int(np.searchsorted(done, done[last + 1] - limit)), last + 1)
        yield start, received[start : last + 1], done[last + 1] - done[start : last + 1]


def _partition(
    n: int, n_layers: int, columns: Iterable[tuple[int, Floats]], combine: np.ufunc
) -> tuple[float, tuple[tuple[int, int], ...]]:
    """The dynamic program of Eq. 6: G(k, r) over the first k of n operators in r layers.

    Args:
        n: Operators.
        n_layers: Layers.
        columns: Of each last operator, in order: the first operator of the longest run that ends
            there, and the value of that run and of each shorter one.
        combine: How the values of runs make that of all: `np.maximum` or `np.add`.

    Returns:
        The smallest value, and the runs that have it; inf and no runs if there are none. Ties go to
        the longest last run.
    """
    table = np.full((n + 1, n_layers + 1), np.inf)
    table[0, 0] = 0.0
    firsts = np.zeros((n + 1, n_layers + 1), dtype=np.int64)
    for last, (start, column) in enumerate(columns):
        if column.size:
            candidates = combine(table[start : last + 1, :-1], column[:, None])
            at = candidates.argmin(axis=0)
            table[last + 1, 1:] = candidates[at, np.arange(n_layers)]
            firsts[last + 1, 1:] = start + at
    least = float(table[n, n_layers])
    runs: list[tuple[int, int]] = []
    end = n
    for r in range(n_layers, 0, -1) if least < np.inf else ():
        runs.append((int(firsts[end, r]), end - 1))
        end = runs[-1][0]
    return least, tuple(reversed(runs))


def _check(flops: Sequence[float], values: Sequence[Boundary], n_layers: int, delta: float) -> None:
    n = len(flops)
    if not (1 <= n_layers <= n and delta >= 0):
        raise InvalidInputError(
            "there are at least one layer, as many operators, and delta is not negative; "
            f"got n_layers={n_layers}, {n} operators, delta={delta}"
        )
    for k, each in enumerate(flops):
        if not 0 <= each < np.inf:
            raise InvalidInputError(f"FLOPs are finite and not negative; got flops[{k}]={each}")
    for k, value in enumerate(values):
        read_later = 0 <= value.producer < min(value.consumers, default=n)
        if value.n_bytes < 0 or not read_later or max(value.consumers, default=0) >= n:
            raise InvalidInputError(
                "a value's size is not negative, and operators read it after one made it; "
                f"got values[{k}]={value} and {n} operators"
            )
