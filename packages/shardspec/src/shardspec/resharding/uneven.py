"""`exchanged`: a plan with one exchange, for layouts without common units.

Layouts that cut a dim at points that do not nest (in 2 and in 3, or uneven ones by different rules)
have no common digits. Every device still knows which devices hold what it lacks. So partial results
are combined first, and then each device is sent what it wants and does not hold: the lower bound.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardspec.base.axis import Axis, Entry, Split, index, overlap
from shardspec.base.chunking import Chunking, all_sizes
from shardspec.base.partial import Partial, Reduction
from shardspec.layout.layout import Layout
from shardspec.layout.mesh import n_parts
from shardspec.layout.spec import Spec, sharding_axes
from shardspec.refine.lower_bound import partial_units
from shardspec.refine.refine import changed_dims
from shardspec.resharding.construct import StepKind
from shardspec.resharding.step import ReshardPlan, Step, step

Cut = tuple[tuple[tuple[Entry, ...], ...], tuple[Chunking, ...]]
"""The entries that cut each dim, and the chunking of each dim."""

_MOST_PIECES = 2**16
"""Most pieces of a dim whose sizes are listed."""


def exchanged(src: Layout, dst: Layout, kinds: frozenset[str]) -> ReshardPlan:
    """The plan that combines partial results, does one exchange, and fills, each if needed.

    If slices lead to the destination, partial results are scattered straight into it. Otherwise
    they are scattered over the dim with the largest pieces and exchanged from there, unless nothing
    else changes. An exchange that only gathers or slices whole dims, or moves axes from one dim to
    another, is named all-gather, slice or all-to-all if `kinds` has these. The plan may still have
    steps that are not in `kinds`; the caller checks.
    """
    units = partial_units(src, dst)
    atoms, left, after = units.atoms, list(units.src_kinds), units.dst_kinds
    steps: list[Step] = []

    def current() -> Layout:
        return steps[-1].dst if steps else src

    def at(cut: Cut, combined: Iterable[Axis] = ()) -> Layout:
        held = zip(atoms, left, strict=True)
        partial = [Partial(axis, kind) for axis, kind in held if kind and axis not in combined]
        return Layout(src.shape, src.mesh, Spec(cut[0], tuple(partial)), cut[1])

    def add(kind: StepKind, axes: Iterable[Axis], end: Layout, combine: Reduction | None) -> None:
        steps.append(step(kind, _joined(src, axes), combine, current(), end))

    def fits(layout: Layout) -> bool:
        # A tensor is padded before it is scattered into padded pieces, so it may become larger than
        # both source and destination.
        small = layout.local_bytes(1) <= max(src.local_bytes(1), dst.local_bytes(1))
        return small and ("transpose" in kinds or layout.spec.is_plain)

    def exchange_cost(cut: Cut, combined: list[Axis]) -> tuple[int, ...]:
        # The dim to scatter over is chosen by the cost of the exchange that follows, so that
        # neither the names nor the order of dims and axes decide anything.
        before, after = at(cut, combined), at(wanted, combined)
        plan = ReshardPlan(before, after, (step("exchange", (), None, before, after),))
        return plan.total_bytes(1), plan.received_bytes(1), plan.sent_bytes(1)

    def move(cut: Cut) -> None:
        end = at(cut)
        if changed := changed_dims(current(), end):
            kind, axes = _exchange(current(), end, changed)
            add(kind if kind in kinds else "exchange", axes, end, None)

    def combine(kind: StepKind, axes: list[Axis], cut: Cut, how: Reduction | None) -> None:
        if axes:
            for axis in axes:
                left[atoms.index(axis)] = None
            add(kind, axes, at(cut), how)

    reduced = [i for i, kind in enumerate(left) if kind and kind != after[i]]
    runs = itertools.groupby(reversed(reduced), key=lambda i: units.src_kinds[i])
    reductions = [(kind, [atoms[i] for i in sorted(of_kind)]) for kind, of_kind in runs]
    wanted: Cut = (dst.spec.dims, dst.rules)
    for count, (kind, axes) in enumerate(reductions, 1):
        unchanged: Cut = (current().spec.dims, current().rules)
        # Only the last kind is scattered: the results of all others are still partial.
        scatters = count == len(reductions) and "reduce_scatter" in kinds
        scatters = scatters and bool(changed_dims(current(), dst))
        sliced = _sliced(current(), dst, axes) if scatters else None
        spreads = list(_spreads(current(), dst, axes)) if scatters else []
        if sliced is not None and fits(at(sliced)):
            move(sliced)
            sharding = sharding_axes(dst.spec)
            combine("reduce_scatter", [a for a in sharding if a in axes], wanted, kind)
            combine("all_reduce", [a for a in axes if a not in sharding], wanted, kind)
        elif spreads:
            best = spreads[0]
            if len(spreads) > 1:
                costs = [exchange_cost(spread, axes) for spread in spreads]
                best = spreads[costs.index(min(costs))]
            combine("reduce_scatter", axes, best, kind)
        else:
            combine("all_reduce", axes, unchanged, kind)

    move(wanted)
    for i, new in enumerate(after):
        if new and new != left[i]:
            left[i] = new
            add("fill", [atoms[i]], at(wanted), new)
    if steps:  # partial results over axes of length 1 need no step to appear or disappear
        steps[-1] = replace(steps[-1], dst=dst)
    return ReshardPlan(src, dst, tuple(steps))


def _sliced(src: Layout, dst: Layout, axes: list[Axis]) -> Cut | None:
    """The cut from which a scatter over `axes` leads to `dst`, if slices lead there from `src`."""
    if any(src.spec.dims[dim] for dim in changed_dims(src, dst)):
        return None
    if overlap([*(a for a in sharding_axes(dst.spec) if a not in axes), *axes]):
        return None
    dims: list[tuple[Entry, ...]] = []
    rules: list[Chunking] = []
    for entries, rule, parts in zip(dst.spec.dims, dst.rules, dst.cuts, strict=True):
        # With splits in place of `axes` the pieces stay the same, and each device has all pieces
        # of its group.
        rest = src.mesh.joined(
            Split(count) if entry in axes else entry
            for entry, count in zip(entries, parts, strict=True)
        )
        if rest and math.prod(n_parts(src.mesh, entry) for entry in rest) != math.prod(parts):
            return None
        dims.append(rest)
        rules.append(rule if rest else "ceil")
    return tuple(dims), tuple(rules)


def _spreads(layout: Layout, dst: Layout, axes: list[Axis]) -> Iterator[Cut]:
    """Cuts in which one of the dims with the largest pieces is also cut along `axes`."""
    n_parts = layout.mesh.axis_size(axes)
    sizes = [n // math.prod(cuts) for n, cuts in zip(layout.shape, layout.cuts, strict=True)]
    if not sizes or max(sizes) < n_parts:
        return
    for dim, size in enumerate(sizes):
        if size < max(sizes) or math.prod(layout.cuts[dim]) * n_parts > _MOST_PIECES:
            continue
        dims, rules = list(layout.spec.dims), list(layout.rules)
        pieces = all_sizes(layout.shape[dim], rules[dim], layout.cuts[dim])
        dims[dim] = layout.mesh.joined((*dims[dim], *_in_order(axes, dst, dim)))
        rules[dim] = tuple(itertools.chain(*(all_sizes(n, "balanced", (n_parts,)) for n in pieces)))
        yield tuple(dims), tuple(rules)


def _in_order(axes: list[Axis], dst: Layout, dim: int) -> list[Axis]:
    """`axes` in this order: those that cut `dim` in the destination, other dims, nothing."""

    def rank(axis: Axis) -> tuple[int, ...]:
        for other in range(len(dst.shape)):
            order = dst.spec.sharding_of(other)
            if axis in order:
                elsewhere = (1, dst.shape[other]) if other != dim else (0, 0)
                return (*elsewhere, order.index(axis), dst.mesh.length(axis))
        return 2, 0, 0, dst.mesh.length(axis)

    return sorted(axes, key=rank)


def _exchange(src: Layout, dst: Layout, changed: list[int]) -> tuple[StepKind, tuple[Axis, ...]]:
    """The kind of step that an exchange of the `changed` dims amounts to, and its axes."""
    before = [src.spec.dims[dim] for dim in changed]
    after = [dst.spec.dims[dim] for dim in changed]
    if not any(before):
        return "slice", _joined(src, itertools.chain(*after))
    if not any(after):
        return "all_gather", _joined(src, itertools.chain(*before))
    if len(changed) == 2 and before == after[::-1] and not all(before):
        return "all_to_all", _joined(src, itertools.chain(*before))
    used = {a for layout in (src, dst) for dim in changed for a in layout.spec.sharding_of(dim)}
    return "exchange", tuple(sorted(set(map(index, used))))


def _joined(layout: Layout, entries: Iterable[Entry]) -> tuple[Axis, ...]:
    joined = layout.mesh.joined(entries)
    return tuple(entry for entry in joined if not isinstance(entry, Split))
