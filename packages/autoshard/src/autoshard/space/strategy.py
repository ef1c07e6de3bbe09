"""The strategies of an operator on a mesh: every assignment of mesh axes to its factors.

Each mesh axis is assigned to a factor (the axis splits that loop), to a ring (it splits two loops,
and the parts of the second go round), to a linear group (the group's operands are partial sums over
the axis, and so are the results), or to nothing (all devices along the axis do the same work). For
a batched matmul on a 2-D mesh, this gives Alpa's Table 3. Partial results are AutoDDL's (4.2.2):
the all-reduce of a split reduction is not part of the operator, but of the conversion to the spec
that its consumer needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from shardspec import Entry, Partial, Spec, Split

from autoshard.base.checks import checked
from autoshard.graph.dim_divisors import Pieces
from autoshard.graph.rule import Dims, Factor, Rule

Target = int | tuple[str, int] | None
"""What a mesh axis does: i splits factor i, ("ring", r) splits both factors of ring r,
("partial", g) carries the partial sums of linear group g, and `None` repeats the work."""


def split_factors(rule: Rule, mapping: Sequence[Target]) -> dict[int, tuple[int, ...]]:
    """The axes that split each factor, in mesh order, for the factors that any splits."""
    axes: dict[int, tuple[int, ...]] = {}
    for axis, target in enumerate(mapping):
        if isinstance(target, int):
            axes[target] = (*axes.get(target, ()), axis)
        elif target is not None and target[0] == "ring":
            for factor in rule.rings[target[1]]:
                axes[factor] = (*axes.get(factor, ()), axis)
    return axes


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run an operator in parallel."""

    mapping: tuple[Target, ...]
    """What each mesh axis does."""
    operand_specs: tuple[Spec, ...]
    """The specs in which the operator needs its operands."""
    result_specs: tuple[Spec, ...]
    """The specs in which it returns its results."""

    def __str__(self) -> str:
        axes: dict[str, list[int]] = {}
        for axis, target in enumerate(self.mapping):
            if target is not None:
                name = f"f{target}" if isinstance(target, int) else f"{target[0]}{target[1]}"
                axes.setdefault(name, []).append(axis)
        return (
            ", ".join(
                f"{name}->{on[0] if len(on) == 1 else '{' + ','.join(map(str, on)) + '}'}"
                for name, on in axes.items()
            )
            or "replicated"
        )


@checked
@lru_cache(maxsize=4096)
def enumerate_strategies(
    rule: Rule,
    mesh_shape: tuple[int, ...],
    uneven: bool = False,
    strided: bool = False,
    pieces: tuple[Pieces, ...] = (),
) -> tuple[Strategy, ...]:
    """Every strategy of an operator on a mesh; in the first one, all devices repeat all work.

    If several axes split one factor, they do so in the mesh's order, first axis major. Within a dim
    of several factors, a minor one is split only if all factors before it are split down to size 1;
    otherwise a device's shard of the dim would not be contiguous.

    Args:
        rule: The operator's rule.
        mesh_shape: The lengths of the mesh's axes.
        uneven: Also split factors that an axis does not divide, if each is a dim on its own. They
            are padded, so that all parts are as large as the largest. No part is empty.
        strided: Also split a minor factor after one that is not split down to size 1: every device
            then has a part of each piece of the major factors, a strided shard (Rhino 4.1, 4.3.3).
        pieces: For each factor, the numbers of pieces that it may be cut into before axes split
            each piece, which gives strided shards, too (see `dim_divisors`); by default none.
    """
    splittable = [
        index
        for index, factor in enumerate(rule.factors)
        if factor.kind != "whole" and factor.size > 1
    ]
    rings = [("ring", ring) for ring in range(len(rule.rings))]
    carried = [("partial", group) for group in range(len(rule.linear))]
    choices: list[list[Target]] = [
        [None, *splittable, *rings, *carried] if size > 1 else [None] for size in mesh_shape
    ]
    return tuple(
        strategy
        for mapping in product(*choices)
        for cut in _cuts(mapping, pieces)
        if (strategy := _strategy(rule, mesh_shape, mapping, cut, uneven, strided)) is not None
    )


def can_split(size: int, n: int, uneven: bool = False) -> bool:
    """Whether `n` devices can share `size` elements in equal parts.

    With `uneven`, the last part may also be smaller, but not empty.

    Examples:
        >>> can_split(10, 4), can_split(10, 4, uneven=True)  # 3 + 3 + 3 + 1
        (False, True)
        >>> can_split(5, 4, uneven=True)  # 2 + 2 + 1 + 0
        False
    """
    return size % n == 0 or (uneven and size > n and -(-size // -(-size // n)) == n)


def _cuts(mapping: tuple[Target, ...], pieces: tuple[Pieces, ...]) -> Iterator[dict[int, int]]:
    """Yield every choice of the number of pieces of each split factor; the first is 1 for all.

    A choice lists the factors with more than one piece.
    """
    used = sorted({target for target in mapping if isinstance(target, int)}) if pieces else []
    for counts in product(*((1, *pieces[factor]) for factor in used)):
        yield {factor: count for factor, count in zip(used, counts, strict=True) if count > 1}


def _strategy(
    rule: Rule,
    mesh_shape: tuple[int, ...],
    mapping: tuple[Target, ...],
    cut: dict[int, int],
    uneven: bool,
    strided: bool,
) -> Strategy | None:
    """The strategy of a mapping, or `None` if it splits a factor where that is not allowed.

    Args:
        rule: The operator's rule.
        mesh_shape: The lengths of the mesh's axes.
        mapping: What each axis does.
        cut: The number of pieces of each factor that has more than one.
        uneven: As for `enumerate_strategies`.
        strided: As for `enumerate_strategies`.
    """
    axes = split_factors(rule, mapping)
    groups = [
        (axis, target[1])
        for axis, target in enumerate(mapping)
        if isinstance(target, tuple) and target[0] == "partial"
    ]
    parts = {factor: math.prod(mesh_shape[axis] for axis in on) for factor, on in axes.items()}
    tensors = rule.operands + rule.results
    turning = {rule.rings[t[1]][1] for t in mapping if isinstance(t, tuple) and t[0] == "ring"}
    for factor, n in parts.items():
        alone = all(dim == (factor,) for dims in tensors for dim in dims if factor in dim)
        alone = alone and not turning  # a padded part of keys would be seen elsewhere
        count = cut.get(factor, 1)
        if not can_split(rule.factors[factor].size, n * count, uneven and alone and count == 1):
            return None
    if not strided and any(_splits_inside(dims, rule.factors, parts) for dims in tensors):
        return None

    def spec(dims: Dims, partial: list[Partial]) -> Spec:
        split = tuple(_entries(dim, rule.factors, axes, parts, cut) for dim in dims)
        return _spec(split, tuple(sorted(partial)))

    carried = [Partial(axis, "sum") for axis, _ in groups]
    operands = tuple(
        spec(
            dims, [p for p, (_, g) in zip(carried, groups, strict=True) if index in rule.linear[g]]
        )
        for index, dims in enumerate(rule.operands)
    )
    results = []
    for dims in rule.results:
        held = {factor for dim in dims for factor in dim}
        reduced = [
            Partial(axis, rule.factors[factor].reduction)
            for factor, on in axes.items()
            if factor not in held and rule.factors[factor].kind == "reduce"
            for axis in on
            if not any(axis in axes.get(other, ()) for other in turning & held)
        ]
        results.append(spec(dims, carried + reduced))
    return Strategy(mapping, operands, tuple(results))


@lru_cache(maxsize=1 << 16)
def _spec(dims: tuple[tuple[Entry, ...], ...], partial: tuple[Partial, ...]) -> Spec:
    """A spec, cached: a hundred strategies have few distinct ones, and checking one is slow."""
    return Spec(dims, partial)


def _entries(
    dim: tuple[int, ...],
    factors: tuple[Factor, ...],
    axes: dict[int, tuple[int, ...]],
    parts: dict[int, int],
    cut: dict[int, int],
) -> tuple[Entry, ...]:
    """The spec's entries for a dim: for each factor its pieces, its axes, and the rest of its size.

    Splits at the end have no effect, so they are dropped.
    """
    entries: list[Entry] = []
    for factor in dim:
        count = cut.get(factor, 1)
        left = factors[factor].size // (count * parts.get(factor, 1))
        entries += [Split(count), *axes.get(factor, ()), Split(max(left, 1))]  # 0 in an empty dim
    while entries and isinstance(entries[-1], Split):
        entries.pop()
    return tuple(entries)


def _splits_inside(dims: Dims, factors: tuple[Factor, ...], parts: dict[int, int]) -> bool:
    """Whether some dim has a split factor after one that is not split down to size 1."""
    for dim in dims:
        contiguous = True
        for factor in dim:
            n = parts.get(factor, 1)
            if n > 1 and not contiguous:
                return True
            contiguous = contiguous and n == factors[factor].size
    return False


@checked
def stored_specs(
    shape: tuple[int, ...],
    mesh_shape: tuple[int, ...],
    uneven: bool = False,
    pieces: tuple[Pieces, ...] = (),
) -> tuple[Spec, ...]:
    """Every spec in which a tensor may be stored; the replicated one comes first.

    None has partial sums, and the axes of a dim are in mesh order.

    Args:
        shape: The tensor's shape.
        mesh_shape: The lengths of the mesh's axes.
        uneven: Also splits that are not even, as for `enumerate_strategies`.
        pieces: For each dim, the numbers of pieces that it may be cut into before axes split each
            piece, which gives strided shards; by default none.
    """
    return _stored_specs(shape, mesh_shape, uneven, pieces or ((),) * len(shape))


@lru_cache(maxsize=4096)
def _stored_specs(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], uneven: bool, pieces: tuple[Pieces, ...]
) -> tuple[Spec, ...]:
    return tuple(_every_stored(shape, mesh_shape, uneven, pieces))


def _every_stored(
    shape: tuple[int, ...], mesh_shape: tuple[int, ...], uneven: bool, pieces: tuple[Pieces, ...]
) -> Iterator[Spec]:
    dims: list[list[int | None]] = [
        [None, *(dim for dim, size in enumerate(shape) if size >= n and can_split(size, n, uneven))]
        if n > 1
        else [None]
        for n in mesh_shape
    ]
    for chosen in product(*dims):
        split = [
            tuple(axis for axis, dim in enumerate(chosen) if dim == d) for d in range(len(shape))
        ]
        parts = [math.prod(mesh_shape[axis] for axis in on) for on in split]
        if not all(
            n == 1 or (size >= n and can_split(size, n, uneven))
            for size, n in zip(shape, parts, strict=True)
        ):
            continue
        entries_of_dims = list[list[tuple[Entry, ...]]]()
        for on, n, size, counts in zip(split, parts, shape, pieces, strict=True):
            even = (count for count in counts if on and size % (count * n) == 0)
            entries_of_dims.append([on])
            entries_of_dims[-1] += ((Split(count), *on) for count in even)
        yield from (Spec(entries) for entries in product(*entries_of_dims))
