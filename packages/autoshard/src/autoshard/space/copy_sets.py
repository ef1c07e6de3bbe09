"""The sets of copies of a value that its readers can share: the strategies of a relay.

A relay is a node between a value and its readers in one phase. Its strategy is a *set* of specs in
which the value is made available. The set is paid for once, at the price of the cheapest sequence
in which each copy starts from the value or from an earlier copy. Then every reader converts from
the copy that is cheapest for it (a slice is free). With u readers, the cheapest conversions form a
tree with at most `u - 1` inner nodes, so sets of up to `u - 1` copies are exact, and one copy is
enough for two readers. Copies that can be sliced from another copy of the set need not be in it.

Reference:
    AutoDDL 4.2, where a sum stays partial for one reader and is reduced once for all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from shardspec import Spec

from autoshard.base.arrays import Array

COPY_SETS = 128
"""The most sets of one relay. The sets of a size are considered only if all of them keep within it:
otherwise the edges from a relay with many strategies to its readers would be the largest part of
the problem on a large mesh. All pairs reach it on 2x2; on 2x4, the pairs of a partial sum and what
it is reduced to reach it for tensors of four dims [counted]."""

CopySet = tuple[int, ...]
"""Positions in a list of specs, in increasing order."""


def copy_sets(
    specs: Sequence[Spec], seconds: Array, n_uses: int
) -> tuple[tuple[CopySet, ...], bool]:
    """The sets of copies that a relay may hold, and whether they are all that can be useful.

    Args:
        specs: The specs in which the value may be computed or needed.
        seconds: The time of each conversion between them, shape (specs, specs).
        n_uses: How many operands (or outputs) read the value.
    """
    singles: list[CopySet] = [(i,) for i in range(len(specs))]
    if n_uses < 3:
        return tuple(singles), True
    apart = (seconds > 0.0) & (seconds.T > 0.0)
    sets, largest = list(singles), singles
    # counted before they are listed: on three axes there may be tens of thousands
    n_pairs = int(np.triu(apart, 1).sum())
    if n_pairs and len(singles) + n_pairs > COPY_SETS:
        return (*singles, *_reduced_pairs(tuple(specs), COPY_SETS - len(singles))), False
    for _ in range(2, n_uses):
        grown = [
            (*held, new)
            for held in largest
            for new in range(held[-1] + 1, len(specs))
            if apart[held, new].all()
        ]
        if not grown:
            break
        if len(sets) + len(grown) > COPY_SETS:
            return tuple(sets), False
        sets += grown
        largest = grown
    return tuple(sets), True


@lru_cache(maxsize=1 << 12)
def _reduced_pairs(specs: tuple[Spec, ...], room: int) -> tuple[CopySet, ...]:
    """Pairs of a partial sum and a spec that it is reduced to, by which linear readers gain.

    None at all if there are more than `room`.
    """
    pairs: list[CopySet] = []
    for i, j in combinations(range(len(specs)), 2):
        if len(pairs) > room:
            return ()
        if _is_reduced(specs[i], specs[j]) or _is_reduced(specs[j], specs[i]):
            pairs.append((i, j))
    return tuple(pairs) if len(pairs) <= room else ()


def _is_reduced(before: Spec, after: Spec) -> bool:
    """Whether `after` is `before` with sums over some axes reduced or scattered, and no more."""
    if not set(after.partial) < set(before.partial):
        return False
    kept = all(set(new) >= set(old) for old, new in zip(before.dims, after.dims, strict=True))
    return kept and set(after.axes) <= {*before.axes, *before.partial_axes}


def making(sets: Sequence[CopySet], seconds: Array) -> Array:
    """Seconds to make each set of copies, shape (specs that the value may be in, sets).

    Args:
        sets: Each after all sets that remain when one of its copies is removed.
        seconds: As for `copy_sets`.
    """
    cost_of: dict[CopySet, Array] = {}
    for held in sets:
        if len(held) == 1:
            cost_of[held] = seconds[:, held[0]]
            continue
        last: list[Array] = []
        for copy in held:
            others = tuple(other for other in held if other != copy)
            step = np.minimum(seconds[:, copy], seconds[others, copy].min())
            last.append(cost_of[others] + step)
        cost_of[held] = np.min(last, axis=0)
    return np.stack([cost_of[held] for held in sets], axis=1)


def serving(sets: Sequence[CopySet], seconds: Array) -> Array:
    """Seconds to convert to each spec from the cheapest copy of a set, shape (sets, specs)."""
    cost = seconds[[held[0] for held in sets]]
    for index, held in enumerate(sets):
        if len(held) > 1:
            cost[index] = seconds[held, :].min(axis=0)
    return cost


def own_copies(sets: Sequence[CopySet]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Variants of each set: one for every copy that may be the value itself, and one for none.

    A copy that is the value itself takes no memory.

    Returns:
        For each variant, the position of its set, and that of the spec which is the value itself or
        -1.
    """
    variants = [(i, itself) for i, held in enumerate(sets) for itself in (-1, *held)]
    of_set, itself = np.array(variants, dtype=np.intp).T
    return of_set, itself
