"""Which copies of a value its readers share: the states of a relay.

A relay stands between a value and those who read it in one phase, and its state is a *set* of specs
that the value is made available in. Making the set is paid once, by the cheapest way that lets each
copy start from the value or from an earlier copy; then every reader converts from the cheapest
copy (a slice is free). With u readers the cheapest conversions are a tree with at most `u - 1`
inner nodes, so sets of up to `u - 1` copies are exact, and one copy is enough for two readers.
Copies that can be sliced from another one of the set need not be in it.

Reference:
    AutoDDL 4.2: a sum that stays partial for one reader and is reduced once for all others.
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
"""Of one relay. Sets of some size are considered only if all of them stay within this: a relay with
many states on a large mesh would make the edges to its readers the largest part of the problem. It
is reached by all pairs on 2x2, and by those of a partial sum and what it is reduced to on 2x4 for
tensors of four dims [counted]."""

CopySet = tuple[int, ...]
"""Positions in a list of specs, rising."""


def copy_sets(
    specs: Sequence[Spec], seconds: Array, n_uses: int
) -> tuple[tuple[CopySet, ...], bool]:
    """The sets of copies that a relay may hold, and whether they are all that can be of use.

    Args:
        specs: What the value may be made or asked in.
        seconds: Of each conversion between them, shape (specs, specs).
        n_uses: How many operands (or outputs) read the value.
    """
    singles: list[CopySet] = [(i,) for i in range(len(specs))]
    if n_uses < 3:
        return tuple(singles), True
    apart = (seconds > 0.0) & (seconds.T > 0.0)
    found, largest = list(singles), singles
    # counted first, as on three axes there may be tens of thousands
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
        if len(found) + len(grown) > COPY_SETS:
            return tuple(found), False
        found += grown
        largest = grown
    return tuple(found), True


@lru_cache(maxsize=1 << 12)
def _reduced_pairs(specs: tuple[Spec, ...], room: int) -> tuple[CopySet, ...]:
    """A partial sum and what some of it is reduced to: the pairs that linear readers gain by."""
    pairs: list[CopySet] = []
    for i, j in combinations(range(len(specs)), 2):
        if len(pairs) > room:
            return ()
        if _is_reduced(specs[i], specs[j]) or _is_reduced(specs[j], specs[i]):
            pairs.append((i, j))
    return tuple(pairs) if len(pairs) <= room else ()


def _is_reduced(before: Spec, after: Spec) -> bool:
    """Whether `after` is `before` with some axes' sums made, whole or scattered, and no more."""
    if not set(after.partial) < set(before.partial):
        return False
    kept = all(set(new) >= set(old) for old, new in zip(before.dims, after.dims, strict=True))
    return kept and set(after.axes) <= {*before.axes, *before.partial_axes}


def making(sets: Sequence[CopySet], seconds: Array) -> Array:
    """What it takes to make each set, shape (specs that the value may be in, sets).

    Args:
        sets: With every set all that are left when one copy is taken out.
        seconds: As for `copy_sets`.
    """
    made: dict[CopySet, Array] = {}
    for held in sets:
        if len(held) == 1:
            made[held] = seconds[:, held[0]]
            continue
        last: list[Array] = []
        for copy in held:
            others = tuple(other for other in held if other != copy)
            last.append(made[others] + np.minimum(seconds[:, copy], seconds[others, copy].min()))
        made[held] = np.min(last, axis=0)
    return np.stack([made[held] for held in sets], axis=1)


def serving(sets: Sequence[CopySet], seconds: Array) -> Array:
    """What it takes to get each spec from the cheapest copy, shape (sets, specs)."""
    found = seconds[[held[0] for held in sets]]
    for index, held in enumerate(sets):
        if len(held) > 1:
            found[index] = seconds[held, :].min(axis=0)
    return found


def own_copies(sets: Sequence[CopySet]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Each set once for every copy that may be the value itself, and once for none (-1).

    Returns:
        Positions of the sets, and of the specs; the memory of a copy depends on it.
    """
    variants = [(i, own) for i, held in enumerate(sets) for own in (-1, *held)]
    of_set, own = np.array(variants, dtype=np.intp).T
    return of_set, own
