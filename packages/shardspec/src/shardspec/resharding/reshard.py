"""`reshard`: plans the collectives from one layout of a tensor to another on the same mesh."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator

from shardspec.base.integers import natural
from shardspec.base.partial import Partial
from shardspec.errors import ReshardError, UnevenLayoutError
from shardspec.layout.layout import Layout
from shardspec.refine.lower_bound import partial_units
from shardspec.refine.refine import PARTIAL, Refined, changed_dims, refine
from shardspec.resharding.construct import Move, fewest_bytes
from shardspec.resharding.search_view import searched
from shardspec.resharding.step import ReshardPlan, Step, step
from shardspec.resharding.uneven import exchanged

WHOLE_AXES: frozenset[str] = frozenset(
    ["slice", "all_gather", "all_to_all", "reduce_scatter", "all_reduce"]
)
"""Kinds of steps over whole axes that are the minor-most of their dim: each is one call in
`jax.lax`."""

COLLECTIVES: frozenset[str] = WHOLE_AXES | {"collective_permute", "exchange", "fill", "transpose"}
"""All kinds of steps, and `transpose`, which allows steps on any blocks of the local array, moved
into place before and after the collective. Without `transpose`, all layouts on the way use whole
axes and are not strided."""

Cost = Callable[[Step], float]
"""The cost of a step, not negative; it may depend on its kind, axes, reduction and sizes."""


def reshard(
    src: Layout,
    dst: Layout,
    *,
    collectives: Iterable[str] = COLLECTIVES,
    cost: Cost | None = None,
    max_local_elements: int | None = None,
) -> ReshardPlan:
    """The plan of collectives that turns `src` into `dst`.

    With the defaults, the plan moves the fewest bytes, summed over devices, that collectives among
    all devices can. Without partial results this is the lower bound, and the plan has at most one
    exchange and one gather. No shard on the way is larger than the larger of source and destination
    (as in arXiv 2112.01075). `construct` says how and why. If the layouts are uneven in different
    ways, or are cut at points that do not nest (in 2 and in 3), partial results are combined first
    and everything else is one exchange.

    If a cost is given, or the steps of this plan are not among the allowed kinds, plans over whole
    axes (with `transpose`, over common parts of axes and dims) are searched, too. The cheapest of
    all plans is returned: by the cost, or by the bytes that one device receives, then the number
    of steps.

    Args:
        src: Layout of the tensor before.
        dst: Layout after, of the same shape and mesh. It may hold partial results that `src` does
            not: they are filled up with neutral elements, without communication.
        collectives: The kinds of steps that may be used, out of `COLLECTIVES`.
        cost: Price of a step, for example seconds by `costmodel.step_time`.
        max_local_elements: Limit on the elements of any shard on the way; if left out, the larger
            of the shards of `src` and `dst`.

    Raises:
        UnevenLayoutError: an uneven layout has to change, and `exchange` is not allowed.
        ReshardError: shape or mesh differ; partial results would have to be made in a way that
            changes them; `collectives` has an unknown kind; or no plan is possible.

    Examples:
        >>> from shardspec import Mesh, Spec
        >>> mesh = Mesh((2, 2), ("x", "y"))
        >>> plan = reshard(
        ...     Layout((8, 4), mesh, Spec.parse("S0S1")), Layout((8, 4), mesh, Spec.parse("S01R"))
        ... )
        >>> print(plan)
        all_to_all dim 1 to dim 0 over axis 1: S0S1 -> S01R
        >>> plan.received_bytes(itemsize=4), plan.total_bytes(itemsize=4), plan.gap
        (16, 64, 0.0)

    Reference:
        Alpa 4.1, Table 2; partial sums as in AutoDDL 4.1; strided shards as in Rhino 4.1.
    """
    kinds = _kinds(collectives)
    _check(src, dst, kinds)
    if src == dst:
        return ReshardPlan(src, dst, ())
    cost = cost and _checked(cost)
    limit = _limit(src, dst, max_local_elements)
    units = refine(src, dst) if "transpose" in kinds else None
    plans: list[ReshardPlan] = []
    if units is not None:
        moves = fewest_bytes(units, one_exchange="exchange" in kinds)
        if all(move.kind in kinds for move in moves):
            plans.append(ReshardPlan(src, dst, tuple(_built(units, moves, src, dst))))
    if not plans and "exchange" in kinds:
        plan = exchanged(src, dst, kinds)
        if all(step.kind in kinds for step in plan.steps):
            plans.append(plan)
    if not plans or "transpose" not in kinds:
        # Searched plans come first: they have the simpler steps, and of equal costs the first wins.
        plans = [*searched(units, kinds, None, math.inf, limit, src, dst), *plans]
    # In common units there are more and smaller steps, so plans over whole axes are searched, too.
    views = [] if cost is None else [None] if units is None else [units, None]
    for view in views:
        below = min((_price(plan, cost)[0] for plan in plans), default=math.inf)
        plans += searched(view, kinds, cost, below, limit, src, dst)
    if not plans:
        raise ReshardError(
            "a plan leads from source to destination by allowed steps; none was found with the "
            f"kinds {sorted(kinds)} from {src.spec} to {dst.spec} of shape {src.shape} on "
            f"{src.mesh.shape} with at most {limit} elements on a device; allow more collectives "
            "or a larger max_local_elements"
        )
    return min(plans, key=lambda plan: _price(plan, cost))


def reshard_whole_axes(src: Layout, dst: Layout) -> ReshardPlan:
    """The plan of `WHOLE_AXES` steps only, without a limit on memory: for programs in `jax.lax`.

    Between layouts that use whole axes, evenly and unstrided, there is always a plan, since
    everything can be gathered. Layouts on the way use only axes that `src` or `dst` uses. Plans are
    cached.

    Raises:
        UnevenLayoutError: an uneven layout would have to change.
        ReshardError: as for `reshard`; or a layout uses parts of axes, or is strided.
    """
    whole = math.prod(src.shape)
    return reshard(src, dst, collectives=WHOLE_AXES, max_local_elements=whole)


def _kinds(collectives: Iterable[str]) -> frozenset[str]:
    if isinstance(collectives, str) or not isinstance(collectives, Iterable):
        raise ReshardError(
            f"collectives are several names, as in {{'all_gather', 'slice'}}; got {collectives!r}"
        )
    return frozenset(collectives)


def _checked(cost: Cost) -> Cost:
    """`cost`, but it raises `ReshardError` if the cost of a step is not a number >= 0."""

    def price(step: Step) -> float:
        value = cost(step)
        if not value >= 0:
            raise ReshardError(f"a cost is a number >= 0; got {value!r} for the step: {step}")
        return value

    return price


def _check(src: Layout, dst: Layout, kinds: frozenset[str]) -> None:
    for layout in (src, dst):
        if not isinstance(layout, Layout):
            raise ReshardError(f"reshard goes from a Layout to a Layout; got {layout!r}")
    if src.shape != dst.shape:
        raise ReshardError(
            "reshard keeps the tensor's shape; "
            f"got {src.shape} as source and {dst.shape} as destination"
        )
    if src.mesh != dst.mesh:
        raise ReshardError(
            "reshard stays on one mesh (crossmesh moves between meshes); "
            f"got {src.mesh} as source and {dst.mesh} as destination"
        )
    if unknown := kinds - COLLECTIVES:
        raise ReshardError(
            f"collectives are among {sorted(COLLECTIVES)}; got also {sorted(unknown)}"
        )
    if src == dst:
        return
    for layout in (src, dst) if "exchange" not in kinds else ():
        changed = range(len(src.shape)) if "transpose" not in kinds else changed_dims(src, dst)
        if dims := tuple(dim for dim in changed if dim in layout.uneven_dims):
            raise UnevenLayoutError(
                "without `exchange`, reshard needs shards of equal size (with `transpose`, only in "
                f"dims that change); got dims {dims} of shape {layout.shape} in "
                f"{layout.shards} shards ({layout.spec} on {layout.mesh.shape}); pad these dims to "
                "a multiple of their shards, or shard others"
            )
        if "transpose" not in kinds and not layout.spec.is_plain:
            raise ReshardError(
                "without `transpose`, reshard needs layouts of whole axes, unstrided; "
                f"got {layout.spec}"
            )
    if src.spec.partial or dst.spec.partial:
        _check_partial(src, dst, kinds)


def _check_partial(src: Layout, dst: Layout, kinds: frozenset[str]) -> None:
    units = partial_units(src, dst)
    change = list(zip(units.atoms, units.src_kinds, units.dst_kinds, strict=True))
    created = [(axis, new) for axis, old, new in change if new and new != old]
    if created and "fill" not in kinds:
        needs = ", ".join(f"{kind} over axis {axis}" for axis, kind in created)
        raise ReshardError(
            f"partial results are made by `fill` only; {src.spec} -> {dst.spec} needs {needs}; "
            "allow it, or ask for a destination without them"
        )
    for (first, old, new), (later, _, kept) in itertools.combinations(
        [c for c in change if c[1] or c[2]], 2
    ):
        stays = kept is not None and (later, kept, kept) in change
        for kind in (old, new):
            if not (kind and kept and stays) or old == new:
                continue
            if not Partial(0, kind).commutes_with(Partial(1, kept)):
                raise ReshardError(
                    "partial results combine from the last axis to the first, and different kinds "
                    f"do not commute; {src.spec} -> {dst.spec} would combine or make {kind} over "
                    f"axis {first} inside {kept} over axis {later}; reduce both"
                )


def _limit(src: Layout, dst: Layout, max_local_elements: int | None) -> int:
    limit = max(src.local_bytes(1), dst.local_bytes(1))
    if max_local_elements is None:
        return limit
    if natural(max_local_elements) < limit:
        raise ReshardError(
            "the limit is a whole number into which the larger of source and destination fits; "
            f"got max_local_elements={max_local_elements}, and shards of {src.local_bytes(1)} "
            f"({src.spec}) and {dst.local_bytes(1)} elements ({dst.spec})"
        )
    return max_local_elements


def _price(plan: ReshardPlan, cost: Cost | None) -> tuple[float, int]:
    if cost is None:
        return plan.received_bytes(1), len(plan.steps)
    return sum(map(cost, plan.steps)), len(plan.steps)


def _built(units: Refined, moves: list[Move], src: Layout, dst: Layout) -> Iterator[Step]:
    """The steps for moves in common units."""
    before, places = src, units.src
    for count, move in enumerate(moves, 1):
        after = dst if count == len(moves) else units.at(move.places, move.kinds)
        atoms = [a for a, (p, q) in enumerate(zip(places, move.places, strict=True)) if p != q]
        if move.kind == "fill":
            atoms = [atom for atom in atoms if move.places[atom] == PARTIAL]
        # Axes are listed in the order in which they cut the tensor, if they do.
        at = None
        if move.kind in ("all_gather", "all_to_all"):
            at = places
        elif move.kind in ("slice", "reduce_scatter"):
            at = move.places
        yield step(move.kind, units.axes(atoms, at), move.reduction, before, after)
        before, places = after, move.places
