"""How a dim is cut where its shards cannot be equal: the rules in use, as intervals.

A dim is cut by *levels*, major to minor, one for each axis that shards it and each split. A device
takes one part of an axis level (its coordinate) and all parts of a split level (None). So a shard
is a list of *runs*, intervals `(start, stop)` in rising order, one of them if there is no split.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, get_args

from .errors import LayoutError

Rule = Literal["ceil", "nested", "balanced", "padded"]
"""How a dim of `n` elements is cut:

- `ceil`: into chunks of `ceil(n / k)` for all `k` parts at once; the last ones are shorter or
  empty. XLA, and torch where one axis shards the dim.
- `nested`: level by level, each piece into chunks of `ceil`: torch's DTensor, `torch.chunk`.
- `balanced`: level by level, the first `n mod p` parts get one element more: OneFlow.
- `padded`: as `ceil`, but every device has room for a whole chunk.
"""

Chunking = Rule | tuple[int, ...]
"""A rule, or the size of each part, major to minor."""

Level = tuple[int, int | None]
"""Number of parts, and which one a device takes: None for all of them (a split)."""

Run = tuple[int, int]
"""From start up to, not including, stop."""


def runs(n: int, chunking: Chunking, levels: Sequence[Level]) -> tuple[Run, ...]:
    """The intervals that a device holds, not empty, in order, adjacent ones joined.

    Args:
        n: Size of the dim.
        chunking: How it is cut.
        levels: What cuts it, major to minor.
    """
    found: list[Run] = []
    for start, stop in _pieces(n, chunking, levels):
        if start == stop:
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return tuple(found)


def interval(n: int, chunking: Chunking, levels: Sequence[Level]) -> Run:
    """The one interval that a device holds without splits; may be empty."""
    return next(_pieces(n, chunking, levels))


def _pieces(n: int, chunking: Chunking, levels: Sequence[Level]) -> Iterator[Run]:
    if chunking in ("nested", "balanced"):
        pieces = [(0, n)]
        for parts, place in levels:
            places = range(parts) if place is None else range(place, place + 1)
            cut = _balanced if chunking == "balanced" else _chunk
            pieces = [cut(piece, parts, i) for piece in pieces for i in places]
        yield from pieces
        return
    total = math.prod(parts for parts, _ in levels)
    bounds = [0, *itertools.accumulate(chunking)] if isinstance(chunking, tuple) else None
    chunk = -(-n // total)
    choices = [range(parts) if i is None else range(i, i + 1) for parts, i in levels]
    for chosen in itertools.product(*choices):
        i = 0
        for (parts, _), at in zip(levels, chosen, strict=True):
            i = i * parts + at
        if bounds is None:
            yield min(i * chunk, n), min((i + 1) * chunk, n)
        else:
            yield bounds[i], bounds[i + 1]


def _chunk(piece: Run, parts: int, i: int) -> Run:
    start, stop = piece
    chunk = -(-(stop - start) // parts)
    return min(start + i * chunk, stop), min(start + (i + 1) * chunk, stop)


def _balanced(piece: Run, parts: int, i: int) -> Run:
    start, stop = piece
    each, more = divmod(stop - start, parts)
    return start + i * each + min(i, more), start + (i + 1) * each + min(i + 1, more)


@lru_cache(maxsize=4096)
def all_sizes(n: int, chunking: Chunking, parts: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes of all `prod(parts)` pieces, major to minor."""
    whole: list[Level] = [(count, None) for count in parts]
    return tuple(stop - start for start, stop in _pieces(n, chunking, whole))


def canonical(n: int, chunking: Chunking, parts: tuple[int, ...]) -> Chunking:
    """The first rule that cuts alike, so that equal cuts are equal values.

    Raises:
        LayoutError: an unknown rule, or sizes that do not fit the dim.
    """
    total = math.prod(parts)
    if isinstance(chunking, tuple):
        if len(chunking) != total or sum(chunking) != n or any(size < 0 for size in chunking):
            raise LayoutError(
                f"explicit chunk sizes are >= 0, one for each of the {total} parts, and add up to "
                f"the dim's {n} elements; got {len(chunking)} sizes that add up to "
                f"{sum(chunking)}: {chunking}"
            )
    elif chunking not in get_args(Rule):
        raise LayoutError(
            f"a dim is cut by one of the rules {get_args(Rule)} or by explicit sizes; "
            f"got {chunking!r}"
        )
    if chunking == "ceil" or total == 1:
        return "ceil"
    if chunking == "padded":
        return "padded" if n % total else "ceil"
    if not isinstance(chunking, tuple) and n % total == 0:
        return "ceil"
    sizes = all_sizes(n, chunking, parts)
    rules: tuple[Rule, ...] = ("ceil", "nested", "balanced")
    return next((rule for rule in rules if all_sizes(n, rule, parts) == sizes), sizes)
