"""`exchanged`: resharding where there are no common units, as one exchange.

Layouts that cut a dim at points that do not nest (in 2 and in 3, or uneven ones by different rules)
have no digits to move about. Every device still knows who holds what it lacks. So partial results
are combined first, and then each device is sent what it wants and does not hold: the lower bound.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardspec.base.axis import Axis, Entry, Split, overlap
from shardspec.base.chunking import Chunking, all_sizes
from shardspec.base.partial import Partial, Reduction
from shardspec.layout.layout import Layout
from shardspec.layout.spec import Spec
from shardspec.refine.lower_bound import partial_units
from shardspec.refine.refine import changed_dims
from shardspec.resharding.construct import StepKind
from shardspec.resharding.step import ReshardPlan, Step, step

Cut = tuple[tuple[tuple[Entry, ...], ...], tuple[Chunking, ...]]
"""What cuts each dim, and by which rule."""

_MOST_PIECES = 2**16
"""Pieces of a dim for which sizes are worth listing."""


def exchanged(src: Layout, dst: Layout, kinds: frozenset[str]) -> ReshardPlan:
    """Partial results combined, one exchange, and fills, where needed.

    If slices lead to the destination, results are scattered straight into it. Else they are
    scattered over the dim with the largest pieces, and exchanged from there, unless nothing else
    changes. An exchange that gathers or slices dims wholly, or moves axes from one dim to another,
    is called so if it may be. All else is as it is, in `kinds` or not.
    """
    units = partial_units(src, dst)
    atoms, left, after = units.atoms, list(units.src_kinds), units.dst_kinds
    steps: list[Step] = []

    def here() -> Layout:
        return steps[-1].dst if steps else src

    def at(cut: Cut, combined: Iterable[Axis] = ()) -> Layout:
        held = zip(atoms, left, strict=True)
        partial = [Partial(axis, kind) for axis, kind in held if kind and axis not in combined]
        return Layout(src.shape, src.mesh, Spec(cut[0], tuple(partial)), cut[1])

    def add(kind: StepKind, axes: Iterable[Axis], end: Layout, combine: Reduction | None) -> None:
        steps.append(step(kind, _joined(src, axes), combine, here(), end))

    def fits(layout: Layout) -> bool:
        # What is scattered into padded pieces is padded before, and may be larger than either end.
        small = layout.local_bytes(1) <= max(src.local_bytes(1), dst.local_bytes(1))
        return small and ("transpose" in kinds or layout.spec.is_plain)

    def moved(cut: Cut, combined: list[Axis]) -> tuple[int, ...]:
        # Where a scatter leads is chosen by what the exchange from there costs, so that neither the
        # names nor the order of dims and axes decide anything.
        before, after = at(cut, combined), at(wanted, combined)
        plan = ReshardPlan(before, after, (step("exchange", (), None, before, after),))
        return plan.total_bytes(1), plan.received_bytes(1), plan.sent_bytes(1)

    def move(cut: Cut) -> None:
        end = at(cut)
        if changed := changed_dims(here(), end):
            kind, axes = _exchange(here(), end, changed)
            add(kind if kind in kinds else "exchange", axes, end, None)

    def combine(kind: StepKind, axes: list[Axis], cut: Cut, how: Reduction | None) -> None:
        if axes:
            for axis in axes:
                left[atoms.index(axis)] = None
            add(kind, axes, at(cut), how)

    reduced = [i for i, kind in enumerate(left) if kind and kind != after[i]]
    runs = itertools.groupby(reversed(reduced), key=lambda i: units.src_kinds[i])
    alike = [(kind, [atoms[i] for i in sorted(same)]) for kind, same in runs]
    wanted: Cut = (dst.spec.dims, dst.rules)
    for count, (kind, axes) in enumerate(alike, 1):
        stays: Cut = (here().spec.dims, here().rules)
        # Only the last kind is scattered: all others combine what is still partial.
        scatters = count == len(alike) and "reduce_scatter" in kinds
        scatters = scatters and bool(changed_dims(here(), dst))
        sliced = _sliced(here(), dst, axes) if scatters else None
        spreads = list(_spreads(here(), dst, axes)) if scatters else []
        if sliced is not None and fits(at(sliced)):
            move(sliced)
            own = [a for dim in range(len(dst.shape)) for a in dst.spec.sharding_of(dim)]
            combine("reduce_scatter", [a for a in own if a in axes], wanted, kind)
            combine("all_reduce", [a for a in axes if a not in own], wanted, kind)
        elif spreads:
            best = spreads[0]
            if len(spreads) > 1:
                costs = [moved(spread, axes) for spread in spreads]
                best = spreads[costs.index(min(costs))]
            combine("reduce_scatter", axes, best, kind)
        else:
            combine("all_reduce", axes, stays, kind)

    move(wanted)
    for i, new in enumerate(after):
        if new and new != left[i]:
            left[i] = new
            add("fill", [atoms[i]], at(wanted), new)
    if steps:  # partial results over axes of length 1 come and go by themselves
        steps[-1] = replace(steps[-1], dst=dst)
    return ReshardPlan(src, dst, tuple(steps))


def _sliced(src: Layout, dst: Layout, axes: list[Axis]) -> Cut | None:
    """What is left to scatter into `dst` over `axes`, if slices lead there from `src`."""
    if any(src.spec.dims[dim] for dim in changed_dims(src, dst)):
        return None
    used = [a for dim in range(len(dst.shape)) for a in dst.spec.sharding_of(dim)]
    if overlap([*(a for a in used if a not in axes), *axes]):
        return None
    dims: list[tuple[Entry, ...]] = []
    rules: list[Chunking] = []
    for entries, rule, parts in zip(dst.spec.dims, dst.rules, dst.cuts, strict=True):
        # With splits instead of `axes` the pieces are the same, and a device has those of a group.
        rest = src.mesh.joined(
            Split(count) if entry in axes else entry
            for entry, count in zip(entries, parts, strict=True)
        )
        if rest and _pieces(src, rest) != math.prod(parts):
            return None
        dims.append(rest)
        rules.append(rule if rest else "ceil")
    return tuple(dims), tuple(rules)


def _spreads(layout: Layout, dst: Layout, axes: list[Axis]) -> Iterator[Cut]:
    """Cuts of the dims with the largest pieces, each of them once more along `axes`."""
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
    """Axes as the destination cuts `dim` along them, then those of other dims, then free ones."""

    def rank(axis: Axis) -> tuple[int, ...]:
        for other in range(len(dst.shape)):
            order = dst.spec.sharding_of(other)
            if axis in order:
                elsewhere = (1, dst.shape[other]) if other != dim else (0, 0)
                return (*elsewhere, order.index(axis), dst.mesh.length(axis))
        return 2, 0, 0, dst.mesh.length(axis)

    return sorted(axes, key=rank)


def _pieces(layout: Layout, entries: Iterable[Entry]) -> int:
    """Number of pieces that entries cut a dim into."""
    return math.prod(e.factor if isinstance(e, Split) else layout.mesh.length(e) for e in entries)


def _exchange(src: Layout, dst: Layout, changed: list[int]) -> tuple[StepKind, tuple[Axis, ...]]:
    """What an exchange is, and the axes that it runs over."""
    before = [src.spec.dims[dim] for dim in changed]
    after = [dst.spec.dims[dim] for dim in changed]
    if not any(before):
        return "slice", _joined(src, itertools.chain(*after))
    if not any(after):
        return "all_gather", _joined(src, itertools.chain(*before))
    if len(changed) == 2 and before == after[::-1] and not all(before):
        return "all_to_all", _joined(src, itertools.chain(*before))
    used = {a for layout in (src, dst) for dim in changed for a in layout.spec.sharding_of(dim)}
    whole = sorted({axis if isinstance(axis, int) else axis.axis for axis in used})
    return "exchange", tuple(whole)


def _joined(layout: Layout, entries: Iterable[Entry]) -> tuple[Axis, ...]:
    joined = layout.mesh.joined(entries)
    return tuple(entry for entry in joined if not isinstance(entry, Split))
