"""How a dim is cut where its shards cannot be equal: the rules in use, as intervals.

A dim is cut by *levels*, major to minor, one for each axis that shards it and each split. A device
takes one part of an axis level (its coordinate) and all parts of a split level (None). So a shard
is a list of *runs*, intervals `(start, stop)` in rising order, one of them if there is no split.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, cast, get_args

from shardspec.base.integers import naturals, shown
from shardspec.errors import LayoutError

ChunkingRule = Literal["ceil", "nested", "balanced", "padded"]
"""How a dim of `n` elements is cut:

- `ceil`: into chunks of `ceil(n / k)` for all `k` parts at once; the last ones are shorter or
  empty. XLA, and torch where one axis shards the dim.
- `nested`: level by level, each piece into chunks of `ceil`: torch's DTensor, `torch.chunk`.
- `balanced`: level by level, the first `n mod p` parts get one element more: OneFlow.
- `padded`: as `ceil`, but every device has room for a whole chunk.
"""

_RULES = frozenset(get_args(ChunkingRule))

Chunking = ChunkingRule | tuple[int, ...]
"""A rule, or the size of each part, major to minor."""

Level = tuple[int, int | None]
"""Number of parts, and which one a device takes: None for all of them (a split)."""

Run = tuple[int, int]
"""From start up to, not including, stop."""

_Cut = Callable[[Run, int, int], Run]
"""Of an interval cut into some parts, one of them."""

_COMPARABLE = 2**20
"""Pieces that are listed to see whether two rules cut alike; more only a slip or malice makes."""


def runs(n: int, chunking: Chunking, levels: Sequence[Level]) -> tuple[Run, ...]:
    """The intervals that a device holds, not empty, in order, adjacent ones joined.

    Args:
        n: Size of the dim.
        chunking: How it is cut.
        levels: What cuts it, major to minor.
    """
    return joined(_pieces(n, chunking, levels))


def first(n: int, chunking: Chunking, levels: Sequence[Level]) -> int:
    """Where the first interval that a device holds starts; if it holds none, where it would."""
    starts = (start for start, stop in _pieces(n, chunking, levels) if start < stop)
    return next(starts, interval(n, chunking, levels)[0])


def joined(pieces: Iterable[Run]) -> tuple[Run, ...]:
    """Intervals in rising order without the empty ones, adjacent ones joined."""
    found: list[Run] = []
    for start, stop in pieces:
        if start == stop:
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return tuple(found)


def interval(n: int, chunking: Chunking, levels: Sequence[Level]) -> Run:
    """The one interval that a device holds without splits; may be empty. With splits, the first."""
    if chunking in _BY_LEVEL:
        piece = (0, n)
        for parts, place in levels:
            piece = _BY_LEVEL[chunking](piece, parts, place or 0)
        return piece
    i, total = 0, 1
    for parts, place in levels:
        i, total = i * parts + (place or 0), total * parts
    return _at_once(n, chunking, total, i)


def _pieces(n: int, chunking: Chunking, levels: Sequence[Level]) -> Iterator[Run]:
    """A device's pieces, in order; of those that are empty, at most as many as are not."""
    if all(place is not None for _, place in levels):
        yield interval(n, chunking, levels)
    elif chunking in _BY_LEVEL:
        yield from _by_level((0, n), levels, _BY_LEVEL[chunking])
    else:
        total = math.prod(parts for parts, _ in levels)
        for i in _indices(levels):
            start, stop = _at_once(n, chunking, total, i)
            if start == n:
                return
            yield start, stop


def _by_level(piece: Run, levels: Sequence[Level], cut: _Cut) -> Iterator[Run]:
    if not levels:
        yield piece
        return
    (parts, place), *minor = levels
    start, stop = piece
    # Pieces past the number of elements are empty, whatever the rule.
    for i in range(min(parts, stop - start)) if place is None else (place,):
        yield from _by_level(cut(piece, parts, i), minor, cut)


def _indices(levels: Sequence[Level], major: int = 0) -> Iterator[int]:
    """The places of a device's pieces among all, in rising order."""
    if not levels:
        yield major
        return
    (parts, place), *minor = levels
    for i in range(parts) if place is None else (place,):
        yield from _indices(minor, major * parts + i)


def _at_once(n: int, chunking: Chunking, total: int, i: int) -> Run:
    """Piece `i` of all `total`, by a rule that does not look at levels."""
    if isinstance(chunking, tuple):
        start = sum(chunking[:i])
        return start, start + chunking[i]
    chunk = -(-n // total)
    return min(i * chunk, n), min((i + 1) * chunk, n)


def _chunk(piece: Run, parts: int, i: int) -> Run:
    start, stop = piece
    chunk = -(-(stop - start) // parts)
    return min(start + i * chunk, stop), min(start + (i + 1) * chunk, stop)


def _balanced(piece: Run, parts: int, i: int) -> Run:
    start, stop = piece
    each, more = divmod(stop - start, parts)
    return start + i * each + min(i, more), start + (i + 1) * each + min(i + 1, more)


_BY_LEVEL: dict[Chunking, _Cut] = {"nested": _chunk, "balanced": _balanced}


def all_sizes(n: int, chunking: Chunking, parts: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes of all `prod(parts)` pieces, major to minor."""
    if isinstance(chunking, tuple):
        return chunking
    cut, levels = _BY_LEVEL.get(chunking), parts
    if cut is None:
        cut, levels = _chunk, (math.prod(parts),)
    sizes = [n]
    for count in levels:
        pieces = (cut((0, size), count, i) for size in sizes for i in range(count))
        sizes = [stop - start for start, stop in pieces]
    return tuple(sizes)


def checked(chunking: object) -> Chunking:
    """A rule, or sizes as a tuple of ints.

    Raises:
        LayoutError: neither.
    """
    if isinstance(chunking, str):
        if chunking in _RULES:
            return cast(ChunkingRule, str(chunking))
    elif -1 not in (sizes := naturals(chunking)) and min(sizes, default=0) >= 0:
        return sizes
    raise LayoutError(
        f"a dim is cut by one of the rules {get_args(ChunkingRule)} or by explicit sizes >= 0; "
        f"got {shown(chunking)}"
    )


def canonical(n: int, chunking: Chunking, parts: tuple[int, ...]) -> Chunking:
    """The first rule that cuts alike, so that equal cuts are equal values.

    Raises:
        LayoutError: sizes that do not fit the dim, or more pieces than can be compared.
    """
    total = math.prod(parts)
    if isinstance(chunking, tuple) and (len(chunking) != total or sum(chunking) != n):
        raise LayoutError(
            f"explicit chunk sizes are one for each of the {total} parts, and add up to "
            f"the dim's {n} elements; got {len(chunking)} sizes that add up to "
            f"{sum(chunking)}: {shown(chunking)}"
        )
    if chunking == "ceil" or total == 1:
        return "ceil"
    if chunking == "padded":
        return "padded" if n % total else "ceil"
    if not isinstance(chunking, tuple) and n % total == 0:
        return "ceil"
    if total > _COMPARABLE:
        raise LayoutError(
            f"a dim of unequal pieces has at most {_COMPARABLE} of them, unless they are cut by "
            f"ceil or padded; got {n} elements in {total} pieces, cut by {shown(chunking)}"
        )
    sizes = all_sizes(n, chunking, parts)
    rules: tuple[ChunkingRule, ...] = ("ceil", "nested", "balanced")
    return next(
        (rule for rule in rules if rule == chunking or all_sizes(n, rule, parts) == sizes), sizes
    )
