"""`exchanged`: resharding where there are no common units, as one exchange.

Layouts that cut a dim at points that do not nest (in 2 and in 3, or uneven ones by different rules)
have no digits to move about. Every device still knows who holds what it lacks. So partial results
are combined first, and then each device is sent what it wants and does not hold: the lower bound.
"""

import itertools
from collections.abc import Iterable
from dataclasses import replace

from .axis import Axis, Entry, Split
from .bound import partial_units
from .layout import Layout
from .partial import Partial
from .refine import Kinds, changed_dims
from .schedule import StepKind
from .spec import Spec
from .step import ReshardPlan, Step, step


def exchanged(src: Layout, dst: Layout, kinds: frozenset[str]) -> ReshardPlan:
    """A reduction for each kind of partial results, one exchange, and fills, where needed.

    An exchange that gathers or slices dims wholly, or moves axes from one dim to another, is called
    so if it may be; partial results that only become shards are reduced and scattered if they may.
    All else is as it is, in `kinds` or not.
    """
    units = partial_units(src, dst)
    assert units is not None, "reshard refuses partial results over parts that do not nest"
    atoms, before, after = units.atoms, list(units.src_kinds), units.dst_kinds
    steps: list[Step] = []

    def at(dims_of: Layout) -> Layout:
        partial = [Partial(a, kind) for a, kind in zip(atoms, before, strict=True) if kind]
        spec = Spec(dims_of.spec.dims, tuple(partial))
        return Layout(src.shape, src.mesh, spec, dims_of.rules)

    def add(kind: StepKind, members: list[int], end: Layout, reduction: Kinds) -> None:
        start = steps[-1].dst if steps else src
        axes = _joined(src, [atoms[i] for i in members])
        steps.append(step(kind, axes, reduction[members[0]], start, end))

    reduced = [i for i, kind in enumerate(before) if kind and kind != after[i]]
    scatters = _scatters(src, dst, [atoms[i] for i in reduced])
    scatters = scatters and len({before[i] for i in reduced}) == 1 and "reduce_scatter" in kinds
    for _, same in itertools.groupby(reversed(reduced), key=lambda i: units.src_kinds[i]):
        members = sorted(same)
        for i in members:
            before[i] = None
        if scatters:
            add("reduce_scatter", members, at(dst), units.src_kinds)
        else:
            add("all_reduce", members, at(src), units.src_kinds)

    changed = changed_dims(src, dst)
    if changed and not scatters:
        start, end = steps[-1].dst if steps else src, at(dst)
        name, axes = _exchange(src, dst, changed)
        steps.append(step(name if name in kinds else "exchange", axes, None, start, end))

    for i, kind in enumerate(after):
        if kind and kind != before[i]:
            before[i] = kind
            add("fill", [i], at(dst), after)
    if steps:  # partial results over axes of length 1 come and go by themselves
        steps[-1] = replace(steps[-1], dst=dst)
    return ReshardPlan(src, dst, tuple(steps))


def _scatters(src: Layout, dst: Layout, axes: list[Axis]) -> bool:
    """Whether all that changes is that axes with partial results cut one whole dim."""
    changed = [(src.spec.dims[d], dst.spec.dims[d]) for d in changed_dims(src, dst)]
    return bool(axes) and changed == [((), src.mesh.joined(axes))]


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
