"""Which intervals of a dim each device holds, also where the dim does not divide evenly.

A dim is cut by *levels*, major to minor: one for each axis that shards it, and one for each split.
A device takes one part of an axis level (its coordinate) and all parts of a split level (None).
Hence its shard is a list of *runs*: intervals `(start, stop)` in rising order, just one of them if
there is no split.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, cast, get_args

from shardspec.base.integers import naturals, shown
from shardspec.errors import LayoutError

ChunkingRule = Literal["ceil", "nested", "balanced", "padded"]
"""How a dim of `n` elements is cut:

- `ceil`: all levels at once into `k` chunks of `ceil(n / k)`; the last ones are shorter or empty.
  Used by XLA, and by torch if one axis shards the dim.
- `nested`: level by level, each piece by `ceil`. Used by torch's DTensor and `torch.chunk`.
- `balanced`: level by level, each piece into `p` parts of which the first `n mod p` get one element
  more. Used by OneFlow.
- `padded`: as `ceil`, but every device has room for a whole chunk.
"""

_RULES = frozenset(get_args(ChunkingRule))

Chunking = ChunkingRule | tuple[int, ...]
"""How one dim is cut: by a rule, or into parts of the listed sizes, major to minor."""

Level = tuple[int, int | None]
"""Number of parts, and the index of the one that a device takes: None for all (a split)."""

Run = tuple[int, int]
"""Half-open interval of indices: start, stop."""

_Cut = Callable[[Run, int, int], Run]
"""`cut(piece, parts, i)`: part `i` of an interval that is cut into `parts`."""

_COMPARABLE = 2**20
"""Most pieces that are listed to see whether two rules cut alike; more can only be a mistake."""


def runs(n: int, chunking: Chunking, levels: Sequence[Level]) -> tuple[Run, ...]:
    """The intervals of a dim that a device holds: none empty, in order, adjacent ones joined.

    Args:
        n: Size of the dim.
        chunking: How the dim is cut.
        levels: Major to minor.
    """
    return joined(_pieces(n, chunking, levels))


def first(n: int, chunking: Chunking, levels: Sequence[Level]) -> int:
    """Start of the first interval that a device holds; if it holds none, where it would start."""
    starts = (start for start, stop in _pieces(n, chunking, levels) if start < stop)
    return next(starts, interval(n, chunking, levels)[0])


def joined(pieces: Iterable[Run]) -> tuple[Run, ...]:
    """`pieces`, which are in rising order, without empty ones and with adjacent ones joined."""
    intervals: list[Run] = []
    for start, stop in pieces:
        if start == stop:
            continue
        if intervals and intervals[-1][1] == start:
            intervals[-1] = (intervals[-1][0], stop)
        else:
            intervals.append((start, stop))
    return tuple(intervals)


def interval(n: int, chunking: Chunking, levels: Sequence[Level]) -> Run:
    """The interval that a device holds if there are no splits, else the first; may be empty."""
    if chunking in _BY_LEVEL:
        piece = (0, n)
        for parts, part in levels:
            piece = _BY_LEVEL[chunking](piece, parts, part or 0)
        return piece
    i, total = 0, 1
    for parts, part in levels:
        i, total = i * parts + (part or 0), total * parts
    return _at_once(n, chunking, total, i)


def _pieces(n: int, chunking: Chunking, levels: Sequence[Level]) -> Iterator[Run]:
    """A device's pieces, in order; some may be empty.

    Their number is bounded by the dim's elements or its explicit sizes, not by the number of parts.
    """
    if all(part is not None for _, part in levels):
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
    (parts, part), *minor = levels
    start, stop = piece
    # An interval of n elements has at most n pieces that are not empty, and they come first.
    for i in range(min(parts, stop - start)) if part is None else (part,):
        yield from _by_level(cut(piece, parts, i), minor, cut)


def _indices(levels: Sequence[Level], major: int = 0) -> Iterator[int]:
    """Which of all pieces are a device's: their indices, rising."""
    if not levels:
        yield major
        return
    (parts, part), *minor = levels
    for i in range(parts) if part is None else (part,):
        yield from _indices(minor, major * parts + i)


def _at_once(n: int, chunking: Chunking, total: int, i: int) -> Run:
    """Piece `i` of `total`, by explicit sizes or by a rule that cuts all levels at once."""
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
    """Sizes of all `prod(parts)` pieces, in order."""
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
    """`chunking` as a rule, or as a tuple of sizes that are ints.

    Raises:
        LayoutError: it is neither.
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
    """The first of ceil, nested and balanced that gives the same pieces, else `chunking` itself.

    So chunkings that cut a dim alike compare equal. `padded` becomes `ceil` if pieces are equal.

    Raises:
        LayoutError: sizes that do not fit the dim, or too many pieces to compare.
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
