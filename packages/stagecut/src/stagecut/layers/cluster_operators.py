"""Join the operators of a model into a few layers (Alpa Eq. 6).

Given are K operators in the order of the program, their FLOPs, and the values between them. Wanted
are L runs of operators, the layers, that

    minimise    the largest number of bytes one layer receives from those before it
    then        the variance of the layers' FLOPs
    where       every layer has at most (1 + delta) times the average FLOPs

Alpa's dynamic program does this in O(K^2 L) steps. We need far fewer, in two steps.

*Bytes.* Bytes and FLOPs of a run grow with its end. So under a limit on each, the runs that begin
at a cut end at the next cut, the one after, ... up to a furthest. Keep the cuts from which the last
one can be reached, and no others. The most layers come from cutting at all of them: each leads to
the next. The fewest come from going as far as any cut passed so far allows. Every number between is
possible too: follow the way of few runs up to some cut, and there enter the way of many, at any of
its cuts within the run that would come next. Entered later and later, the number of runs falls by
one at a time, from the most to the fewest. So whether both limits can be met takes O(K) steps once
the furthest cuts are known (`ReceivedBytes`), and bisection finds the least bytes.
-> _fewest_bytes

*Variance.* The number of layers and the total are fixed, so least variance means least sum of
squares; what is left of the cuts is searched for it.                            -> uniform.py
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
"""Relative; FLOPs are sums of floats, and a layer of exactly the average must pass at delta = 0."""


def cluster_operators(
    flops: Sequence[float],
    values: Sequence[Boundary],
    n_layers: int,
    delta: float = 0.5,
) -> tuple[tuple[int, int], ...]:
    """Cut the operators into `n_layers` runs that exchange little and work about the same.

    Args:
        flops: Of each operator, in program order.
        values: What they exchange. Inputs of the whole model have no producer and are left out.
        n_layers: How many layers; at most as many as operators.
        delta: How far a layer's FLOPs may exceed the average, as a fraction of it. Alpa gives no
            value; 0.5 is ours, and should be raised if one operator outweighs the others. A model
            without any FLOPs has no average; it is cut as if every operator did the same.

    Returns:
        First and last operator (included) of each layer. Ties go to the longest last layers.

    Raises:
        InvalidInputError: Sizes or indices are out of range.
        InfeasibleClusteringError: Some layer must exceed the limit; tells the smallest `delta`.

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
    # In units of the average, so that squares stay near 1; by way of units that no sum exceeds.
    work = np.ldexp(work, -int(np.frexp(work.max())[1]))
    done = np.concatenate(([0.0], np.cumsum(work)))
    done *= n_layers / done[-1]

    limit = (1 + delta) * (1 + _ROUNDING)
    found = _fewest_bytes(received, _furthest(done, limit), n_layers)
    if found is None:
        smallest = _least_work(done, n_layers) - 1
        raise InfeasibleClusteringError(
            f"a layer has at most 1 + delta times the average FLOPs; got delta={delta}, but "
            f"{len(flops)} operators in n_layers={n_layers} need delta={smallest}; "
            "raise delta or take fewer layers",
            smallest_delta=smallest,
        )
    cuts, reach = found
    edges = cuts[most_uniform(done[cuts], reach, n_layers)].tolist()
    return tuple((first, end - 1) for first, end in pairwise(edges))


def _furthest(done: Floats, limit: float) -> Ints:
    """Of each cut, the furthest one after no more than `limit` of work; shape (K + 1,)."""
    return np.searchsorted(done, done + limit, side="right") - 1


def _fewest_bytes(
    received: ReceivedBytes, furthest: Ints, n_layers: int
) -> tuple[Ints, Ints] | None:
    """Of the ways with least bytes received, the cuts and how far they reach; None if no way.

    Args:
        received: Of K operators.
        furthest: Of each cut from 0 to K, the furthest at which a run from there may end.
        n_layers: Runs in a way.

    Returns:
        As `_ways`.
    """
    found = _ways(np.arange(len(furthest)), furthest, n_layers)
    low, high = 0, int(received.crossing.max())
    while found is not None and low < high:
        limit = (low + high) // 2
        cuts = found[0]
        ends = furthest[cuts]
        tight = received.crossing[cuts] > limit
        ends[tight] = np.minimum(ends[tight], received.first_too_much(cuts[tight], limit))
        if (fewer := _ways(cuts, ends, n_layers)) is None:
            low = limit + 1
        else:
            found, high = fewer, min(limit, int(received.crossing[fewer[0]].max()))
    return found


def _ways(cuts: Ints, furthest: Ints, n_layers: int) -> tuple[Ints, Ints] | None:
    """The cuts that lead from the first to the last; None if there is no way of `n_layers` runs.

    Args:
        cuts: In increasing order.
        furthest: The furthest at which a run from each may end; the nearer ones all may.
        n_layers: Runs in a way.

    Returns:
        The cuts that are left; and of each the index, among these, of the furthest that it reaches.
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
    """The least limit on the work of a layer that `n_layers` runs can meet, to the last bit."""
    low, high = 0.0, float(done[-1])
    while low < (limit := (low + high) / 2) < high:
        # Fewer runs are as good: splitting one makes none heavier.
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
            "there are at least one layer, as many operators, and delta is not negative; "
            f"got n_layers={n_layers}, {n} operators, delta={delta}"
        )
    for k, each in enumerate(flops):
        if not (is_amount(each) and each <= sys.float_info.max):
            raise InvalidInputError(f"FLOPs are finite and not negative; got flops[{k}]={each!r}")
