"""Joins the operators of a model into a few layers (Alpa Eq. 6).

The input is K operators in program order, their FLOPs, and the values between them. The result is a
division into L runs of operators, the layers, that

    minimises   the largest number of bytes that one layer receives from those before it
    then        the variance of the layers' FLOPs
    where       every layer has at most (1 + delta) times the average FLOPs

Alpa's dynamic program takes O(K^2 L) operations. We need far fewer, in two parts.

*Bytes.* The bytes and the FLOPs of a run grow with its end. So under a limit on both, a run that
begins at a given cut may end at the next cut, at the one after it, and so on, up to a furthest cut.
We keep only those cuts from which the last cut can be reached. Cutting at all of them gives the
largest number of layers. Going, from each cut, as far as any cut passed so far allows gives the
smallest number. Every number in between is possible, too: follow the path with few runs up to some
cut, and from there enter the path with many runs, at any of its cuts within the run that would come
next. The later we enter it, the fewer runs there are, one at a time, from the largest number to the
smallest. So once the furthest cuts are known (`ReceivedBytes`), it takes O(K) operations to decide
whether a pair of limits can be met, and bisection finds the fewest bytes.      -> _fewest_bytes

*Variance.* The number of layers and the total FLOPs are fixed, so the variance is smallest where
the sum of squares is. We search for it among the cuts that are left.           -> even_cuts.py
"""

import math
import sys
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from stagecut.base.checks import is_amount, is_count
from stagecut.base.edges import Boundary, Ints, ReceivedBytes
from stagecut.errors import InfeasibleClusteringError, InvalidInputError
from stagecut.layers.even_cuts import Floats, most_uniform

_ROUNDING = 1e-9
"""Relative tolerance: FLOPs are sums of floats, and a layer of exactly the average must be allowed
at delta = 0."""


def cluster_operators(
    flops: Sequence[float],
    values: Sequence[Boundary],
    n_layers: int,
    delta: float = 0.5,
) -> tuple[tuple[int, int], ...]:
    """Cut the operators into `n_layers` runs that exchange few bytes and have similar FLOPs.

    Args:
        flops: FLOPs of each operator, in program order.
        values: The values between operators. Inputs of the model have no producer and are left out.
        n_layers: Number of layers; at most the number of operators.
        delta: How far a layer's FLOPs may exceed the average, as a fraction of it. Alpa gives no
            value; 0.5 is our choice, and should be raised if one operator outweighs the others. A
            model without any FLOPs has no average; it is cut as if all operators had equal FLOPs.

    Returns:
        First and last operator (included) of each layer. Ties go to the longest last layers.

    Raises:
        InvalidInputError: Sizes or indices are out of range.
        InfeasibleClusteringError: Some layer must exceed the limit; its `smallest_delta` is the
            smallest `delta` that is possible.

    Examples:
        >>> chain = [Boundary(k, n_bytes, (k + 1,)) for k, n_bytes in enumerate((8, 2, 8))]
        >>> cluster_operators((1.0, 1.0, 1.0, 1.0), chain, n_layers=2)
        ((0, 1), (2, 3))
    """
    _check(flops, n_layers, delta)
    received = ReceivedBytes(values, len(flops))
    work = np.asarray(flops, dtype=np.float64)
    if not work.any():
        work, delta = np.ones_like(work), np.inf
    # Scaled to an average of 1, so that squares stay near 1. The scaling by a power of two before
    # it is exact, and keeps the sum from overflowing.
    work = np.ldexp(work, -int(np.frexp(work.max())[1]))
    done = np.concatenate(([0.0], np.cumsum(work)))
    done *= n_layers / done[-1]

    limit = (1 + delta) * (1 + _ROUNDING)
    cuts_and_reach = _fewest_bytes(received, _furthest(done, limit), n_layers)
    if cuts_and_reach is None:
        smallest = _least_work(done, n_layers) - 1
        raise InfeasibleClusteringError(
            f"a layer has at most 1 + delta times the average FLOPs; got delta={delta}, but "
            f"{len(flops)} operators in n_layers={n_layers} need delta={smallest}; "
            "raise delta or take fewer layers",
            smallest_delta=smallest,
        )
    cuts, reach = cuts_and_reach
    edges = cuts[most_uniform(done[cuts], reach, n_layers)].tolist()
    return tuple((first, end - 1) for first, end in pairwise(edges))


def _furthest(done: Floats, limit: float) -> Ints:
    """For each cut, the furthest one with at most `limit` of work in between; shape (K + 1,)."""
    return np.searchsorted(done, done + limit, side="right") - 1


def _fewest_bytes(
    received: ReceivedBytes, furthest: Ints, n_layers: int
) -> tuple[Ints, Ints] | None:
    """The cuts of all divisions in which the layer that receives most receives the fewest bytes.

    Args:
        received: The bytes that runs of the K operators receive.
        furthest: For each cut from 0 to K, the furthest one at which a run from there may end.
        n_layers: Number of runs.

    Returns:
        As `_ways`; None if there is no division into `n_layers` runs.
    """
    ways = _ways(np.arange(len(furthest)), furthest, n_layers)
    low, high = 0, int(received.crossing.max())
    while ways is not None and low < high:
        limit = (low + high) // 2
        cuts = ways[0]
        ends = furthest[cuts]
        tight = received.crossing[cuts] > limit
        ends[tight] = np.minimum(ends[tight], received.first_too_much(cuts[tight], limit))
        if (fewer := _ways(cuts, ends, n_layers)) is None:
            low = limit + 1
        else:
            ways, high = fewer, min(limit, int(received.crossing[fewer[0]].max()))
    return ways


def _ways(cuts: Ints, furthest: Ints, n_layers: int) -> tuple[Ints, Ints] | None:
    """The cuts from which the last one can be reached; None if no path has `n_layers` runs.

    Args:
        cuts: Ascending.
        furthest: For each cut, the furthest one at which a run from there may end; it may also end
            at every cut in between.
        n_layers: Number of runs of a path from the first cut to the last.

    Returns:
        The cuts that are kept; and for each the index, among these, of the furthest one that a run
        from it reaches.
    """
    reach = (np.searchsorted(cuts, furthest, side="right") - 1).tolist()
    last = len(cuts) - 1
    kept = [last]
    for k in range(last - 1, -1, -1):
        if reach[k] >= kept[-1]:
            kept.append(k)
    if kept[-1] != 0 or len(kept) <= n_layers:
        return None
    left = np.array(kept[::-1])
    cuts, furthest = cuts[left], furthest[left]
    indices = np.searchsorted(cuts, furthest, side="right") - 1
    best = np.maximum.accumulate(indices).tolist()
    at = 0
    for _ in range(n_layers):
        at = best[at]
    return (cuts, indices) if at == len(cuts) - 1 else None


def _least_work(done: Floats, n_layers: int) -> float:
    """The smallest possible work of the heaviest of `n_layers` runs, exact to the last bit."""
    low, high = 0.0, float(done[-1])
    while low < (limit := (low + high) / 2) < high:
        # Fewer runs also meet the limit: splitting one of them makes none heavier.
        edges = [0]
        furthest = _furthest(done, limit)
        for _ in range(n_layers):
            edges.append(int(furthest[edges[-1]]))
        if edges[-1] < len(done) - 1:
            low = limit
        else:
            high = min(limit, float(np.diff(done[edges]).max()))
    return high


def _check(flops: Sequence[float], n_layers: int, delta: float) -> None:
    n = len(flops)
    if not (is_count(n_layers) and n_layers <= n and (is_amount(delta) or delta == math.inf)):
        raise InvalidInputError(
            "there is at least one layer, and an operator for each layer, and delta is not "
            "negative; "
            f"got n_layers={n_layers}, {n} operators, delta={delta}"
        )
    for k, each in enumerate(flops):
        if not (is_amount(each) and each <= sys.float_info.max):
            raise InvalidInputError(f"FLOPs are finite and not negative; got flops[{k}]={each!r}")
