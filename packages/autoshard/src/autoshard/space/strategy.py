"""The ways to run one operator on a mesh: every assignment of mesh axes to its factors.

For each mesh axis the choice is a factor (the axis splits that loop), a linear group (its operands
are partial sums over the axis and so are the results), or nothing (all devices along the axis do
the same work). Alpa's Table 3 is what comes out for a batched matmul on a 2-D mesh; the partial
results are AutoDDL's (4.2.2), so the all-reduce of a split reduction is not part of the operator
but of the conversion to what its consumer asks for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from shardspec import Entry, Partial, Spec, Split

from autoshard.base.checks import checked
from autoshard.graph.dim_divisors import Pieces
from autoshard.graph.rule import Dims, Factor, Rule

Target = int | tuple[str, int] | None
"""What a mesh axis does: split factor i, carry sums of group g as ("partial", g), or nothing."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run an operator in parallel."""

    mapping: tuple[Target, ...]
    """What each mesh axis does."""
    operand_specs: tuple[Spec, ...]
    """What the operator asks of its operands."""
    result_specs: tuple[Spec, ...]
    """What it makes of them."""

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
    """Every strategy of an operator on a mesh; the first one is replicated work.

    Several axes on one factor keep the mesh's order, first axis major. Within a dim made of several
    factors a minor one is split only if all factors before it are split down to size 1: else a
    device's part of the dim would not be contiguous.

    Args:
        rule: Of the operator.
        mesh_shape: Of the mesh.
        uneven: Also factors that an axis does not divide, if they are dims of their own: padded,
            so that all parts are as large as the largest. No part is empty.
        strided: Also minor factors behind larger ones: every device then has a part of each of the
            major factors' pieces, a strided shard (Rhino 4.1, 4.3.3).
        pieces: For each factor the numbers of pieces that it may be cut in before axes share each
            of them, a strided shard, too (see `dim_divisors`); none if left out.
    """
    splittable = [
        index
        for index, factor in enumerate(rule.factors)
        if factor.kind != "whole" and factor.size > 1
    ]
    carried = [("partial", group) for group in range(len(rule.linear))]
    choices: list[list[Target]] = [
        [None, *splittable, *carried] if size > 1 else [None] for size in mesh_shape
    ]
    return tuple(
        strategy
        for mapping in product(*choices)
        for cut in _cuts(mapping, pieces)
        if (strategy := _strategy(rule, mesh_shape, mapping, cut, uneven, strided)) is not None
    )


def can_split(size: int, n: int, uneven: bool = False) -> bool:
    """Whether `n` devices can share `size` elements: evenly, or with some left for the last one.

    Examples:
        >>> can_split(10, 4), can_split(10, 4, uneven=True)  # 3 + 3 + 3 + 1
        (False, True)
        >>> can_split(5, 4, uneven=True)  # 2 + 2 + 1 + 0
        False
    """
    return size % n == 0 or (uneven and size > n and -(-size // -(-size // n)) == n)


def _cuts(mapping: tuple[Target, ...], pieces: tuple[Pieces, ...]) -> Iterator[dict[int, int]]:
    """By factor the pieces that it is cut in, all ways; first 1 for all."""
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
    """The strategy that a mapping stands for, or `None` if it splits something that it must not."""
    axes: dict[int, tuple[int, ...]] = {}
    groups: list[tuple[int, int]] = []
    for axis, target in enumerate(mapping):
        if isinstance(target, int):
            axes[target] = (*axes.get(target, ()), axis)
        elif target is not None:
            groups.append((axis, target[1]))
    parts = {factor: math.prod(mesh_shape[axis] for axis in on) for factor, on in axes.items()}
    tensors = rule.operands + rule.results
    for factor, n in parts.items():
        alone = all(dim == (factor,) for dims in tensors for dim in dims if factor in dim)
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
        ]
        results.append(spec(dims, carried + reduced))
    return Strategy(mapping, operands, tuple(results))


@lru_cache(maxsize=1 << 16)
def _spec(dims: tuple[tuple[Entry, ...], ...], partial: tuple[Partial, ...]) -> Spec:
    """The spec; of a hundred strategies' few are distinct, and to check one takes a while."""
    return Spec(dims, partial)


def _entries(
    dim: tuple[int, ...],
    factors: tuple[Factor, ...],
    axes: dict[int, tuple[int, ...]],
    parts: dict[int, int],
    cut: dict[int, int],
) -> tuple[Entry, ...]:
    """What shards a dim: each factor's pieces and axes, and then what is left of the factor.

    Splits that nothing comes after move nothing; the spec drops them.
    """
    found: list[Entry] = []
    for factor in dim:
        count = cut.get(factor, 1)
        left = factors[factor].size // (count * parts.get(factor, 1))
        found += [Split(count), *axes.get(factor, ()), Split(max(left, 1))]  # 0 of an empty dim
    while found and isinstance(found[-1], Split):
        found.pop()
    return tuple(found)


def _splits_inside(dims: Dims, factors: tuple[Factor, ...], parts: dict[int, int]) -> bool:
    """Whether some dim has a split factor behind one that is not split down to size 1."""
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
    """Every way to store a tensor: no partial sums, axes of a dim in mesh order.

    Replicated comes first. Splits are even, or as for `enumerate_strategies`.

    Args:
        shape: Of the tensor.
        mesh_shape: Of the mesh.
        uneven: Also padded.
        pieces: Also strided: for each dim the numbers of pieces that it may be cut in.
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
        ways = list[list[tuple[Entry, ...]]]()
        for on, n, size, counts in zip(split, parts, shape, pieces, strict=True):
            ways.append([on])
            even = (count for count in counts if on and size % (count * n) == 0)
            ways[-1] += ((Split(count), *on) for count in even)
        yield from (Spec(entries) for entries in product(*ways))
