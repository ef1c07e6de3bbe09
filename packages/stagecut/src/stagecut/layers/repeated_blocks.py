"""Layers that follow the model's structure: cut at the user's marks, or where a block repeats."""

from collections.abc import Hashable, Sequence
from itertools import pairwise

import numpy as np

from stagecut.base.checks import is_count
from stagecut.base.edges import Boundary, Ints, ReceivedBytes
from stagecut.errors import InvalidInputError


def at_marks(marks: Sequence[int], n_operators: int) -> tuple[tuple[int, int], ...]:
    """Cut the operators where the user says.

    Args:
        marks: The first operator of each layer but the first, in increasing order.
        n_operators: Number of operators.

    Returns:
        First and last operator (included) of each layer, as `cluster_operators` returns them.

    Raises:
        InvalidInputError: The marks are not in order, or a layer would be empty.

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
                f"which makes a layer that begins with {before} and ends before {after}"
            )
    return tuple((first, end - 1) for first, end in pairwise(edges))


def repeated_blocks(
    signatures: Sequence[Hashable], values: Sequence[Boundary] = (), n_groups: int = 1
) -> tuple[tuple[int, int], ...]:
    """Make a layer of each copy of a block that repeats, such as the blocks of a transformer.

    Of all blocks that are directly repeated at least once, it takes the one whose copies have the
    most operators together; ties go to the shortest block, then to the first. For each further
    group it does the same with the operators that are left. The operators before, between and after
    the copies become one layer each, so that the layers of the copies stay equal: a search can
    price these once, and put the other layers into a stage with them. If copies could begin at
    several operators (`bcabcabca` has the blocks `bca`, `cab` and `abc`), they begin where the
    fewest bytes cross their ends; ties go to the first.

    Args:
        signatures: What each operator is, in program order; equal for operators that are alike.
        values: The values between operators.
        n_groups: How many different blocks repeat: 1 in most transformers, 4 in a ResNet.

    Returns:
        First and last operator (included) of each layer, as `cluster_operators` returns them.

    Raises:
        InvalidInputError: There are fewer than `n_groups` repeated blocks, `n_groups` is below 1,
            or a value is not produced by an operator and read by later ones.

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
        repeats = [
            (part, part[0] + copies)
            for part in rest
            for copies in [_copies(words[slice(*part)], crossing[part[0] : part[1] + 1])]
            if copies.size
        ]
        if not repeats:
            raise InvalidInputError(
                f"each group needs a block of operators that is directly repeated; got "
                f"n_groups={n_groups}, and {n} operators with {len(ids)} different signatures, "
                f"among which {group} blocks are; take fewer groups, or cluster_operators or "
                "at_marks"
            )
        part, copies = min(repeats, key=lambda each: _rank(each[1]))
        rest.remove(part)
        rest += [(part[0], int(copies[0])), (int(copies[-1]), part[1])]
        cuts.update(copies.tolist())
    return at_marks(sorted(cuts - {0, n}), n)


def _rank(copies: Ints) -> tuple[int, int, int]:
    return int(copies[0] - copies[-1]), int(copies[1] - copies[0]), int(copies[0])


def _copies(words: Ints, crossing: Ints) -> Ints:
    """Where the copies of the best block begin, and where the last one ends; empty if none repeats.

    The best block is the one whose copies have the most operators together. If a block of p
    operators is repeated, its first copy contains an operator whose index is a multiple of p; the
    sequences around this operator and around the one p later agree. So it is enough to extend
    n/1 + n/2 + ... such pairs to both sides. (Main and Lorentz, Journal of Algorithms 5, 1984, do
    it in O(n log n). We take O(n log^2 n) for n operators, as we compare substrings by the ranks of
    those of 1, 2, 4, ... operators.)

    Args:
        words: Numbers that are equal for equal operators, shape (n,).
        crossing: Bytes that cross the cut before each operator, and the cut at the end,
            shape (n + 1,).
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
    """For each power of two, a number for each substring of this length; equal for equal ones.

    The last entry is for the largest power of two for which some substring occurs twice.
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
    """How many operators are equal from `left` and `right` on, or directly before them.

    Args:
        ranks: The result of `_ranks`.
        left: Operators.
        right: As many operators, each after its `left`.
        backward: Count the operators before `left` and `right` instead of those from there on.
    """
    lengths = np.zeros_like(left)
    for exponent in reversed(range(len(ranks))):
        rank, size = ranks[exponent], 1 << exponent
        shift = -lengths - size if backward else lengths
        inside = np.flatnonzero((left + shift >= 0) & (right + shift < len(rank)))
        one, other = left[inside] + shift[inside], right[inside] + shift[inside]
        lengths[inside[rank[one] == rank[other]]] += size
    return lengths
