"""Layers where the model says so: at the user's marks, or where a block repeats."""

from collections.abc import Hashable, Sequence
from itertools import pairwise

import numpy as np

from stagecut.base.checks import is_count
from stagecut.base.edges import Boundary, Ints, ReceivedBytes
from stagecut.errors import InvalidInputError


def at_marks(marks: Sequence[int], n_operators: int) -> tuple[tuple[int, int], ...]:
    """Cut the operators where the user wants it.

    Args:
        marks: First operators of all layers but the first one, in increasing order.
        n_operators: How many operators there are.

    Returns:
        First and last operator (included) of each layer, as of `cluster_operators`.

    Raises:
        InvalidInputError: Marks are not in order, or a layer would be empty.

    Examples:
        >>> at_marks((2, 3), 5)
        ((0, 1), (2, 2), (3, 4))
    """
    edges = (0, *marks, n_operators)
    for before, after in pairwise(edges):
        if not (is_count(after) and before < after):
            raise InvalidInputError(
                "marks increase, from 1 to the last operator, so that every layer has an operator; "
                f"got marks={tuple(marks)} and n_operators={n_operators}, "
                f"so a layer from {before} to before {after}"
            )
    return tuple((first, end - 1) for first, end in pairwise(edges))


def repeated_blocks(
    signatures: Sequence[Hashable], values: Sequence[Boundary] = (), n_groups: int = 1
) -> tuple[tuple[int, int], ...]:
    """Make a layer of each block that repeats, such as those of a transformer.

    Of all blocks that follow themselves at least once, takes that whose copies have most operators
    together, then the shortest, then the first; the same again in what is left, for each further
    group. What is before, between and after the copies is a layer each, so that the others stay
    equal: a search can price them once, and join these to them. If copies could begin at several
    operators (`bcabcabca`: blocks `bca`, `cab` or `abc`), they begin where the fewest bytes cross
    their ends, or else at the first.

    Args:
        signatures: What an operator is, in program order: operators that are alike compare equal.
        values: What the operators exchange.
        n_groups: How many different blocks repeat: 1 in most transformers, 4 in a ResNet.

    Returns:
        First and last operator (included) of each layer, as of `cluster_operators`.

    Raises:
        InvalidInputError: Fewer blocks follow themselves, there is no group, or a value is no such
            value.

    Examples:
        >>> repeated_blocks(["embed", "mix", "scale", "mix", "scale", "mix", "scale", "loss"])
        ((0, 0), (1, 2), (3, 4), (5, 6), (7, 7))
    """
    if not is_count(n_groups):
        raise InvalidInputError(f"there is at least one group of blocks; got n_groups={n_groups!r}")
    n = len(signatures)
    crossing = ReceivedBytes(values, n).crossing
    ids: dict[Hashable, int] = {}
    words = np.array([ids.setdefault(each, len(ids)) for each in signatures], dtype=np.int64)
    rest, cuts = [(0, n)], {0, n}
    for group in range(n_groups):
        found = [
            (part, part[0] + copies)
            for part in rest
            for copies in [_copies(words[slice(*part)], crossing[part[0] : part[1] + 1])]
            if copies.size
        ]
        if not found:
            raise InvalidInputError(
                f"as many blocks of operators must follow themselves as there are groups; "
                f"got n_groups={n_groups}, and {n} operators with {len(ids)} signatures, of which "
                f"{group} blocks do; take fewer groups, or cluster_operators or at_marks"
            )
        part, copies = min(found, key=lambda each: _rank(each[1]))
        rest.remove(part)
        rest += [(part[0], int(copies[0])), (int(copies[-1]), part[1])]
        cuts.update(copies.tolist())
    return at_marks(sorted(cuts - {0, n}), n)


def _rank(copies: Ints) -> tuple[int, int, int]:
    return int(copies[0] - copies[-1]), int(copies[1] - copies[0]), int(copies[0])


def _copies(words: Ints, crossing: Ints) -> Ints:
    """Where the copies of the block with most operators in all begin, and the last one ends.

    A block of p operators that follows itself has a multiple of p in its first copy, and that and
    the one p later are followed and preceded by the same. n/1 + n/2 + ... such pairs are looked at
    (Main and Lorentz, Journal of Algorithms 5, 1984, do it in O(n log n); here O(n log^2 n) for n
    operators, as substrings are compared by the ranks of those of 1, 2, 4, ... operators).

    Args:
        words: Numbers that are equal for equal operators, shape (n,).
        crossing: Bytes that cross the cut before each operator and that at the end, shape (n + 1,).

    Returns:
        Nothing if no block follows itself.
    """
    n = len(words)
    lengths = np.arange(1, n // 2 + 1)
    periods = np.repeat(lengths, (n - 1) // lengths)
    left = np.concatenate([np.arange(0), *(np.arange(0, n - each, each) for each in lengths)])
    alike = words[left] == words[left + periods]
    left, periods = left[alike], periods[alike]

    ranks = _ranks(words)
    starts = left - _agreeing(ranks, left, left + periods, backward=True)
    ends = left + periods + _agreeing(ranks, left, left + periods, backward=False)
    counts = (ends - starts) // periods
    counts[counts < 2] = 0
    if not counts.any():
        return np.arange(0)
    best = np.lexsort((starts, periods, -counts * periods))[0]
    period, count = int(periods[best]), int(counts[best])
    spare = int(ends[best] - starts[best]) - count * period
    cuts = starts[best] + np.arange(spare + 1)[:, None] + period * np.arange(count + 1)
    chosen: Ints = cuts[crossing[cuts].sum(axis=1).argmin()]
    return chosen


def _ranks(words: Ints) -> list[Ints]:
    """Of each power of two, numbers for the substrings of that length: equal for equal ones.

    Ends with the longest power of two of which some substring occurs twice.
    """
    ranks = [np.unique(words, return_inverse=True)[1]]
    while (size := 1 << (len(ranks) - 1)) < len(ranks[-1]):
        pairs = ranks[-1][:-size] * (len(words) + 1) + ranks[-1][size:]
        different, numbers = np.unique(pairs, return_inverse=True)
        if len(different) == len(pairs):
            break
        ranks.append(numbers)
    return ranks


def _agreeing(ranks: list[Ints], left: Ints, right: Ints, *, backward: bool) -> Ints:
    """How many operators are alike from `left` and `right` on, or just before them.

    Args:
        ranks: As of `_ranks`.
        left: Operators.
        right: As many operators, each after its `left`.
        backward: Count those before.
    """
    lengths = np.zeros_like(left)
    for exponent in reversed(range(len(ranks))):
        rank, size = ranks[exponent], 1 << exponent
        shift = -lengths - size if backward else lengths
        inside = np.flatnonzero((left + shift >= 0) & (right + shift < len(rank)))
        one, other = left[inside] + shift[inside], right[inside] + shift[inside]
        lengths[inside[rank[one] == rank[other]]] += size
    return lengths
