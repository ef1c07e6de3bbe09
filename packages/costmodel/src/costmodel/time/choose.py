"""The fastest algorithm, and the time, of a collective in a group on several levels of a network.

The candidates for a collective in a group are

- *rings* and chains over all members, with the group's `flat` link (if hosts have several cards, as
  many rings at once, each with its part of the bytes);
- *trees* over all members, with the group's `spread` link, as if all members left their host in
  every round: binomial trees, recursive doubling and halving, Rabenseifner's and Bruck's;
- *direct* messages from each member to each member that it has something for, also with the
  `spread` link; a single message between two members has the `single` link. A pairwise all-to-all
  is counted level by level instead, if the members are spread evenly: with `n` members, `c` under
  each unit and `s c` under each unit of the next level, a device exchanges `(s - 1) c` messages
  that go as far as this level, so that `(n - c)/n` of every member's bytes pass the connection of
  the unit;
- *hierarchical* algorithms, level by level, with the best algorithm for each level:

      all-gather      inwards: all-gather on the outermost level, ..., on the innermost
      reduce-scatter  outwards: reduce-scatter on the innermost level, ..., on the outermost
      all-reduce      reduce-scatter outwards, all-reduce on the outermost, all-gather inwards
      broadcast       scatter outwards, broadcast on the outermost, all-gather inwards
      all-to-all      all-to-all on each level, of all bytes

On a level, the `c` members under a unit work at the same time, each in its own group with one peer
under every other unit. Each moves `1/c` of the bytes (all bytes in an all-to-all) and has `1/c` of
the link of the unit. So all together never put more on a network card than it carries.

The rounds and bytes of rings, trees and direct messages are in `costmodel.time.algorithms`; users
can add others by `register_algorithm`.

The time of each candidate is a line, `latency_s + n_bytes * s_per_byte`. A price is the minimum of
a few lines, which are computed once for each group; chains with different numbers of chunks are
different lines.

Reference:
    AutoDDL, section 4.2.3 (devices of a node first, then nodes); cross-mesh resharding, section 3.1
    (a broadcast passes each host's card once).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from operator import itemgetter
from typing import Any

import numpy as np

from costmodel.base.checks import checked, number
from costmodel.errors import UnknownNameError, shown
from costmodel.hardware.link import GroupLinks, Link
from costmodel.time.algorithm import CollectiveKind, check_kind
from costmodel.time.algorithm_table import Algorithms, known_algorithms
from costmodel.time.ring import Bytes, Rounds


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest algorithm of a collective, and its time."""

    seconds: float
    algorithm: str
    """A name from `costmodel.time.algorithms`, the name of a registered algorithm, or
    "hierarchical"; `algorithms_of` has its family."""
    phases: tuple[str, ...] = ()
    """The phases of a hierarchical algorithm, in order."""


@dataclass(frozen=True, slots=True)
class _Line:
    """Time of one algorithm, for any number of bytes."""

    latency_s: float
    s_per_byte: float
    algorithm: str
    phases: tuple[str, ...] = ()

    @classmethod
    def of(cls, rounds: Rounds, link: Link, algorithm: str) -> _Line:
        latency_s = rounds.seconds(0.0, link)
        per_byte = Rounds(0, rounds.exchanged, rounds.one_way)
        return cls(latency_s, per_byte.seconds(1.0, link), algorithm)


def fastest(kind: CollectiveKind, n_bytes: float, group: GroupLinks) -> Choice:
    """The fastest algorithm for a collective of this size.

    Args:
        kind: The collective.
        n_bytes: Bytes of one device, as in `costmodel.time.ring`: the input of a reduce-scatter,
            the output of an all-gather; for other collectives input and output are equal.
        group: From `Cluster.links(mesh).group(axes)`.

    Raises:
        QuantityError: `n_bytes` is negative, not finite, or an array (which `collective_time`
            takes).
        UnknownNameError: No collective is called `kind`.

    Examples:
        >>> from costmodel import Cluster
        >>> from shardspec import Mesh
        >>> mesh = Mesh((2, 4), ("host", "device"))
        >>> group = Cluster.preset("two-hosts").links(mesh).group((0, 1))
        >>> fastest("all_reduce", 1e8, group).algorithm
        'hierarchical'
        >>> for phase in fastest("all_reduce", 1e8, group).phases:
        ...     print(phase)
        reduce_scatter of 4: recursive halving
        all_reduce of 2: recursive doubling
        all_gather of 4: bruck
    """
    size = number("n_bytes", n_bytes)
    lines = _lines(kind, group, known_algorithms())
    seconds, line = min(
        ((line.latency_s + size * line.s_per_byte, line) for line in lines), key=itemgetter(0)
    )
    return Choice(seconds, line.algorithm, line.phases)


def collective_time(
    kind: CollectiveKind, n_bytes: Bytes, group: GroupLinks, algorithm: str | None = None
) -> Bytes:
    """Time of a collective with the given algorithm, or with the fastest one for this size.

    Args:
        kind: The collective.
        n_bytes: As in `fastest`; a number or an array.
        group: As in `fastest`.
        algorithm: A name in `algorithms_of(kind, group)`, or a family such as "ring" or "tree" for
            its fastest algorithm.

    Returns:
        Seconds, an array if `n_bytes` is one; 0.0 in a group of one.

    Raises:
        QuantityError: `n_bytes` is negative or not finite.
        UnknownNameError: No collective is called `kind`, or it does not have this algorithm in this
            group.
    """
    known = known_algorithms()
    if algorithm is None:
        lines = _lines(kind, group, known)
    else:
        lines = _named(kind, group, algorithm, known)
    sizes: Any = checked("n_bytes", n_bytes)
    prices: Bytes = _least(lines, sizes)
    return prices


def _least(lines: Sequence[_Line], sizes: Any) -> Any:
    if isinstance(sizes, float):
        return min(line.latency_s + sizes * line.s_per_byte for line in lines)
    least = lines[0].latency_s + sizes * lines[0].s_per_byte
    other = np.empty_like(least)
    for line in lines[1:]:
        np.multiply(sizes, line.s_per_byte, out=other)
        other += line.latency_s
        np.minimum(least, other, out=least)
    return least


def algorithms_of(kind: CollectiveKind, group: GroupLinks) -> dict[str, str]:
    """The algorithms of a collective in this group, and the family of each.

    Returns:
        For each name "ring", "tree", "direct" or "hierarchical".

    Raises:
        UnknownNameError: No collective is called `kind`.

    Examples:
        >>> from costmodel import Cluster
        >>> from shardspec import Mesh
        >>> group = Cluster.preset("two-hosts").links(Mesh((8,), ("x",))).group((0,))
        >>> for name, family in algorithms_of("all_reduce", group).items():
        ...     print(f"{name}: {family}")
        ring: ring
        recursive doubling: tree
        rabenseifner: tree
        hierarchical: hierarchical
    """
    candidates = _candidates(kind, group, known_algorithms())
    return {name: candidate.family for name, candidate in candidates.items()}


@dataclass(frozen=True, slots=True)
class _Candidate:
    family: str
    lines: tuple[_Line, ...]
    """One line; several for a hierarchical algorithm."""


@lru_cache(maxsize=4096)
def _lines(kind: CollectiveKind, group: GroupLinks, known: Algorithms) -> tuple[_Line, ...]:
    candidates = _candidates(kind, group, known)
    return _undominated(line for candidate in candidates.values() for line in candidate.lines)


@lru_cache(maxsize=4096)
def _named(
    kind: CollectiveKind, group: GroupLinks, algorithm: str, known: Algorithms
) -> tuple[_Line, ...]:
    candidates = _candidates(kind, group, known)
    lines = [
        line
        for name, candidate in candidates.items()
        if algorithm in (name, candidate.family)
        for line in candidate.lines
    ]
    if not lines:
        raise UnknownNameError(
            f"{kind} in this group of {group.size} has the algorithms "
            f"{', '.join(f'{name} ({one.family})' for name, one in candidates.items())}; "
            f"got {shown(algorithm)}",
            str(algorithm),
        )
    return _undominated(lines)


@lru_cache(maxsize=4096)
def _candidates(
    kind: CollectiveKind, group: GroupLinks, known: Algorithms
) -> Mapping[str, _Candidate]:
    check_kind(kind)
    n, levels = group.size, _member_tiers(group)
    direct = group.single if kind == "point_to_point" else group.spread
    links = {"ring": group.flat, "direct": direct, "tree": group.spread}
    candidates = {
        name: _Candidate(one.family, (_Line.of(one.rounds(n), links[one.family], name),))
        for name, one in known.of(kind).items()
    }
    if len(levels) > 1 and kind == "all_to_all":
        candidates["pairwise"] = _Candidate("direct", (_pairwise(n, levels),))
    if len(levels) > 1 and kind not in ("permute", "point_to_point"):
        candidates["hierarchical"] = _Candidate("hierarchical", _hierarchical(kind, levels, known))
    return candidates


@dataclass(frozen=True, slots=True)
class _MemberTier:
    """A tier from the point of view of one member."""

    size: int
    """Number of units that the tier joins."""
    inner: int
    """Members under each of these units."""
    link: Link
    """Link of each of these members, while all of them send."""


def _member_tiers(group: GroupLinks) -> list[_MemberTier]:
    tiers: list[_MemberTier] = []
    inner = 1
    for tier in group.tiers:
        tiers.append(_MemberTier(tier.size, inner, tier.link.times(1 / inner)))
        inner *= tier.size
    return tiers


def _pairwise(n: int, levels: Sequence[_MemberTier]) -> _Line:
    latency_s = s_per_byte = 0.0
    for level in levels:  # in each step all devices send equally far: (s - 1) c steps per level
        peers = (level.size - 1) * level.inner
        line = _Line.of(Rounds(peers, peers / n), level.link, "pairwise")
        latency_s += line.latency_s
        s_per_byte += line.s_per_byte
    return _Line(latency_s, s_per_byte, "pairwise")


def _hierarchical(
    kind: CollectiveKind, levels: Sequence[_MemberTier], known: Algorithms
) -> tuple[_Line, ...]:
    lines: tuple[_Line, ...] = (_Line(0.0, 0.0, "hierarchical"),)
    for phase, level in _phases(kind, levels):
        share = 1 if kind == "all_to_all" else 1 / level.inner
        choices = [
            _Line.of(one.rounds(level.size), level.link, f"{phase} of {level.size}: {name}")
            for name, one in known.of(phase).items()
        ]
        lines = _undominated(
            _Line(
                before.latency_s + one.latency_s,
                before.s_per_byte + one.s_per_byte * share,
                before.algorithm,
                (*before.phases, one.algorithm),
            )
            for before, one in product(lines, choices)
        )
    return lines


def _phases(kind: CollectiveKind, levels: Sequence[_MemberTier]) -> list[tuple[str, _MemberTier]]:
    """The phases of a hierarchical collective, in order, each with its level."""
    inwards = levels[::-1]
    match kind:
        case "all_reduce" | "broadcast":
            outwards = "reduce_scatter" if kind == "all_reduce" else "scatter"
            return [
                *((outwards, level) for level in levels[:-1]),
                (kind, levels[-1]),
                *(("all_gather", level) for level in inwards[1:]),
            ]
        case "all_gather":
            return [(kind, level) for level in inwards]
        case _:
            return [(kind, level) for level in levels]


def _undominated(lines: Iterable[_Line]) -> tuple[_Line, ...]:
    """The lines that are the minimum for some size, and maybe others; the first of equal lines."""
    kept: list[_Line] = []
    for line in sorted(lines, key=lambda line: (line.latency_s, line.s_per_byte)):
        if not kept or line.s_per_byte < kept[-1].s_per_byte:
            kept.append(line)
    return tuple(kept)
