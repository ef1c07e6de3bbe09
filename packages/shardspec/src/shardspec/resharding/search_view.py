"""`searched`: the cheapest plan that `a_star` finds, and the view of two layouts that it searches.

Unstrided layouts of whole axes are searched as they are. If there are common units (`refine`), the
search sees a tensor with a dim for each digit (and one for what is left of each dim) on a mesh with
an axis for each atom. In this view, strided shards and parts of axes are like any others.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shardspec.base.axis import Axis, Entry, Split
from shardspec.base.partial import Partial
from shardspec.errors import InternalError
from shardspec.layout.layout import Layout
from shardspec.layout.spec import Spec
from shardspec.refine.refine import Kinds, Places, Refined, refine
from shardspec.resharding.a_star import SpecMove, Task, cheapest_moves, fewest_bytes_moves
from shardspec.resharding.step import ReshardPlan, Step, step


def searched(
    units: Refined | None,
    kinds: frozenset[str],
    cost: Callable[[Step], float] | None,
    below: float,
    limit: int,
    src: Layout,
    dst: Layout,
) -> list[ReshardPlan]:
    """The plan with the least cost or, if `cost` is None, the fewest bytes received by a device.

    Args:
        units: Common units of the layouts; None to search over whole axes.
        kinds: Allowed kinds of steps.
        cost: Price of a step.
        below: Cost of a known plan; only cheaper ones are of interest.
        limit: Largest shard on the way, in elements.
        src: Layout before.
        dst: Layout after.

    Returns:
        One plan, or none if none was found.
    """
    view = _plain(src, dst) if units is None else _refined(units)
    if view is None:
        return []
    whole = view.layout(Spec.replicated(len(view.sizes))).local_bytes(1)
    min_shards = -(-whole // limit) if limit else 1
    task = Task(view.src, view.dst, view.sizes, view.lengths, kinds, min_shards)
    if cost is None:
        moves = fewest_bytes_moves(task)
    else:

        def price(spec: Spec, move: SpecMove) -> float:
            return cost(view.step(move, view.layout(spec), view.layout(move.spec)))

        moves = cheapest_moves(task, price, below)
    if moves is None:
        return []
    steps: list[Step] = []
    for count, move in enumerate(moves, 1):
        before = steps[-1].dst if steps else src
        new = view.step(move, before, dst if count == len(moves) else view.layout(move.spec))
        if steps and units and new.kind == steps[-1].kind in ("slice", "all_gather"):
            steps[-1] = _both(steps[-1], new)
        else:
            steps.append(new)
    return [ReshardPlan(src, dst, tuple(steps))]


@dataclass(frozen=True, slots=True)
class _View:
    """The tensor and mesh that the search sees, and the way back to layouts."""

    src: Spec
    dst: Spec
    sizes: tuple[int, ...]
    """Sizes of the dims that the search sees."""
    lengths: tuple[int, ...]
    """Lengths of the axes that the search sees."""
    atoms: Sequence[Axis]
    """The real axis, or part of one, behind each axis that the search sees."""
    layout: Callable[[Spec], Layout]
    """The real layout behind a spec that the search sees."""

    def step(self, move: SpecMove, before: Layout, after: Layout) -> Step:
        """The step between two real layouts that a move stands for."""
        joined = before.mesh.joined(self.atoms[axis] for axis in move.axes)
        axes = tuple(axis for axis in joined if not isinstance(axis, Split))
        return step(move.kind, axes, move.reduction, before, after)


def _plain(src: Layout, dst: Layout) -> _View | None:
    if not (src.spec.is_plain and dst.spec.is_plain and src.is_even and dst.is_even):
        return None
    if not set(src.spec.partial) >= set(dst.spec.partial):
        return None
    mesh = src.mesh
    # Which splits are even depends on the shape only through these divisors, so few different
    # searches serve all shapes.
    sizes = tuple(math.gcd(n, mesh.size) for n in src.shape)
    return _View(
        src.spec,
        dst.spec,
        sizes,
        mesh.shape,
        range(mesh.ndim),
        lambda spec: Layout(src.shape, mesh, spec),
    )


def _refined(units: Refined) -> _View | None:
    if any(new and new != old for old, new in zip(units.src_kinds, units.dst_kinds, strict=True)):
        return None
    sizes: list[int] = []
    dims_seen: list[list[int]] = []
    number: dict[int, int] = {}
    for digits, left in zip(units.order, units.left, strict=True):
        number.update(zip(digits, itertools.count(len(sizes)), strict=False))
        new = [*(units.digits[digit] for digit in digits), max(left, 0)] if left >= 0 else []
        dims_seen.append(list(range(len(sizes), len(sizes) + len(new))))
        sizes += new

    def spec(places: Places, kinds: Kinds) -> Spec:
        dims: list[tuple[int, ...]] = [()] * len(sizes)
        for atom, place in enumerate(places):
            if place >= 0:
                dims[number[place]] = (atom,)
        return Spec(tuple(dims), tuple(Partial(a, kind) for a, kind in enumerate(kinds) if kind))

    def layout(searched: Spec) -> Layout:
        dims: list[tuple[Entry, ...]] = []
        for searched_dims, entries in zip(dims_seen, units.layout.spec.dims, strict=True):
            new_entries: list[Entry] = []
            for dim in searched_dims:
                axes = searched.plain_dims[dim]
                new_entries += [units.atoms[axis] for axis in axes]
                rest = sizes[dim] // math.prod(units.sizes[axis] for axis in axes)
                new_entries.append(Split(max(rest, 1)))
            dims.append(tuple(new_entries) if searched_dims else entries)
        partial = [
            Partial(units.atoms[axis], p.kind)
            for axis, p in zip(searched.partial_axes, searched.partial, strict=True)
        ]
        return replace(units.layout, spec=Spec(tuple(dims), tuple(partial)))

    return _View(
        spec(units.src, units.src_kinds),
        spec(units.dst, units.dst_kinds),
        tuple(sizes),
        tuple(units.sizes),
        units.atoms,
        layout,
    )


def _both(first: Step, second: Step) -> Step:
    """Two successive gathers or two successive slices as one step."""
    units = refine(first.src, second.dst)
    if units is None:
        raise InternalError(f"steps in common units have common units; got {first} and {second}")
    moved = [a for a, (p, q) in enumerate(zip(units.src, units.dst, strict=True)) if p != q]
    axes = units.axes(moved, units.dst if first.kind == "slice" else units.src)
    return step(first.kind, axes, None, first.src, second.dst)
